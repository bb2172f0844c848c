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

  // x [G, n], n a multiple of 16.
  HWY_INLINE void Round(const float* x, int64_t num_q, int64_t n) const {
    for (int64_t head = 0; head < num_q; ++head, x += n) {
      VF largest[1] = {hn::Zero(kDF)};
      for (int64_t i = 0; i < n; i += kLanes) largest[0] = hn::Max(largest[0], hn::Abs(hn::LoadU(kDF, x + i)));
      rows.SetScales(head, largest);
      const VF inverse = hn::Set(kDF, rows.inverses[head]);
      VI sum = hn::Zero(DI());
      for (int64_t d = 0; d < n; d += 64) {
        VF scaled[kByteVecs];
        HW_UNROLL
        for (int64_t i = 0; i < kByteVecs; ++i) {
          const int64_t at = d + i * kLanes;
          scaled[i] = at < n ? hn::Mul(hn::LoadU(kDF, x + at), inverse) : hn::Zero(kDF);
        }
        sum = hn::Add(sum, RoundToBytes(scaled, rows.Row(head) + d));
      }
      starts[head] = kCentre * hn::GetLane(hn::SumOfLanes(DI(), sum));
    }
  }
};

// scores[h][lane] = q[h] . k for kHeads query heads and one group. One after the other: groups side by side would share
// what is read of the queries, but a page would not be read in the order of its bytes, which is worth a sixth.
template <int64_t kHeads>
HWY_INLINE void Scores(const Group* group, int64_t padded_dim, const Queries& q, int64_t first_head, float* scores) {
  VI sum[kHeads][kSub];
  HW_UNROLL
  for (int64_t h = 0; h < kHeads; ++h) {
    HW_UNROLL
    for (int64_t s = 0; s < kSub; ++s) sum[h][s] = hn::Set(DI(), q.starts[first_head + h]);
  }
  for (int64_t quad = 0; quad < padded_dim / 4; ++quad) {
    PrefetchToL2(group[kGroupsAhead].k + 64 * quad);
    VI x[kHeads];
    HW_UNROLL
    for (int64_t h = 0; h < kHeads; ++h) x[h] = QuadInLanes(q.rows.Row(first_head + h), quad);
    HW_UNROLL
    for (int64_t s = 0; s < kSub; ++s) {
      const VB codes = hn::LoadU(D8(), Bytes(group->k) + 4 * (quad * kGroupTokens + s * kLanes));
      HW_UNROLL
      for (int64_t h = 0; h < kHeads; ++h) sum[h][s] = CodeDot<8>(sum[h][s], codes, x[h]);
    }
  }
  HW_UNROLL
  for (int64_t s = 0; s < kSub; ++s) {
    const VF k_scale = HalvesAsF32(Bytes(group->k_scales) + 2 * s * kLanes);
    HW_UNROLL
    for (int64_t h = 0; h < kHeads; ++h) {
      const VF scale = hn::Mul(k_scale, hn::Set(kDF, q.rows.scales[first_head + h]));
      hn::StoreU(hn::Mul(hn::ConvertTo(kDF, sum[h][s]), scale), kDF, scores + h * kBlockTokens + s * kLanes);
    }
  }
}

// The scores of all heads for a block.
HWY_INLINE void ScoreBlock(const OnlineSoftmax& softmax, const Block& block, const Queries& q) {
  for (int64_t i = 0; i < block.num_groups; ++i) PrefetchToL2(block.groups[i + kGroupsAhead].k_scales);
  ForHeads(softmax.args().num_q, [&]<int64_t kHeads>(int64_t head) HW_INLINE_LAMBDA {
    for (int64_t i = 0; i < block.num_groups; ++i) {
      Scores<kHeads>(block.groups + i, softmax.args().pages.padded_dim, q, head,
                     softmax.Scores(head) + i * kGroupTokens);
    }
  });
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
  AddScaled<kHeads, kVecs>(sum, p.scales + first_head, padded_dim, out + vec * kLanes);
}

