// Attention of one query position over q8 pages: both products are integer dot products, four elements a lane and step.
// The query is rounded to int8 with one scale per head. Scores have one token per lane, so a token's scale joins after
// the sum; in the second product the sum goes over tokens, so the value's scale joins its probability before that is
// rounded, with a scale for 64 tokens.
//
// A byte of a page is code + 128, hence  sum of code * x = sum of byte * x - 128 * sum of x:  where the sum of a score
// starts, and what joins an output at its end.
#include "backend/cpu/kernels/attention_decode-inl.h"
#include "backend/cpu/kernels/isa_functions.h"

namespace headwise::cpu::HW_ISA {
namespace {

constexpr int32_t kCentre = kCentersCodes ? 0 : -128;

// The rounded queries, and what the sums over bytes of keys start at.
struct Queries {
  Int8Rows rows;
  int32_t* starts;
};

// The queries x [G, n], n a multiple of 16.
HWY_INLINE void RoundQueries(const float* x, int64_t num_q, int64_t n, const Queries& q) {
  for (int64_t head = 0; head < num_q; ++head, x += n) {
    VF largest[1] = {hn::Zero(kDF)};
    for (int64_t i = 0; i < n; i += kLanes) largest[0] = hn::Max(largest[0], hn::Abs(hn::LoadU(kDF, x + i)));
    VF inverse[1];
    q.rows.SetScales(head, largest, inverse);
    VI sum = hn::Zero(DI());
    for (int64_t i = 0; i < n; i += 64) sum = hn::Add(sum, q.rows.Round(head, x, i, n, inverse[0]));
    q.starts[head] = kCentre * hn::GetLane(hn::SumOfLanes(DI(), sum));
  }
}

// scores[h][16 * group + lane] = q[h] . k for kHeads query heads and kGroups groups.
template <int64_t kHeads, int64_t kGroups>
HWY_INLINE void Scores(const Group* groups, int64_t padded_dim, const Queries& q, int64_t first_head, float* scores,
                       int64_t score_stride) {
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
    for (int64_t h = 0; h < kHeads; ++h) x[h] = QuadInLanes(q.rows.Row(first_head + h), quad);
    HW_UNROLL
    for (int64_t b = 0; b < kGroups; ++b) {
      PrefetchToL2(groups[b + kGroupsAhead].k + 64 * quad);
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
        const VF scale = hn::Mul(k_scale, hn::Set(kDF, q.rows.scales[first_head + h]));
        hn::StoreU(hn::Mul(hn::ConvertTo(kDF, sum[b][h][s]), scale), kDF,
                   scores + h * score_stride + b * kGroupTokens + s * kLanes);
      }
    }
  }
}

// The scores of all heads for the groups [begin, end), which are read with the queries `x` [G, Dp].
void ScoreRun(const DecodeArgs& args, const Pieces& pieces, int64_t begin, int64_t end, const float* x,
              const Queries& q) {
  if (begin >= end) return;
  const int64_t padded_dim = args.pages.padded_dim;
  const int64_t stride = ScoreStride(pieces);
  RoundQueries(x, args.num_q, padded_dim, q);
  for (int64_t first = begin; first < end; first += kBlockGroups) {
    const Block block = BlockAt(pieces, first, end);
    for (int64_t i = 0; i < block.num_groups; ++i) PrefetchToL2(block.groups[i + kGroupsAhead].k_scales);
    float* scores = args.scratch + first * kGroupTokens;
    ForHeads(args.num_q, [&]<int64_t kHeads>(int64_t head) HW_INLINE_LAMBDA {
      ForGroups(block, [&]<int64_t kGroups>(int64_t i) HW_INLINE_LAMBDA {
        Scores<kHeads, kGroups>(block.groups + i, padded_dim, q, head, scores + head * stride + i * kGroupTokens,
                                stride);
      });
    });
  }
}

