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

// The queries of one page, and what they add to each of its scores.
struct PageQueries {
  Int8Rows rows;
  float* offsets;
};

template <int64_t kHeads>
HWY_INLINE void RoundQueries(const std::byte* k_scales, int64_t padded_dim, int64_t first_head, const float* x,
                             float* products, const PageQueries& q) {
  VF largest[kHeads], offset[kHeads];
  HW_UNROLL
  for (int64_t h = 0; h < kHeads; ++h) largest[h] = offset[h] = hn::Zero(kDF);
  for (int64_t d = 0; d < padded_dim; d += kLanes) {
    const VF scale = HalvesAsF32(Bytes(k_scales) + 2 * d);
    const VF low = HalvesAsF32(Bytes(k_scales) + 2 * (padded_dim + d));
    const VF middle = hn::MulAdd(scale, hn::Set(kDF, kMiddleCode), low);
    HW_UNROLL
    for (int64_t h = 0; h < kHeads; ++h) {
      const VF element = hn::LoadU(kDF, x + (first_head + h) * padded_dim + d);
      const VF product = hn::Mul(element, scale);
      hn::StoreU(product, kDF, products + h * padded_dim + d);
      largest[h] = hn::Max(largest[h], hn::Abs(product));
      offset[h] = hn::MulAdd(element, middle, offset[h]);
    }
  }
  VF inverses[kHeads];
  q.rows.SetScales(first_head, largest, inverses);
  HW_UNROLL
  for (int64_t h = 0; h < kHeads; ++h) {
    VI sum = hn::Zero(DI());
    for (int64_t d = 0; d < padded_dim; d += 64) {
      sum = hn::Add(sum, q.rows.Round(first_head + h, products + h * padded_dim, d, padded_dim, inverses[h]));
    }
    const VF middle = hn::Set(kDF, -kMiddleCode * q.rows.scales[first_head + h]);
    offset[h] = hn::MulAdd(hn::ConvertTo(kDF, sum), middle, offset[h]);
  }
  float offsets[kHeads];
  SumOfEach(offset, offsets);
  HW_UNROLL
  for (int64_t h = 0; h < kHeads; ++h) q.offsets[first_head + h] = offsets[h];
}

// scores[h][16 * group + lane] = q[h] . k for kHeads query heads and kGroups groups of one page.
template <int64_t kHeads, int64_t kGroups>
HWY_INLINE void Scores(const Group* groups, int64_t padded_dim, const PageQueries& q, int64_t first_head, float* scores,
                       int64_t score_stride) {
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
      low_x[h] = QuadInLanes(q.rows.Row(first_head + h), 2 * octet);
      high_x[h] = QuadInLanes(q.rows.Row(first_head + h), 2 * octet + 1);
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
    const VF scale = hn::Set(kDF, q.rows.scales[first_head + h]);
    const VF offset = hn::Set(kDF, q.offsets[first_head + h]);
    HW_UNROLL
    for (int64_t b = 0; b < kGroups; ++b) {
      HW_UNROLL
      for (int64_t s = 0; s < kSub; ++s) {
        hn::StoreU(hn::MulAdd(hn::ConvertTo(kDF, sum[b][h][s]), scale, offset), kDF,
                   scores + h * score_stride + b * kGroupTokens + s * kLanes);
      }
    }
  }
}

// The scores of all heads for the groups [begin, end), which are read with the queries `x` [G, Dp]. `products` holds
// rows of Dp for kMaxHeads.
void ScoreRun(const DecodeArgs& args, const Pieces& pieces, int64_t begin, int64_t end, const float* x, float* products,
              const PageQueries& q) {
  const int64_t padded_dim = args.pages.padded_dim;
  const int64_t num_scores = ScoreStride(pieces);
  const int64_t scale_lines = (4 * padded_dim + 63) / 64;
  for (int64_t first = begin; first < end;) {
    // Groups of one page have the same scales.
    const std::byte* k_scales = pieces.groups[first].k_scales;
    int64_t page_end = first + 1;
    while (page_end < end && pieces.groups[page_end].k_scales == k_scales) ++page_end;
    const Group& ahead = pieces.groups[first + kGroupsAhead];
    for (int64_t line = 0; line < scale_lines; ++line) PrefetchToL2(ahead.k_scales + 64 * line);
    ForHeads(args.num_q, [&]<int64_t kHeads>(int64_t head)
                             HW_INLINE_LAMBDA { RoundQueries<kHeads>(k_scales, padded_dim, head, x, products, q); });
    for (; first < page_end; first += kBlockGroups) {
      const Block block = BlockAt(pieces, first, page_end);
      float* scores = args.scratch + first * kGroupTokens;
      ForHeads(args.num_q, [&]<int64_t kHeads>(int64_t head) HW_INLINE_LAMBDA {
        ForGroups(block, [&]<int64_t kGroups>(int64_t i) HW_INLINE_LAMBDA {
          Scores<kHeads, kGroups>(block.groups + i, padded_dim, q, head, scores + head * num_scores + i * kGroupTokens,
                                  num_scores);
        });
      });
    }
    first = page_end;
  }
}

