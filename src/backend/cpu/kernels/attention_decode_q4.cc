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

// How far ahead to ask for cache lines: as many bytes as over q8.
constexpr int64_t kGroupsAhead = 2 * kBlockGroups;

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
    HW_UNROLL
    for (int64_t h = 0; h < kHeads; ++h) {
      const VF element = hn::LoadU(kDF, x + (first_head + h) * padded_dim + d);
      const VF product = hn::Mul(element, scale);
      hn::StoreU(product, kDF, products + h * padded_dim + d);
      largest[h] = hn::Max(largest[h], hn::Abs(product));
      offset[h] = hn::MulAdd(element, low, hn::MulAdd(product, hn::Set(kDF, kMiddleCode), offset[h]));
    }
  }
  HW_UNROLL
  for (int64_t h = 0; h < kHeads; ++h) {
    const int64_t head = first_head + h;
    const VI sum = RoundRowBy(q.rows, head, products + h * padded_dim, padded_dim, largest[h]);
    const VF middle = hn::Set(kDF, -kMiddleCode * q.rows.scales[head]);
    q.offsets[head] = hn::GetLane(hn::SumOfLanes(kDF, hn::MulAdd(hn::ConvertTo(kDF, sum), middle, offset[h])));
  }
}

// scores[h][16 * group + lane] = q[h] . k for kHeads query heads and kGroups groups of one page.
template <int64_t kHeads, int64_t kGroups>
HWY_INLINE void Scores(const Group* groups, const Group* ahead, int64_t padded_dim, const PageQueries& q,
                       int64_t first_head, float* scores, int64_t score_stride) {
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
      PrefetchLines(ahead[b].k, octet);
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
  const int64_t num_scores = pieces.num_groups * kGroupTokens;
  const int64_t scale_lines = (4 * padded_dim + 63) / 64;
  for (int64_t first = begin; first < end;) {
    // Groups of one page have the same scales.
    const std::byte* k_scales = pieces.groups[first].k_scales;
    int64_t page_end = first + 1;
    while (page_end < end && pieces.groups[page_end].k_scales == k_scales) ++page_end;
    const int64_t next = first + kGroupsAhead;
    const Group& ahead = pieces.groups[next < pieces.num_groups ? next : pieces.num_groups - 1];
    for (int64_t line = 0; line < scale_lines; ++line) PrefetchLines(ahead.k_scales, line);
    ForHeads(args.num_q, [&]<int64_t kHeads>(int64_t head)
                             HW_INLINE_LAMBDA { RoundQueries<kHeads>(k_scales, padded_dim, head, x, products, q); });
    for (; first < page_end; first += kBlockGroups) {
      const Block block = BlockAt(pieces, first, page_end, kGroupsAhead);
      float* scores = args.scratch + first * kGroupTokens;
      ForHeads(args.num_q, [&]<int64_t kHeads>(int64_t head) HW_INLINE_LAMBDA {
        ForGroups<kHeads>(block, [&]<int64_t kGroups>(int64_t i) HW_INLINE_LAMBDA {
          Scores<kHeads, kGroups>(block.groups + i, block.ahead + i, padded_dim, q, head,
                                  scores + head * num_scores + i * kGroupTokens, num_scores);
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
      PrefetchLines(block.ahead[group_idx].v + offset, line);
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
  HW_UNROLL
  for (int64_t h = 0; h < kHeads; ++h) {
    const VF scale = hn::Set(kDF, p.scales[first_head + h]);
    float* row = out + h * padded_dim + vec * kLanes;
    HW_UNROLL
    for (int64_t i = 0; i < kVecs; ++i) {
      const VF old = hn::LoadU(kDF, row + i * kLanes);
      hn::StoreU(hn::MulAdd(hn::ConvertTo(kDF, sum[h][i]), scale, old), kDF, row + i * kLanes);
    }
  }
}

// Probabilities of a block's tokens times the scales of their values for 32 dimensions, into row `head`; what the
// lows and the rounding add to these dimensions joins `offset`.
HWY_INLINE void RoundWeights(const float* p, const float* scales, const float* lows, int64_t num_tokens,
                             const Int8Rows& rows, int64_t head, float* offset) {
  alignas(64) float weights[kBlockTokens];
  VF largest = hn::Zero(kDF);
  VF sum = hn::LoadU(kDF, offset);
  for (int64_t i = 0; i < num_tokens; i += kLanes) {
    const VF probability = hn::LoadU(kDF, p + i);
    const VF weight = hn::Mul(probability, hn::Load(kDF, scales + i));
    hn::Store(weight, kDF, weights + i);
    largest = hn::Max(largest, weight);
    sum = hn::MulAdd(probability, hn::Load(kDF, lows + i), hn::MulAdd(weight, hn::Set(kDF, kMiddleCode), sum));
  }
  const VI codes = RoundRowBy(rows, head, weights, num_tokens, largest);
  const VF middle = hn::Set(kDF, -kMiddleCode * rows.scales[head]);
  hn::StoreU(hn::MulAdd(hn::ConvertTo(kDF, codes), middle, sum), kDF, offset);
}

// Outputs of all heads but for `offsets` [Dp/32][G][kLanes], whose lanes remain to be summed.
void AddRuns(const DecodeArgs& args, const Pieces& pieces, const Int8Rows& p, float* offsets) {
  const int64_t padded_dim = args.pages.padded_dim;
  const int64_t num_scores = pieces.num_groups * kGroupTokens;
  const ValueScaleSteps steps = StepsOf(args.pages.page_tokens, padded_dim);
  for (int64_t first = 0; first < pieces.num_groups; first += kBlockGroups) {
    const Block block = BlockAt(pieces, first, pieces.num_groups, kGroupsAhead);
    for (int64_t run = 0; run < NumScaleRuns(padded_dim); ++run) {
      alignas(64) float scales[kBlockTokens];
      alignas(64) float lows[kBlockTokens];
      for (int64_t i = 0; i < block.num_groups; ++i) {
        const std::byte* halves = block.groups[i].v_scales + run * steps.run;
        ValueScales(args, pieces, first + i, halves, scales + i * kGroupTokens);
        ValueScales(args, pieces, first + i, halves + steps.low, lows + i * kGroupTokens);
        PrefetchLines(block.ahead[i].v_scales + run * steps.run, 0);
        PrefetchLines(block.ahead[i].v_scales + run * steps.run + steps.low, 0);
      }
      for (int64_t head = 0; head < args.num_q; ++head) {
        RoundWeights(args.scratch + head * num_scores + first * kGroupTokens, scales, lows,
                     block.num_groups * kGroupTokens, p, head, offsets + (run * args.num_q + head) * kLanes);
      }
      const int64_t begin = run * kScaleDims / kLanes;
      const int64_t run_end = (run + 1) * kScaleDims;
      const int64_t end = (run_end < padded_dim ? run_end : padded_dim) / kLanes;
      ForHeads(args.num_q, [&]<int64_t kHeads>(int64_t head) HW_INLINE_LAMBDA {
        float* out = args.out + head * padded_dim;
        int64_t vec = begin;
        for (; vec + kMaxVecs <= end; vec += kMaxVecs) {
          AddValues<kHeads, kMaxVecs>(block, padded_dim, vec, p, head, out);
        }
        for (; vec < end; ++vec) AddValues<kHeads, 1>(block, padded_dim, vec, p, head, out);
      });
    }
  }
}

void AddOffsets(const DecodeArgs& args, const float* offsets) {
  const int64_t padded_dim = args.pages.padded_dim;
  for (int64_t head = 0; head < args.num_q; ++head) {
    for (int64_t d = 0; d < padded_dim; d += kScaleDims) {
      const VF lanes = hn::LoadU(kDF, offsets + (d / kScaleDims * args.num_q + head) * kLanes);
      const VF offset = hn::Set(kDF, hn::GetLane(hn::SumOfLanes(kDF, lanes)));
      const int64_t end = d + kScaleDims < padded_dim ? d + kScaleDims : padded_dim;
      for (int64_t i = d; i < end; i += kLanes) {
        float* out = args.out + head * padded_dim + i;
        hn::StoreU(hn::Add(hn::LoadU(kDF, out), offset), kDF, out);
      }
    }
  }
}

}  // namespace

void DecodeQ4(const DecodeArgs& args) {
  Pieces pieces;
  ListGroups(args, pieces);
  const int64_t num_q = args.num_q;
  const int64_t padded_dim = args.pages.padded_dim;
  const int64_t num_scores = pieces.num_groups * kGroupTokens;
  const int64_t num_offsets = NumScaleRuns(padded_dim) * num_q * kLanes;
  float* memory = args.scratch + num_q * num_scores;
  const auto take = [&memory](int64_t floats) {
    float* taken = memory;
    memory += floats;
    return taken;
  };
  float* products = take(kMaxHeads * padded_dim);
  float* offsets = take(num_offsets);
  const auto rows_of = [&](int64_t row_bytes) -> Int8Rows {
    auto* codes = reinterpret_cast<int8_t*>(take(num_q * row_bytes / 4));
    return {codes, row_bytes, take(num_q), nullptr};
  };
  const PageQueries q = {rows_of(padded_dim), take(num_q)};
  const Int8Rows p = rows_of(kBlockTokens);

  ScoreRun(args, pieces, 0, pieces.num_sink_groups, args.q_sink, products, q);
  ScoreRun(args, pieces, pieces.num_sink_groups, pieces.num_groups, args.q, products, q);
  for (int64_t head = 0; head < num_q; ++head) ProbabilitiesOf(args, pieces, head, args.scratch + head * num_scores);
  for (int64_t i = 0; i < num_q * padded_dim; ++i) args.out[i] = 0.0f;
  for (int64_t i = 0; i < num_offsets; ++i) offsets[i] = 0.0f;
  AddRuns(args, pieces, p, offsets);
  AddOffsets(args, offsets);
}

}  // namespace headwise::cpu::HW_ISA