// Probabilities times the scales of values, of kHeads heads and a block, into rows of p; -128 times their sum joins
// what is added in the end.
template <int64_t kHeads>
HWY_INLINE void RoundWeights(const OnlineSoftmax& softmax, int64_t first_head, const float* v_scales,
                             const Int8Rows& p) {
  VF weights[kHeads][kBlockVecs];
  VF largest[kHeads];
  HW_UNROLL
  for (int64_t h = 0; h < kHeads; ++h) {
    BlockProbabilities(softmax, first_head + h, kCoarseExp2, weights[h]);
    largest[h] = hn::Zero(kDF);
    HW_UNROLL
    for (int64_t i = 0; i < kBlockVecs; ++i) {
      weights[h][i] = hn::Mul(weights[h][i], hn::Load(kDF, v_scales + i * kLanes));
      largest[h] = hn::Max(largest[h], weights[h][i]);
    }
  }
  p.SetScales(first_head, largest);
  HW_UNROLL
  for (int64_t h = 0; h < kHeads; ++h) {
    const int64_t head = first_head + h;
    HW_UNROLL
    for (int64_t i = 0; i < kBlockVecs; ++i) {
      weights[h][i] = hn::Mul(weights[h][i], hn::Set(kDF, p.inverses[head]));
    }
    const VI sum = RoundToBytes(weights[h], p.Row(head));
    if constexpr (kCentre != 0) {
      const VF scale = hn::Set(kDF, kCentre * p.scales[head]);
      AddTo(softmax.Offset(0, head), hn::Mul(hn::ConvertTo(kDF, sum), scale));
    }
  }
}

// The scales of values of a block, [kBlockTokens]; 0 for tokens that are not read, whose slots may hold anything.
HWY_INLINE void LoadValueScales(const Block& block, float* v_scales) {
  for (int64_t i = 0; i < kBlockGroups; ++i) {
    float* scales = v_scales + i * kGroupTokens;
    if (i >= block.num_groups) {
      for (int64_t lane = 0; lane < kGroupTokens; ++lane) scales[lane] = 0.0f;
      continue;
    }
    PrefetchToL2(block.groups[i + kGroupsAhead].v_scales);
    if (block.is_whole)
      LoadScales(block.groups[i].v_scales, scales);
    else
      VisibleScales(block.groups[i].v_scales, block.groups[i].pos, block.begin, block.end, scales);
  }
}

// A scale that is no number makes its token's value such, which rounding would hide.
HWY_INLINE void AddNaN(const float* v_scales, const OnlineSoftmax& softmax) {
  VF poison = hn::Zero(kDF);
  for (int64_t i = 0; i < kBlockTokens; i += kLanes) {
    poison = hn::MulAdd(hn::Load(kDF, v_scales + i), hn::Zero(kDF), poison);
  }
  if (hn::AllTrue(kDF, hn::Eq(poison, poison))) return;
  for (int64_t head = 0; head < softmax.args().num_q; ++head) {
    AddTo(softmax.Sum(head), hn::Set(kDF, __builtin_nanf("")));
  }
}

// Probabilities of all heads from the scores of a block, and what its values add to the outputs.
HWY_INLINE void AddBlock(const OnlineSoftmax& softmax, const Block& block, const Int8Rows& p) {
  const int64_t num_q = softmax.args().num_q;
  const int64_t padded_dim = softmax.args().pages.padded_dim;
  const int64_t num_vecs = padded_dim / kLanes;
  alignas(64) float v_scales[kBlockTokens];
  LoadValueScales(block, v_scales);
  AddNaN(v_scales, softmax);
  ForHeads(num_q,
           [&]<int64_t kHeads>(int64_t head) HW_INLINE_LAMBDA { RoundWeights<kHeads>(softmax, head, v_scales, p); });
  ForHeads(num_q, [&]<int64_t kHeads>(int64_t head) HW_INLINE_LAMBDA {
    float* out = softmax.Out(head);
    int64_t vec = 0;
    for (; vec + 4 <= num_vecs; vec += 4) AddValues<kHeads, 4>(block, padded_dim, vec, p, head, out);
    for (; vec < num_vecs; ++vec) AddValues<kHeads, 1>(block, padded_dim, vec, p, head, out);
  });
}

}  // namespace

void DecodeQ8(const DecodeArgs& args) {
  Pieces pieces;
  ListGroups(args, pieces);
  const int64_t num_q = args.num_q;
  const int64_t padded_dim = args.pages.padded_dim;
  Scratch scratch(args);
  const OnlineSoftmax softmax(args, 1, scratch);
  const Queries q = {Int8Rows(num_q, padded_dim, scratch), reinterpret_cast<int32_t*>(scratch.Take(num_q))};
  const Int8Rows p(num_q, kBlockTokens, scratch);
  const float* rounded = nullptr;
  for (int64_t first = 0; first < pieces.num_groups;) {
    const Block block = BlockAt(args, pieces, first);
    if (block.q != rounded) q.Round(block.q, num_q, padded_dim);
    rounded = block.q;
    ScoreBlock(softmax, block, q);
    softmax.FinishScores(block);
    AddBlock(softmax, block, p);
    first += block.num_groups;
  }
  softmax.Finish(padded_dim);
}

}  // namespace headwise::cpu::HW_ISA