// out[h][vec .. vec + kVecs) += p[h] . bytes of v over the block's tokens.
template <int64_t kHeads, int64_t kVecs>
HWY_INLINE void AddValues(const Block& block, int64_t padded_dim, int64_t vec, const Int8Rows& p, int64_t first_head,
                          float* out) {
  VI sum[kHeads][kVecs];
  HW_UNROLL
  for (int64_t h = 0; h < kHeads; ++h) {
    HW_UNROLL
    for (int64_t i = 0; i < kVecs; ++i) sum[h][i] = hn::Zero(DI());
  }
  constexpr int64_t kBytes = 4 * kVecs * kLanes;
  for (int64_t quad = 0; quad < block.num_groups * kGroupTokens / 4; ++quad) {
    const int64_t group_idx = 4 * quad / kGroupTokens;
    const int64_t offset = 4 * (quad % (kGroupTokens / 4) * padded_dim + vec * kLanes);
    HW_UNROLL
    for (int64_t line = 0; line < (kBytes > 64 ? kBytes / 64 : 1); ++line) {
      PrefetchToL2(block.groups[group_idx + kGroupsAhead].v + offset + 64 * line);
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
  AddScaled<kHeads, kVecs>(sum, p, first_head, padded_dim, out + vec * kLanes);
}

// Probabilities times the scales of values, of kHeads heads and the block that begins with group number `first`, into
// rows of p; -128 times their sum joins `offsets`.
template <int64_t kHeads>
HWY_INLINE void RoundWeights(const DecodeArgs& args, const Pieces& pieces, int64_t first, int64_t first_head,
                             const float* v_scales, const Int8Rows& p, float* offsets, float* sums) {
  VF weights[kHeads][kBlockVecs];
  VF largest[kHeads], inverses[kHeads];
  HW_UNROLL
  for (int64_t h = 0; h < kHeads; ++h) {
    BlockProbabilities(args, pieces, first, first_head + h, sums, weights[h]);
    largest[h] = hn::Zero(kDF);
    HW_UNROLL
    for (int64_t i = 0; i < kBlockVecs; ++i) {
      weights[h][i] = hn::Mul(weights[h][i], hn::Load(kDF, v_scales + i * kLanes));
      largest[h] = hn::Max(largest[h], weights[h][i]);
    }
  }
  p.SetScales(first_head, largest, inverses);
  HW_UNROLL
  for (int64_t h = 0; h < kHeads; ++h) {
    const int64_t head = first_head + h;
    HW_UNROLL
    for (int64_t i = 0; i < kBlockVecs; ++i) weights[h][i] = hn::Mul(weights[h][i], inverses[h]);
    const VI sum = RoundToBytes(weights[h], p.Row(head));
    if constexpr (kCentre != 0) {
      const VF scale = hn::Set(kDF, kCentre * p.scales[head]);
      AddTo(offsets + head * kLanes, hn::Mul(hn::ConvertTo(kDF, sum), scale));
    }
  }
}

// A scale that is no number makes its token's value such, which rounding would hide.
HWY_INLINE void AddNaN(const float* v_scales, float* sums, int64_t num_q) {
  VF poison = hn::Zero(kDF);
  for (int64_t i = 0; i < kBlockTokens; i += kLanes) {
    poison = hn::MulAdd(hn::Load(kDF, v_scales + i), hn::Zero(kDF), poison);
  }
  const float all = hn::GetLane(hn::SumOfLanes(kDF, poison));
  for (int64_t head = 0; head < num_q && all != all; ++head) AddTo(sums + head * kLanes, hn::Set(kDF, all));
}

// Outputs of all heads but for `offsets` [G][kLanes], whose lanes remain to be summed; and sums of probabilities.
void AddRuns(const DecodeArgs& args, const Pieces& pieces, const Int8Rows& p, float* offsets, float* sums) {
  const int64_t padded_dim = args.pages.padded_dim;
  const int64_t num_vecs = padded_dim / kLanes;
  for (int64_t first = 0; first < pieces.num_groups; first += kBlockGroups) {
    const Block block = BlockAt(pieces, first, pieces.num_groups);
    alignas(64) float v_scales[kBlockTokens];
    for (int64_t i = 0; i < block.num_groups; ++i) {
      PrefetchToL2(block.groups[i + kGroupsAhead].v_scales);
      LoadScales(block.groups[i].v_scales, v_scales + i * kGroupTokens);
    }
    HideOutside(args, pieces, first, v_scales);
    AddNaN(v_scales, sums, args.num_q);
    ForHeads(args.num_q, [&]<int64_t kHeads>(int64_t head) HW_INLINE_LAMBDA {
      RoundWeights<kHeads>(args, pieces, first, head, v_scales, p, offsets, sums);
    });
    ForHeads(args.num_q, [&]<int64_t kHeads>(int64_t head) HW_INLINE_LAMBDA {
      float* out = args.out + head * padded_dim;
      int64_t vec = 0;
      for (; vec + 4 <= num_vecs; vec += 4) AddValues<kHeads, 4>(block, padded_dim, vec, p, head, out);
      for (; vec < num_vecs; ++vec) AddValues<kHeads, 1>(block, padded_dim, vec, p, head, out);
    });
  }
}

}  // namespace

void DecodeQ8(const DecodeArgs& args) {
  Pieces pieces;
  ListGroups(args, pieces);
  const int64_t num_q = args.num_q;
  const int64_t padded_dim = args.pages.padded_dim;
  Scratch scratch(args, pieces);
  const Queries q = {scratch.TakeRows(num_q, padded_dim), reinterpret_cast<int32_t*>(scratch.Take(num_q))};
  const Int8Rows p = scratch.TakeRows(num_q, kBlockTokens);
  float* offsets = scratch.TakeZeros(num_q * kLanes);
  float* sums = scratch.TakeZeros(num_q * kLanes);
  ScoreRun(args, pieces, 0, pieces.num_sink_groups, args.q_sink, q);
  ScoreRun(args, pieces, pieces.num_sink_groups, pieces.num_groups, args.q, q);
  FinishBlockScores(args, pieces);
  for (int64_t i = 0; i < num_q * padded_dim; ++i) args.out[i] = 0.0f;
  AddRuns(args, pieces, p, offsets, sums);
  FinishOutputs(args, offsets, padded_dim, sums);
}

}  // namespace headwise::cpu::HW_ISA