// out[h][vec .. vec + kVecs) += p[h] . codes of v over the block's tokens.
template <int64_t kHeads, int64_t kVecs>
HWY_INLINE void AddValues(const Block& block, int64_t padded_dim, int64_t vec, const Int8Rows& p, int64_t first_head,
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
      low_x[h] = QuadInLanes(p.Row(first_head + h), 2 * octet);
      high_x[h] = QuadInLanes(p.Row(first_head + h), 2 * octet + 1);
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
  AddScaled<kHeads, kVecs>(sum, p, first_head, padded_dim, out + vec * kLanes);
}

// Of the values of a block, for every 32 dimensions.
struct ValueRuns {
  int64_t num;
  float* scales;  // [num][kBlockTokens]
  float* lows;    // the same, of low + 7.5 * scale
};

// Scales and lows of the block that begins with group number `first`.
HWY_INLINE void LoadRuns(const DecodeArgs& args, const Pieces& pieces, int64_t first, const Block& block,
                         const ValueRuns& runs) {
  const ValueScaleSteps steps = StepsOf(args.pages.page_tokens, args.pages.padded_dim);
  for (int64_t run = 0; run < runs.num; ++run) {
    float* scales = runs.scales + run * kBlockTokens;
    float* lows = runs.lows + run * kBlockTokens;
    for (int64_t i = 0; i < block.num_groups; ++i) {
      const std::byte* ahead = block.groups[i + kGroupsAhead].v_scales + run * steps.run;
      PrefetchToL2(ahead);
      PrefetchToL2(ahead + steps.low);
      const uint8_t* halves = Bytes(block.groups[i].v_scales + run * steps.run);
      for (int64_t s = 0; s < kGroupTokens; s += kLanes) {
        const VF scale = HalvesAsF32(halves + 2 * s);
        const VF low = HalvesAsF32(halves + steps.low + 2 * s);
        hn::StoreU(scale, kDF, scales + i * kGroupTokens + s);
        hn::StoreU(hn::MulAdd(scale, hn::Set(kDF, kMiddleCode), low), kDF, lows + i * kGroupTokens + s);
      }
    }
    HideOutside(args, pieces, first, scales);
    HideOutside(args, pieces, first, lows);
  }
}

// Probabilities of kHeads heads times the scales of values for each 32 dimensions, of the block that begins with group
// number `first`, into rows of p; what the lows and the rounding add to these dimensions joins `offsets`.
template <int64_t kHeads>
HWY_INLINE void RoundWeights(const DecodeArgs& args, const Pieces& pieces, int64_t first, int64_t first_head,
                             const ValueRuns& runs, const Int8Rows& p, float* offsets, float* sums) {
  VF probabilities[kHeads][kBlockVecs];
  HW_UNROLL
  for (int64_t h = 0; h < kHeads; ++h) {
    BlockProbabilities(args, pieces, first, first_head + h, sums, probabilities[h]);
  }
  for (int64_t run = 0; run < runs.num; ++run) {
    const float* scales = runs.scales + run * kBlockTokens;
    const float* lows = runs.lows + run * kBlockTokens;
    const int64_t first_row = run * args.num_q + first_head;
    VF largest[kHeads], inverses[kHeads], offset[kHeads];
    HW_UNROLL
    for (int64_t h = 0; h < kHeads; ++h) {
      offset[h] = hn::LoadU(kDF, offsets + (first_row + h) * kLanes);
      largest[h] = hn::Zero(kDF);
      HW_UNROLL
      for (int64_t i = 0; i < kBlockVecs; ++i) {
        largest[h] = hn::Max(largest[h], hn::Mul(probabilities[h][i], hn::LoadU(kDF, scales + i * kLanes)));
        offset[h] = hn::MulAdd(probabilities[h][i], hn::LoadU(kDF, lows + i * kLanes), offset[h]);
      }
    }
    p.SetScales(first_row, largest, inverses);
    HW_UNROLL
    for (int64_t h = 0; h < kHeads; ++h) {
      VF scaled[kBlockVecs];
      HW_UNROLL
      for (int64_t i = 0; i < kBlockVecs; ++i) {
        scaled[i] = hn::Mul(hn::Mul(probabilities[h][i], hn::LoadU(kDF, scales + i * kLanes)), inverses[h]);
      }
      const VI sum = RoundToBytes(scaled, p.Row(first_row + h));
      const VF middle = hn::Set(kDF, -kMiddleCode * p.scales[first_row + h]);
      hn::StoreU(hn::MulAdd(hn::ConvertTo(kDF, sum), middle, offset[h]), kDF, offsets + (first_row + h) * kLanes);
    }
  }
}

