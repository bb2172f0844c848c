// Attention of one query position over q4 pages: integer dot products as over q8, of codes that are half as long. What
// differs is whose the scales are. Keys have one for each dimension of a page, so they join the query, which is rounded
// to int8 for every page; the lows add q . low to all scores of the page. Values have one for 32 dimensions of a token,
// so probabilities are rounded for every 32 dimensions; the lows add the sum of p * low to each of these.
//
// Where x is rounded to y, x . code = y . code + (x - y) . code, and codes are 7.5 on average: 7.5 times the sum of
// x - y joins what the lows add, and half of the error is gone.
#include "backend/cpu/kernels/attention_decode-inl.h"
#include "backend/cpu/kernels/isa_functions.h"

namespace headwise::cpu::HW_ISA {
namespace {

constexpr float kMiddleCode = 7.5f;

// Vectors of 32 dimensions together.
constexpr int64_t kMaxVecs = kSub == 1 ? 2 : 4;

// The queries as they are rounded for one page, and what they add to each of its scores. Made in two steps, FindScales
// and Round: scales and their inverses come a long way of instructions that wait for each other, and other work fits
// between the two.
class PageQueries {
 public:
  HWY_INLINE PageQueries(const DecodeArgs& args, Scratch& scratch)
      : num_q_(args.num_q),
        padded_dim_(args.pages.padded_dim),
        rows_(args.num_q, args.pages.padded_dim, scratch),
        offset_lanes_(scratch.Take(args.num_q * kLanes)),
        offsets_(scratch.Take(args.num_q)) {}

  HWY_INLINE const Int8Rows& rows() const { return rows_; }
  HWY_INLINE float Offset(int64_t head) const { return offsets_[head]; }
  // Whether they are those of the queries x [G, Dp] and a page.
  HWY_INLINE bool AreOf(const float* x, const std::byte* k_scales) const { return x == x_ && k_scales == k_scales_; }

  HWY_INLINE void FindScales(const float* x, const std::byte* k_scales) {
    x_ = x;
    k_scales_ = k_scales;
    ForHeads(num_q_, [&]<int64_t kHeads>(int64_t head) HW_INLINE_LAMBDA { FindScalesOf<kHeads>(head); });
  }
  HWY_INLINE void Round() const {
    ForHeads(num_q_, [&]<int64_t kHeads>(int64_t head) HW_INLINE_LAMBDA { RoundHeads<kHeads>(head); });
  }

 private:
  HWY_INLINE VF Scale(int64_t d) const { return HalvesAsF32(Bytes(k_scales_) + 2 * d); }
  HWY_INLINE VF Low(int64_t d) const { return HalvesAsF32(Bytes(k_scales_) + 2 * (padded_dim_ + d)); }

  template <int64_t kHeads>
  HWY_INLINE void FindScalesOf(int64_t first_head) const {
    const float* x = x_ + first_head * padded_dim_;
    VF largest[kHeads], offset[kHeads];
    HW_UNROLL
    for (int64_t h = 0; h < kHeads; ++h) largest[h] = offset[h] = hn::Zero(kDF);
    for (int64_t d = 0; d < padded_dim_; d += kLanes) {
      const VF scale = Scale(d);
      const VF middle = hn::MulAdd(scale, hn::Set(kDF, kMiddleCode), Low(d));
      HW_UNROLL
      for (int64_t h = 0; h < kHeads; ++h) {
        const VF element = hn::LoadU(kDF, x + h * padded_dim_ + d);
        largest[h] = hn::Max(largest[h], hn::Abs(hn::Mul(element, scale)));
        offset[h] = hn::MulAdd(element, middle, offset[h]);
      }
    }
    rows_.SetScales(first_head, largest);
    HW_UNROLL
    for (int64_t h = 0; h < kHeads; ++h) hn::StoreU(offset[h], kDF, offset_lanes_ + (first_head + h) * kLanes);
  }

