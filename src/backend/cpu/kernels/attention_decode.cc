// Attention of one query position: memory-bound, so everything serves one pass over the pages in order, shared by the G
// query heads of the group. Floating-point pages; q8 and q4 have their own files.
#include "backend/cpu/kernels/attention_decode-inl.h"
#include "backend/cpu/kernels/isa_functions.h"

namespace headwise::cpu::HW_ISA {
namespace {

// scores[h][16 * group + lane] = q[h] . k for kHeads query heads and kGroups groups.
template <KvType kType, int64_t kHeads, int64_t kGroups>
HWY_INLINE void Scores(const Group* groups, int64_t padded_dim, const float* q, float* scores) {
  VF sum[kGroups][kHeads][kSub][2];
  HW_UNROLL
  for (int64_t b = 0; b < kGroups; ++b) {
    HW_UNROLL
    for (int64_t h = 0; h < kHeads; ++h) {
      HW_UNROLL
      for (int64_t s = 0; s < kSub; ++s) sum[b][h][s][0] = sum[b][h][s][1] = hn::Zero(kDF);
    }
  }
  constexpr int64_t kPairLines = 2 * kGroupTokens * kElementBytes<kType> / 64;
  for (int64_t pair = 0; pair < padded_dim / 2; ++pair) {
    HW_UNROLL
    for (int64_t b = 0; b < kGroups; ++b) {
      HW_UNROLL
      for (int64_t line = 0; line < kPairLines; ++line) {
        PrefetchToL2(groups[b + kGroupsAhead].k + 64 * (pair * kPairLines + line));
      }
      HW_UNROLL
      for (int64_t s = 0; s < kSub; ++s) {
        VF even, odd;
        LoadRowPair<kType>(groups[b].k, pair, kGroupTokens, s, even, odd);
        HW_UNROLL
        for (int64_t h = 0; h < kHeads; ++h) {
          const float* q_pair = q + h * padded_dim + 2 * pair;
          sum[b][h][s][0] = hn::MulAdd(even, hn::Set(kDF, q_pair[0]), sum[b][h][s][0]);
          sum[b][h][s][1] = hn::MulAdd(odd, hn::Set(kDF, q_pair[1]), sum[b][h][s][1]);
        }
      }
    }
  }
  HW_UNROLL
  for (int64_t b = 0; b < kGroups; ++b) {
    HW_UNROLL
    for (int64_t h = 0; h < kHeads; ++h) {
      HW_UNROLL
      for (int64_t s = 0; s < kSub; ++s) {
        hn::StoreU(hn::Add(sum[b][h][s][0], sum[b][h][s][1]), kDF,
                   scores + h * kBlockTokens + b * kGroupTokens + s * kLanes);
      }
    }
  }
}

// The scores of kHeads heads for a block, kGroups groups at a time and the rest one by one.
template <KvType kType, int64_t kHeads>
HWY_INLINE void ScoreBlock(const OnlineSoftmax& softmax, const Block& block, int64_t first_head) {
  // 2 * kSub * heads * groups accumulators, 8 vectors, are enough independent chains to hide the latency of a fused
  // multiply-add (4 cycles, 1-2 a cycle).
  constexpr int64_t kGroups = kMaxHeads / kHeads;
  const int64_t padded_dim = softmax.args().pages.padded_dim;
  const float* q = block.q + first_head * padded_dim;
  float* scores = softmax.Scores(first_head);
  int64_t i = 0;
  for (; i + kGroups <= block.num_groups; i += kGroups) {
    Scores<kType, kHeads, kGroups>(block.groups + i, padded_dim, q, scores + i * kGroupTokens);
  }
  for (; i < block.num_groups; ++i) {
    Scores<kType, kHeads, 1>(block.groups + i, padded_dim, q, scores + i * kGroupTokens);
  }
}

// out[h][vec .. vec + kVecs) += p[h] . V over the tokens [begin, end) of one group; begin and end are inside the group.
template <KvType kType, int64_t kHeads, int64_t kVecs>
HWY_INLINE void AddValues(const std::byte* v, const std::byte* ahead, int64_t padded_dim, int64_t vec, int64_t begin,
                          int64_t end, const float* p, float* out) {
  VF sum[kHeads][kVecs];
  HW_UNROLL
  for (int64_t h = 0; h < kHeads; ++h) {
    HW_UNROLL
    for (int64_t i = 0; i < kVecs; ++i) sum[h][i] = hn::LoadU(kDF, out + h * padded_dim + (vec + i) * kLanes);
  }
  const VF zero = hn::Zero(kDF);
  for (int64_t pair = begin / 2; 2 * pair < end; ++pair) {
    const bool has_even = 2 * pair >= begin;
    const bool has_odd = 2 * pair + 1 < end;
    HW_UNROLL
    for (int64_t i = 0; i < kVecs; ++i) {
      VF even, odd;
      LoadRowPair<kType>(v, pair, padded_dim, vec + i, even, odd);
      // A slot that was never written may hold anything, also NaN, and 0 * NaN is NaN.
      if (!has_even) even = zero;
      if (!has_odd) odd = zero;
      HW_UNROLL
      for (int64_t h = 0; h < kHeads; ++h) {
        sum[h][i] = hn::MulAdd(even, hn::Set(kDF, p[h * kBlockTokens + 2 * pair]), sum[h][i]);
        sum[h][i] = hn::MulAdd(odd, hn::Set(kDF, p[h * kBlockTokens + 2 * pair + 1]), sum[h][i]);
      }
    }
    const int64_t pair_lines = kVecs * kLanes * 2 * kElementBytes<kType> / 64;
    for (int64_t line = 0; line < (pair_lines > 0 ? pair_lines : 1); ++line) {
      PrefetchToL2(ahead + (2 * pair * padded_dim + 2 * vec * kLanes) * kElementBytes<kType> + 64 * line);
    }
  }
  HW_UNROLL
  for (int64_t h = 0; h < kHeads; ++h) {
    HW_UNROLL
    for (int64_t i = 0; i < kVecs; ++i) hn::StoreU(sum[h][i], kDF, out + h * padded_dim + (vec + i) * kLanes);
  }
}

template <KvType kType, int64_t kHeads>
HWY_INLINE void AddGroup(const DecodeArgs& args, const Group& group, const std::byte* ahead, int64_t begin, int64_t end,
                         const float* p, float* out) {
  const int64_t num_vecs = args.pages.padded_dim / kLanes;
  int64_t vec = 0;
  for (; vec + 4 <= num_vecs; vec += 4) {
    AddValues<kType, kHeads, 4>(group.v, ahead, args.pages.padded_dim, vec, begin, end, p, out);
  }
  for (; vec < num_vecs; ++vec) {
    AddValues<kType, kHeads, 1>(group.v, ahead, args.pages.padded_dim, vec, begin, end, p, out);
  }
}

template <KvType kType, int64_t kHeads>
HWY_INLINE void AddBlock(const OnlineSoftmax& softmax, const Block& block, int64_t first_head) {
  const float* p = softmax.Scores(first_head);
  float* out = softmax.Out(first_head);
  for (int64_t i = 0; i < block.num_groups; ++i) {
    AddGroup<kType, kHeads>(softmax.args(), block.groups[i], block.groups[i + kGroupsAhead].v, block.TokensBegin(i),
                            block.TokensEnd(i), p + i * kGroupTokens, out);
  }
}

template <KvType kType>
void DecodeAs(const DecodeArgs& args) {
  Pieces pieces;
  ListGroups(args, pieces);
  Scratch scratch(args);
  const OnlineSoftmax softmax(args, 0, scratch);
  for (int64_t first = 0; first < pieces.num_groups;) {
    const Block block = BlockAt(args, pieces, first);
    ForHeads(args.num_q,
             [&]<int64_t kHeads>(int64_t head) HW_INLINE_LAMBDA { ScoreBlock<kType, kHeads>(softmax, block, head); });
    softmax.FinishScores(block);
    for (int64_t head = 0; head < args.num_q; ++head) Exponentiate(softmax, head, kExp2);
    ForHeads(args.num_q,
             [&]<int64_t kHeads>(int64_t head) HW_INLINE_LAMBDA { AddBlock<kType, kHeads>(softmax, block, head); });
    first += block.num_groups;
  }
  softmax.Finish(args.pages.padded_dim);
}

}  // namespace

void Decode(const DecodeArgs& args) {
  const bool has_sink = args.sink_begin < args.sink_end;
  const KvType type = TypeAt(args.pages, has_sink ? args.sink_begin : args.recent_begin);
  if (type == KvType::kQ4) return DecodeQ4(args);
  if (type == KvType::kQ8) return DecodeQ8(args);
  HW_WITH_FLOAT_KV_TYPE(type, DecodeAs<kType>(args));
}

}  // namespace headwise::cpu::HW_ISA