// Outputs of all heads but for `offsets` [Dp/32][G][kLanes], whose lanes remain to be summed; and sums of
// probabilities. `p` has rows [Dp/32][G].
void AddRuns(const DecodeArgs& args, const Pieces& pieces, const ValueRuns& runs, const Int8Rows& p, float* offsets,
             float* sums) {
  const int64_t padded_dim = args.pages.padded_dim;
  for (int64_t first = 0; first < pieces.num_groups; first += kBlockGroups) {
    const Block block = BlockAt(pieces, first, pieces.num_groups);
    LoadRuns(args, pieces, first, block, runs);
    ForHeads(args.num_q, [&]<int64_t kHeads>(int64_t head) HW_INLINE_LAMBDA {
      RoundWeights<kHeads>(args, pieces, first, head, runs, p, offsets, sums);
    });
    for (int64_t run = 0; run < runs.num; ++run) {
      const int64_t begin = run * kScaleDims / kLanes;
      const int64_t run_end = (run + 1) * kScaleDims;
      const int64_t end = (run_end < padded_dim ? run_end : padded_dim) / kLanes;
      ForHeads(args.num_q, [&]<int64_t kHeads>(int64_t head) HW_INLINE_LAMBDA {
        const int64_t row = run * args.num_q + head;
        float* out = args.out + head * padded_dim;
        int64_t vec = begin;
        for (; vec + kMaxVecs <= end; vec += kMaxVecs) {
          AddValues<kHeads, kMaxVecs>(block, padded_dim, vec, p, row, out);
        }
        for (; vec < end; ++vec) AddValues<kHeads, 1>(block, padded_dim, vec, p, row, out);
      });
    }
  }
}

}  // namespace

void DecodeQ4(const DecodeArgs& args) {
  Pieces pieces;
  ListGroups(args, pieces);
  const int64_t num_q = args.num_q;
  const int64_t padded_dim = args.pages.padded_dim;
  const int64_t num_runs = NumScaleRuns(padded_dim);
  Scratch scratch(args, pieces);
  float* products = scratch.Take(kMaxHeads * padded_dim);
  const PageQueries q = {scratch.TakeRows(num_q, padded_dim), scratch.Take(num_q)};
  const ValueRuns runs = {num_runs, scratch.Take(num_runs * kBlockTokens), scratch.Take(num_runs * kBlockTokens)};
  const Int8Rows p = scratch.TakeRows(num_runs * num_q, kBlockTokens);
  float* offsets = scratch.TakeZeros(num_runs * num_q * kLanes);
  float* sums = scratch.TakeZeros(num_q * kLanes);
  ScoreRun(args, pieces, 0, pieces.num_sink_groups, args.q_sink, products, q);
  ScoreRun(args, pieces, pieces.num_sink_groups, pieces.num_groups, args.q, products, q);
  FinishBlockScores(args, pieces);
  for (int64_t i = 0; i < num_q * padded_dim; ++i) args.out[i] = 0.0f;
  AddRuns(args, pieces, runs, p, offsets, sums);
  FinishOutputs(args, offsets, kScaleDims, sums);
}

}  // namespace headwise::cpu::HW_ISA