  template <int64_t kHeads>
  HWY_INLINE void RoundHeads(int64_t first_head) const {
    const float* x = x_ + first_head * padded_dim_;
    VI sums[kHeads];
    HW_UNROLL
    for (int64_t h = 0; h < kHeads; ++h) sums[h] = hn::Zero(DI());
    const auto round = [&](int64_t d, int64_t num_vecs) HW_INLINE_LAMBDA {
      VF scale[kByteVecs];
      HW_UNROLL
      for (int64_t i = 0; i < kByteVecs; ++i) scale[i] = i < num_vecs ? Scale(d + i * kLanes) : hn::Zero(kDF);
      HW_UNROLL
      for (int64_t h = 0; h < kHeads; ++h) {
        const VF inverse = hn::Set(kDF, rows_.inverses[first_head + h]);
        VF scaled[kByteVecs];
        HW_UNROLL
        for (int64_t i = 0; i < kByteVecs; ++i) {
          const VF element = hn::LoadU(kDF, x + h * padded_dim_ + d + (i < num_vecs ? i * kLanes : 0));
          scaled[i] = hn::Mul(hn::Mul(element, scale[i]), inverse);
        }
        sums[h] = hn::Add(sums[h], RoundToBytes(scaled, rows_.Row(first_head + h) + d));
      }
    };
    int64_t d = 0;
    for (; d + 64 <= padded_dim_; d += 64) round(d, kByteVecs);
    if (d < padded_dim_) round(d, (padded_dim_ - d) / kLanes);
    VF offset[kHeads];
    HW_UNROLL
    for (int64_t h = 0; h < kHeads; ++h) {
      const VF middle = hn::Set(kDF, -kMiddleCode * rows_.scales[first_head + h]);
      const VF lanes = hn::LoadU(kDF, offset_lanes_ + (first_head + h) * kLanes);
      offset[h] = hn::MulAdd(hn::ConvertTo(kDF, sums[h]), middle, lanes);
    }
    float offsets[kHeads];
    SumOfEach(offset, offsets);
    HW_UNROLL
    for (int64_t h = 0; h < kHeads; ++h) offsets_[first_head + h] = offsets[h];
  }

