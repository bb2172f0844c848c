// Attention of one query position over q8 pages: both products are integer dot products, four elements a lane and step.
// The query is rounded to int8 with one scale per head. Scores have one token per lane, so a token's scale joins after
// the sum; in the second product the sum goes over tokens, so the value's scale joins its probability before that is
// rounded, with a scale for 64 tokens.
//
// A byte of a page is code + 128, hence  sum of code * x = sum of byte * x - 128 * sum of x:  where a sum starts.
#include "backend/cpu/kernels/attention_decode-inl.h"
#include "backend/cpu/kernels/isa_functions.h"

namespace headwise::cpu::HW_ISA {
namespace {

// x[n], n a multiple of 16, into row `head`.
HWY_INLINE void RoundRowTo(const Int8Rows& rows, int64_t head, const float* x, int64_t n) {
  VF largest = hn::Zero(kDF);
  for (int64_t i = 0; i < n; i += kLanes) largest = hn::Max(largest, hn::Abs(hn::LoadU(kDF, x + i)));
  const VI sum = RoundRowBy(rows, head, x, n, largest);
  rows.starts[head] = kCentersCodes ? 0 : -128 * hn::GetLane(hn::SumOfLanes(DI(), sum));
}

// scores[h][16 * group + lane] = q[h] . k for kHeads query heads and kGroups groups.
template <int64_t kHeads, int64_t kGroups>
HWY_INLINE void Scores(const Group* groups, const Group* ahead, int64_t padded_dim, const Int8Rows& q,
                       int64_t first_head, float* scores, int64_t score_stride) {
  VI sum[kGroups][kHeads][kSub];
  HW_UNROLL
  for (int64_t b = 0; b < kGroups; ++b) {
    HW_UNROLL
    for (int64_t h = 0; h < kHeads; ++h) {
      HW_UNROLL
      for (int64_t s = 0; s < kSub; ++s) sum[b][h][s] = hn::Set(DI(), q.starts[first_head + h]);
    }
  }
  for (int64_t quad = 0; quad < padded_dim / 4; ++quad) {
    VI x[kHeads];
    HW_UNROLL
    for (int64_t h = 0; h < kHeads; ++h) x[h] = QuadInLanes(q.Row(first_head + h), quad);
    HW_UNROLL
    for (int64_t b = 0; b < kGroups; ++b) {
      PrefetchLines(ahead[b].k, quad);
      HW_UNROLL
      for (int64_t s = 0; s < kSub; ++s) {
        const VB codes = hn::LoadU(D8(), Bytes(groups[b].k) + 4 * (quad * kGroupTokens + s * kLanes));
        HW_UNROLL
        for (int64_t h = 0; h < kHeads; ++h) sum[b][h][s] = CodeDot<8>(sum[b][h][s], codes, x[h]);
      }
    }
  }
  HW_UNROLL
  for (int64_t b = 0; b < kGroups; ++b) {
    HW_UNROLL
    for (int64_t s = 0; s < kSub; ++s) {
      const VF k_scale = HalvesAsF32(Bytes(groups[b].k_scales) + 2 * s * kLanes);
      HW_UNROLL
      for (int64_t h = 0; h < kHeads; ++h) {
        const VF scale = hn::Mul(k_scale, hn::Set(kDF, q.scales[first_head + h]));
        hn::StoreU(hn::Mul(hn::ConvertTo(kDF, sum[b][h][s]), scale), kDF,
                   scores + h * score_stride + b * kGroupTokens + s * kLanes);
      }
    }
  }
}

template <int64_t kHeads>
HWY_INLINE void ScoreBlock(const Block& block, int64_t padded_dim, const Int8Rows& q, int64_t first_head, float* scores,
                           int64_t score_stride) {
  ForGroups<kHeads>(block, [&]<int64_t kGroups>(int64_t i) HW_INLINE_LAMBDA {
    Scores<kHeads, kGroups>(block.groups + i, block.ahead + i, padded_dim, q, first_head, scores + i * kGroupTokens,
                            score_stride);
  });
}

// The scores of all heads for the groups [begin, end), which are read with the queries `x` [G, Dp].
void ScoreRun(const DecodeArgs& args, const Pieces& pieces, int64_t begin, int64_t end, const float* x,
              const Int8Rows& q) {
  if (begin >= end) return;
  const int64_t padded_dim = args.pages.padded_dim;
  const int64_t num_scores = pieces.num_groups * kGroupTokens;
  for (int64_t head = 0; head < args.num_q; ++head) RoundRowTo(q, head, x + head * padded_dim, padded_dim);
  for (int64_t first = begin; first < end; first += kBlockGroups) {
    const Block block = BlockAt(pieces, first, end, kBlockGroups);
    ForHeads(args.num_q, [&]<int64_t kHeads>(int64_t head) HW_INLINE_LAMBDA {
      ScoreBlock<kHeads>(block, padded_dim, q, head, args.scratch + head * num_scores + first * kGroupTokens,
                         num_scores);
    });
  }
}

// out[h][vec .. vec + kVecs) += p[h] . v over the block's tokens.
template <int64_t kHeads, int64_t kVecs>
HWY_INLINE void AddValues(const Block& block, int64_t padded_dim, int64_t vec, const Int8Rows& p, int64_t first_head,
                          float* out) {
  VI sum[kHeads][kVecs];
  HW_UNROLL
  for (int64_t h = 0; h < kHeads; ++h) {
    HW_UNROLL
    for (int64_t i = 0; i < kVecs; ++i) sum[h][i] = hn::Set(DI(), p.starts[first_head + h]);
  }
  constexpr int64_t kBytes = 4 * kVecs * kLanes;
  for (int64_t quad = 0; quad < block.num_groups * kGroupTokens / 4; ++quad) {
    const int64_t group_idx = 4 * quad / kGroupTokens;
    const int64_t offset = 4 * (quad % (kGroupTokens / 4) * padded_dim + vec * kLanes);
    HW_UNROLL
    for (int64_t line = 0; line < (kBytes > 64 ? kBytes / 64 : 1); ++line) {
      PrefetchLines(block.ahead[group_idx].v + offset, line);
    }
    VI x[kHeads];
    HW_UNROLL
    for (int64_t h = 0; h < kHeads; ++h) x[h] = QuadInLanes(p.Row(first_head + h), quad);
    HW_UNROLL
    for (int64_t i = 0; i < kVecs; ++i) {
      const VB codes = hn::LoadU(D8(), Bytes(block.groups[group_idx].v) + offset + 4 * i * kLanes);
      HW_UNROLL
      for (int64_t h = 0; h < kHeads; ++h) sum[h][i] = CodeDot<8>(sum[h][i], codes, x[h]);
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

template <int64_t kHeads>
HWY_INLINE void AddBlock(const Block& block, int64_t padded_dim, const Int8Rows& p, int64_t first_head, float* out) {
  const int64_t num_vecs = padded_dim / kLanes;
  int64_t vec = 0;
  for (; vec + 4 <= num_vecs; vec += 4) AddValues<kHeads, 4>(block, padded_dim, vec, p, first_head, out);
  for (; vec < num_vecs; ++vec) AddValues<kHeads, 1>(block, padded_dim, vec, p, first_head, out);
}

// Outputs of all heads from the probabilities in scratch.
void AddRuns(const DecodeArgs& args, const Pieces& pieces, const Int8Rows& p) {
  const int64_t padded_dim = args.pages.padded_dim;
  const int64_t num_scores = pieces.num_groups * kGroupTokens;
  for (int64_t i = 0; i < args.num_q * padded_dim; ++i) args.out[i] = 0.0f;
  for (int64_t first = 0; first < pieces.num_groups; first += kBlockGroups) {
    const Block block = BlockAt(pieces, first, pieces.num_groups, kBlockGroups);
    float v_scales[kBlockTokens];
    for (int64_t i = 0; i < block.num_groups; ++i) {
      ValueScales(args, pieces, first + i, block.groups[i].v_scales, v_scales + i * kGroupTokens);
    }
    const int64_t num_tokens = block.num_groups * kGroupTokens;
    for (int64_t head = 0; head < args.num_q; ++head) {
      float* weights = args.scratch + head * num_scores + first * kGroupTokens;
      for (int64_t i = 0; i < num_tokens; i += kLanes) {
        hn::StoreU(hn::Mul(hn::LoadU(kDF, weights + i), hn::LoadU(kDF, v_scales + i)), kDF, weights + i);
      }
      RoundRowTo(p, head, weights, num_tokens);
    }
    ForHeads(args.num_q, [&]<int64_t kHeads>(int64_t head) HW_INLINE_LAMBDA {
      AddBlock<kHeads>(block, padded_dim, p, head, args.out + head * padded_dim);
    });
  }
}

}  // namespace

void DecodeQ8(const DecodeArgs& args) {
  Pieces pieces;
  ListGroups(args, pieces);
  const int64_t num_q = args.num_q;
  const int64_t padded_dim = args.pages.padded_dim;
  const int64_t num_scores = pieces.num_groups * kGroupTokens;
  float* scales = args.scratch + num_q * num_scores;
  auto* starts = reinterpret_cast<int32_t*>(scales + 2 * num_q);
  auto* codes = reinterpret_cast<int8_t*>(starts + 2 * num_q);
  const Int8Rows q = {codes, padded_dim, scales, starts};
  const Int8Rows p = {codes + num_q * padded_dim, kBlockTokens, scales + num_q, starts + num_q};
  ScoreRun(args, pieces, 0, pieces.num_sink_groups, args.q_sink, q);
  ScoreRun(args, pieces, pieces.num_sink_groups, pieces.num_groups, args.q, q);
  for (int64_t head = 0; head < num_q; ++head) ProbabilitiesOf(args, pieces, head, args.scratch + head * num_scores);
  AddRuns(args, pieces, p);
}

}  // namespace headwise::cpu::HW_ISA