  const int64_t num_q_;
  const int64_t padded_dim_;
  const Int8Rows rows_;
  float* const offset_lanes_;  // [G][kLanes]
  float* const offsets_;       // [G]
  // What they are of.
  const float* x_ = nullptr;
  const std::byte* k_scales_ = nullptr;
};

// body.operator()<kGroups>(first_group) until every one of the groups had its turn: as many together as there are
// registers for with kMaxHeads, which hides the latency of sums and reads a query once for all of them.
template <typename Body>
HWY_INLINE void ForGroups(int64_t num_groups, const Body& body) {
  int64_t i = 0;
  if constexpr (kSub == 1) {
    for (; i + 4 <= num_groups; i += 4) body.template operator()<4>(i);
    for (; i + 2 <= num_groups; i += 2) body.template operator()<2>(i);
  }
  for (; i < num_groups; ++i) body.template operator()<1>(i);
}

// scores[h][16 * group + lane] = q[h] . k for kHeads query heads and kGroups groups of one page.
template <int64_t kHeads, int64_t kGroups>
HWY_INLINE void Scores(const Group* groups, int64_t padded_dim, const PageQueries& q, int64_t first_head,
                       float* scores) {
  VI sum[kGroups][kHeads][kSub];
  HW_UNROLL
  for (int64_t b = 0; b < kGroups; ++b) {
    HW_UNROLL
    for (int64_t h = 0; h < kHeads; ++h) {
      HW_UNROLL
      for (int64_t s = 0; s < kSub; ++s) sum[b][h][s] = hn::Zero(DI());
    }
  }
  for (int64_t octet = 0; octet < padded_dim / 8; ++octet) {
    VI low_x[kHeads], high_x[kHeads];
    HW_UNROLL
    for (int64_t h = 0; h < kHeads; ++h) {
      low_x[h] = QuadInLanes(q.rows().Row(first_head + h), 2 * octet);
      high_x[h] = QuadInLanes(q.rows().Row(first_head + h), 2 * octet + 1);
    }
    HW_UNROLL
    for (int64_t b = 0; b < kGroups; ++b) {
      PrefetchToL2(groups[b + kGroupsAhead].k + 64 * octet);
      HW_UNROLL
      for (int64_t s = 0; s < kSub; ++s) {
        const VB codes = hn::LoadU(D8(), Bytes(groups[b].k) + 4 * (octet * kGroupTokens + s * kLanes));
        const VB low_codes = LowCodes(codes);
        const VB high_codes = HighCodes(codes);
        HW_UNROLL
        for (int64_t h = 0; h < kHeads; ++h) {
          sum[b][h][s] = CodeDot<4>(CodeDot<4>(sum[b][h][s], low_codes, low_x[h]), high_codes, high_x[h]);
        }
      }
    }
  }
  HW_UNROLL
  for (int64_t h = 0; h < kHeads; ++h) {
    const VF scale = hn::Set(kDF, q.rows().scales[first_head + h]);
    const VF offset = hn::Set(kDF, q.Offset(first_head + h));
    HW_UNROLL
    for (int64_t b = 0; b < kGroups; ++b) {
      HW_UNROLL
      for (int64_t s = 0; s < kSub; ++s) {
        hn::StoreU(hn::MulAdd(hn::ConvertTo(kDF, sum[b][h][s]), scale, offset), kDF,
                   scores + h * kBlockTokens + b * kGroupTokens + s * kLanes);
      }
    }
  }
}

// The scores of all heads for a block. Where q is not that of a page, it becomes so.
HWY_INLINE void ScoreBlock(const OnlineSoftmax& softmax, const Block& block, PageQueries& q) {
  const int64_t padded_dim = softmax.args().pages.padded_dim;
  for (int64_t first = 0; first < block.num_groups;) {
    // Groups of one page have the same scales.
    const std::byte* k_scales = block.groups[first].k_scales;
    int64_t end = first + 1;
    while (end < block.num_groups && block.groups[end].k_scales == k_scales) ++end;
    const std::byte* ahead = block.groups[first + kGroupsAhead].k_scales;
    for (int64_t line = 0; line < 4 * padded_dim; line += 64) PrefetchToL2(ahead + line);
    if (!q.AreOf(block.q, k_scales)) {
      q.FindScales(block.q, k_scales);
      q.Round();
    }
    ForHeads(softmax.args().num_q, [&]<int64_t kHeads>(int64_t head) HW_INLINE_LAMBDA {
      ForGroups(end - first, [&]<int64_t kGroups>(int64_t i) HW_INLINE_LAMBDA {
        Scores<kHeads, kGroups>(block.groups + first + i, padded_dim, q, head,
                                softmax.Scores(head) + (first + i) * kGroupTokens);
      });
    });
    first = end;
  }
}

// out[h][vec .. vec + kVecs) += p[first_row + h] . codes of v over the block's tokens.
template <int64_t kHeads, int64_t kVecs>
HWY_INLINE void AddValues(const Block& block, int64_t padded_dim, int64_t vec, const Int8Rows& p, int64_t first_row,
                          float* out) {
  VI sum[kHeads][kVecs];
  HW_UNROLL
  for (int64_t h = 0; h < kHeads; ++h) {
    HW_UNROLL
    for (int64_t i = 0; i < kVecs; ++i) sum[h][i] = hn::Zero(DI());
  }
  constexpr int64_t kOctets = kGroupTokens / 8;
  constexpr int64_t kBytes = 4 * kVecs * kLanes;
  for (int64_t octet = 0; octet < block.num_groups * kOctets; ++octet) {
    const int64_t group_idx = octet / kOctets;
    const int64_t offset = 4 * (octet % kOctets * padded_dim + vec * kLanes);
    HW_UNROLL
    for (int64_t line = 0; line < (kBytes > 64 ? kBytes / 64 : 1); ++line) {
      PrefetchToL2(block.groups[group_idx + kGroupsAhead].v + offset + 64 * line);
    }
    VI low_x[kHeads], high_x[kHeads];
    HW_UNROLL
    for (int64_t h = 0; h < kHeads; ++h) {
      low_x[h] = QuadInLanes(p.Row(first_row + h), 2 * octet);
      high_x[h] = QuadInLanes(p.Row(first_row + h), 2 * octet + 1);
    }
    HW_UNROLL
    for (int64_t i = 0; i < kVecs; ++i) {
      const VB codes = hn::LoadU(D8(), Bytes(block.groups[group_idx].v) + offset + 4 * i * kLanes);
      const VB low_codes = LowCodes(codes);
      const VB high_codes = HighCodes(codes);
      HW_UNROLL
      for (int64_t h = 0; h < kHeads; ++h) {
        sum[h][i] = CodeDot<4>(CodeDot<4>(sum[h][i], low_codes, low_x[h]), high_codes, high_x[h]);
      }
    }
  }
  AddScaled<kHeads, kVecs>(sum, p.scales + first_row, padded_dim, out + vec * kLanes);
}

// Scales and lows of the values of a block, f16 [Dp/32][tokens] each: of 16 tokens in a row where their groups lie.
struct ValueSteps {
  const uint8_t* groups[kBlockGroups];
  ValueScaleSteps strides;

  HWY_INLINE VF Scale(int64_t run, int64_t vec) const {
    return HalvesAsF32(groups[vec / kSub] + run * strides.run + 2 * (vec % kSub) * kLanes);
  }
  HWY_INLINE VF Low(int64_t run, int64_t vec) const {
    return HalvesAsF32(groups[vec / kSub] + run * strides.run + strides.low + 2 * (vec % kSub) * kLanes);
  }
};

// Those of a block as it lies; or in `visible` [2][Dp/32][kBlockTokens] with 0 for tokens that are not read, which may
// have NaN, and where there are none.
HWY_INLINE ValueSteps StepsOfBlock(const KvPages& pages, const Block& block, uint16_t* visible) {
  const int64_t num_runs = NumScaleRuns(pages.padded_dim);
  const ValueScaleSteps strides = StepsOf(pages.page_tokens, pages.padded_dim);
  ValueSteps steps = {{}, strides};
  for (int64_t i = 0; i < block.num_groups; ++i) {
    steps.groups[i] = Bytes(block.groups[i].v_scales);
    const std::byte* ahead = block.groups[i + kGroupsAhead].v_scales;
    for (int64_t run = 0; run < num_runs; ++run) {
      PrefetchToL2(ahead + run * strides.run);
      PrefetchToL2(ahead + run * strides.run + strides.low);
    }
  }
  if (block.is_whole) return steps;
  for (int64_t i = 0; i < 2 * num_runs * kBlockTokens; ++i) visible[i] = 0;
  for (int64_t i = 0; i < block.num_groups; ++i) {
    const int64_t begin = block.TokensBegin(i);
    const int64_t num_bytes = 2 * (block.TokensEnd(i) - begin);
    for (int64_t run = 0; run < 2 * num_runs; ++run) {
      const uint8_t* from = steps.groups[i] + run * strides.run + 2 * begin;
      __builtin_memcpy(visible + run * kBlockTokens + i * kGroupTokens + begin, from, static_cast<size_t>(num_bytes));
    }
  }
  steps.strides = StepsOf(kBlockTokens, pages.padded_dim);
  for (int64_t i = 0; i < kBlockGroups; ++i) {
    steps.groups[i] = reinterpret_cast<const uint8_t*>(visible + i * kGroupTokens);
  }
  return steps;
}

// Probabilities of kHeads heads and a block in place of their scores; and what RoundWeights needs next, the scales of
// rows [Dp/32][G] of p, which are to hold probabilities times the scales of values.
template <int64_t kHeads>
HWY_INLINE void PrepareWeights(const OnlineSoftmax& softmax, int64_t first_head, const ValueSteps& steps,
                               const Int8Rows& p) {
  HW_UNROLL
  for (int64_t h = 0; h < kHeads; ++h) Exponentiate(softmax, first_head + h, kCoarseExp2);
  for (int64_t run = 0; run < softmax.num_runs(); ++run) {
    VF largest[kHeads];
    HW_UNROLL
    for (int64_t h = 0; h < kHeads; ++h) largest[h] = hn::Zero(kDF);
    HW_UNROLL
    for (int64_t i = 0; i < kBlockVecs; ++i) {
      const VF scale = steps.Scale(run, i);
      HW_UNROLL
      for (int64_t h = 0; h < kHeads; ++h) {
        const VF probability = hn::LoadU(kDF, softmax.Scores(first_head + h) + i * kLanes);
        largest[h] = hn::Max(largest[h], hn::Mul(probability, scale));
      }
    }
    p.SetScales(run * softmax.args().num_q + first_head, largest);
  }
}

// Rounds those products into p. What the lows and the rounding add to each 32 dimensions joins their offsets.
template <int64_t kHeads>
HWY_INLINE void RoundWeights(const OnlineSoftmax& softmax, int64_t first_head, const ValueSteps& steps,
                             const Int8Rows& p) {
  for (int64_t run = 0; run < softmax.num_runs(); ++run) {
    VF scale[kBlockVecs], middle[kBlockVecs];
    HW_UNROLL
    for (int64_t i = 0; i < kBlockVecs; ++i) {
      scale[i] = steps.Scale(run, i);
      middle[i] = hn::MulAdd(scale[i], hn::Set(kDF, kMiddleCode), steps.Low(run, i));
    }
    HW_UNROLL
    for (int64_t h = 0; h < kHeads; ++h) {
      const int64_t head = first_head + h;
      const int64_t row = run * softmax.args().num_q + head;
      const VF inverse = hn::Set(kDF, p.inverses[row]);
      VF scaled[kBlockVecs];
      VF offset = hn::LoadU(kDF, softmax.Offset(run, head));
      HW_UNROLL
      for (int64_t i = 0; i < kBlockVecs; ++i) {
        const VF probability = hn::LoadU(kDF, softmax.Scores(head) + i * kLanes);
        scaled[i] = hn::Mul(hn::Mul(probability, scale[i]), inverse);
        offset = hn::MulAdd(probability, middle[i], offset);
      }
      const VI sum = RoundToBytes(scaled, p.Row(row));
      const VF step = hn::Set(kDF, -kMiddleCode * p.scales[row]);
      hn::StoreU(hn::MulAdd(hn::ConvertTo(kDF, sum), step, offset), kDF, softmax.Offset(run, head));
    }
  }
}

// What the values of a block add to the outputs.
HWY_INLINE void AddBlock(const OnlineSoftmax& softmax, const Block& block, const Int8Rows& p) {
  const int64_t num_q = softmax.args().num_q;
  const int64_t padded_dim = softmax.args().pages.padded_dim;
  for (int64_t run = 0; run < softmax.num_runs(); ++run) {
    const int64_t begin = run * kScaleDims / kLanes;
    const int64_t run_end = (run + 1) * kScaleDims;
    const int64_t end = (run_end < padded_dim ? run_end : padded_dim) / kLanes;
    ForHeads(num_q, [&]<int64_t kHeads>(int64_t head) HW_INLINE_LAMBDA {
      const int64_t row = run * num_q + head;
      float* out = softmax.Out(head);
      int64_t vec = begin;
      for (; vec + kMaxVecs <= end; vec += kMaxVecs) {
        AddValues<kHeads, kMaxVecs>(block, padded_dim, vec, p, row, out);
      }
      for (; vec < end; ++vec) AddValues<kHeads, 1>(block, padded_dim, vec, p, row, out);
    });
  }
}

}  // namespace

void DecodeQ4(const DecodeArgs& args) {
  Pieces pieces;
  ListGroups(args, pieces);
  const int64_t num_q = args.num_q;
  const int64_t num_runs = NumScaleRuns(args.pages.padded_dim);
  Scratch scratch(args);
  const OnlineSoftmax softmax(args, num_runs, scratch);
  PageQueries queries[2] = {PageQueries(args, scratch), PageQueries(args, scratch)};
  PageQueries* q = &queries[0];
  PageQueries* next_q = &queries[1];
  auto* visible = reinterpret_cast<uint16_t*>(scratch.Take(num_runs * kBlockTokens));
  const Int8Rows p(num_runs * num_q, kBlockTokens, scratch);
  for (int64_t first = 0; first < pieces.num_groups;) {
    const Block block = BlockAt(args, pieces, first);
    first += block.num_groups;
    ScoreBlock(softmax, block, *q);
    softmax.FinishScores(block);
    const ValueSteps steps = StepsOfBlock(args.pages, block, visible);
    // This block's probabilities and the next page's queries wait for their scales; each fills the other's time.
    const float* next_x = first < pieces.num_sink_groups ? args.q_sink : args.q;
    const std::byte* next_scales = pieces.groups[first].k_scales;
    const bool ends_page = first < pieces.num_groups && !q->AreOf(next_x, next_scales);
    ForHeads(num_q,
             [&]<int64_t kHeads>(int64_t head) HW_INLINE_LAMBDA { PrepareWeights<kHeads>(softmax, head, steps, p); });
    if (ends_page) next_q->FindScales(next_x, next_scales);
    ForHeads(num_q,
             [&]<int64_t kHeads>(int64_t head) HW_INLINE_LAMBDA { RoundWeights<kHeads>(softmax, head, steps, p); });
    if (ends_page) {
      next_q->Round();
      PageQueries* const done = q;
      q = next_q;
      next_q = done;
    }
    AddBlock(softmax, block, p);
  }
  softmax.Finish(kScaleDims);
}

}  // namespace headwise::cpu::HW_ISA
