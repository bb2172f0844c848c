// What decoding has in common: over all formats the groups of a piece, and from scores to probabilities; over q8 and q4
// rows of integers and the order of blocks. Included by the decode kernels only, once per instruction set.
#ifndef HEADWISE_BACKEND_CPU_KERNELS_ATTENTION_DECODE_INL_H_
#define HEADWISE_BACKEND_CPU_KERNELS_ATTENTION_DECODE_INL_H_

#include "backend/cpu/kernels/kv_page-inl.h"

namespace headwise::cpu::HW_ISA {
namespace {

// Query heads whose sums are in registers together.
constexpr int64_t kMaxHeads = kSub == 1 ? 4 : 2;

struct Pieces {
  Group groups[kDecodePieceTokens / kGroupTokens + 4];
  int64_t num_groups = 0;
  int64_t num_sink_groups = 0;
};

HWY_INLINE void AddGroups(const KvPages& pages, int64_t begin, int64_t end, Pieces& pieces) {
  if (begin >= end) return;
  for (int64_t pos = begin / kGroupTokens * kGroupTokens; pos < end; pos += kGroupTokens) {
    pieces.groups[pieces.num_groups++] = GroupAt(pages, pos);
  }
}

// Sinks, then the recent run.
HWY_INLINE void ListGroups(const DecodeArgs& args, Pieces& pieces) {
  AddGroups(args.pages, args.sink_begin, args.sink_end, pieces);
  pieces.num_sink_groups = pieces.num_groups;
  AddGroups(args.pages, args.recent_begin, args.recent_end, pieces);
}

// Into the second-level cache: the first has places for so few lines under way that they, not the memory, set the
// speed. On Zen 4, f16, 16,384 tokens deep, a step of the bundled model takes 5.4 ms in place of 7.5.
HWY_INLINE void PrefetchLines(const std::byte* data, int64_t idx) {
  __builtin_prefetch(reinterpret_cast<const char*>(data) + 64 * idx, /*rw=*/0, /*locality=*/2);
}

// Scores outside the run become kLowest: a group may hold tokens that the rule hides, or slots never written.
HWY_INLINE void MaskOutside(float* scores, int64_t pos, int64_t begin, int64_t end) {
  for (int64_t lane = 0; lane < kGroupTokens; ++lane) {
    if (pos + lane < begin || pos + lane >= end) scores[lane] = kLowest;
  }
}

HWY_INLINE void AddAlibi(float* scores, const Group* groups, int64_t num_groups, float slope, int64_t query_pos) {
  for (int64_t i = 0; i < num_groups; ++i) {
    for (int64_t lane = 0; lane < kGroupTokens; ++lane) {
      scores[i * kGroupTokens + lane] += slope * static_cast<float>(groups[i].pos + lane - query_pos);
    }
  }
}

// scores -> probabilities, for one head; returns largest score and sum.
HWY_INLINE void Softmax(float* scores, int64_t num, float& max_score, float& sum_out) {
  VF max = hn::Set(kDF, kLowest);
  for (int64_t i = 0; i < num; i += kLanes) max = hn::Max(max, hn::LoadU(kDF, scores + i));
  max_score = hn::GetLane(hn::MaxOfLanes(kDF, max));
  max = hn::Set(kDF, max_score);
  VF sum = hn::Zero(kDF);
  for (int64_t i = 0; i < num; i += kLanes) {
    const VF p = Exp2(hn::Sub(hn::LoadU(kDF, scores + i), max));
    hn::StoreU(p, kDF, scores + i);
    sum = hn::Add(sum, p);
  }
  sum_out = hn::GetLane(hn::SumOfLanes(kDF, sum));
}

// The scores of one head over all groups -> probabilities, and what the piece reports of them.
HWY_INLINE void ProbabilitiesOf(const DecodeArgs& args, const Pieces& pieces, int64_t head, float* scores) {
  const int64_t num_sink_groups = pieces.num_sink_groups;
  if (args.slopes != nullptr) {
    AddAlibi(scores, pieces.groups, num_sink_groups, args.slopes[head], args.sink_query_pos);
    AddAlibi(scores + num_sink_groups * kGroupTokens, pieces.groups + num_sink_groups,
             pieces.num_groups - num_sink_groups, args.slopes[head], args.query_pos);
  }
  // Only the first and the last group of either run can hold tokens outside it.
  const int64_t edges[4] = {0, num_sink_groups - 1, num_sink_groups, pieces.num_groups - 1};
  for (const int64_t i : edges) {
    if (i < 0 || i >= pieces.num_groups) continue;
    const bool is_sink = i < num_sink_groups;
    MaskOutside(scores + i * kGroupTokens, pieces.groups[i].pos, is_sink ? args.sink_begin : args.recent_begin,
                is_sink ? args.sink_end : args.recent_end);
  }
  Softmax(scores, pieces.num_groups * kGroupTokens, args.max[head], args.sum[head]);
}

// ---- integer dot products: q8 and q4 --------------------------------------------------------------------------------

// Groups that all query heads pass over, one after the other, before the next are read from memory: 16 KiB of a head of
// 256 dimensions in q8, which the first-level cache keeps. They share a scale of probabilities.
constexpr int64_t kBlockGroups = 4;
constexpr int64_t kBlockTokens = kBlockGroups * kGroupTokens;

// Groups together with so many heads: 8 chains of dot products hide their latency. Where a group takes several vectors
// these are chains enough.
template <int64_t kHeads>
constexpr int64_t kScoreGroups = kSub > 1      ? 1
                                 : kHeads == 4 ? 2
                                               : 4;

// One row of int8 numbers per query head: x = scale * code.
struct Int8Rows {
  int8_t* codes;
  int64_t stride;
  float* scales;
  int32_t* starts;  // of sums over bytes of q8

  HWY_INLINE int8_t* Row(int64_t head) const { return codes + head * stride; }
};

// x[n], n a multiple of 16, into row `head`; `largest` holds its largest magnitude in one of the lanes. Returns the sum
// of codes, spread over lanes.
HWY_INLINE VI RoundRowBy(const Int8Rows& rows, int64_t head, const float* x, int64_t n, VF largest) {
  const float magnitude = hn::GetLane(hn::MaxOfLanes(kDF, largest));
  // So small that its inverse might not be finite: nothing.
  const VF inverse = hn::Set(kDF, magnitude > 0x1p-100f ? 127.0f / magnitude : 0.0f);
  const hn::Rebind<int8_t, DF> d8;
  VI sum = hn::Zero(DI());
  for (int64_t i = 0; i < n; i += kLanes) {
    const VI code = hn::NearestInt(hn::Mul(hn::LoadU(kDF, x + i), inverse));
    sum = hn::Add(sum, code);
    hn::StoreU(hn::DemoteTo(d8, code), d8, rows.Row(head) + i);
  }
  rows.scales[head] = magnitude / 127.0f;
  return sum;
}

// body.operator()<kHeads>(first_head) until every head had its turn.
template <typename Body>
HWY_INLINE void ForHeads(int64_t num_heads, const Body& body) {
  int64_t head = 0;
  if constexpr (kMaxHeads == 4) {
    for (; head + 4 <= num_heads; head += 4) body.template operator()<4>(head);
  }
  for (; head + 2 <= num_heads; head += 2) body.template operator()<2>(head);
  if (head < num_heads) body.template operator()<1>(head);
}

// A block of groups, and as many further on that memory is asked for meanwhile; at the end the last ones.
struct Block {
  const Group* groups;
  const Group* ahead;
  int64_t num_groups;
};

HWY_INLINE Block BlockAt(const Pieces& pieces, int64_t first, int64_t end, int64_t groups_ahead) {
  const int64_t num_groups = end - first < kBlockGroups ? end - first : kBlockGroups;
  const int64_t last = pieces.num_groups - num_groups;
  const int64_t next = first + groups_ahead < last ? first + groups_ahead : last;
  return {pieces.groups + first, pieces.groups + next, num_groups};
}

// body.operator()<kGroups>(first_group) until every group of the block had its turn, for kHeads heads.
template <int64_t kHeads, typename Body>
HWY_INLINE void ForGroups(const Block& block, const Body& body) {
  constexpr int64_t kGroups = kScoreGroups<kHeads>;
  int64_t i = 0;
  for (; i + kGroups <= block.num_groups; i += kGroups) body.template operator()<kGroups>(i);
  for (; i < block.num_groups; ++i) body.template operator()<1>(i);
}

// Scales or lows of the values of group number `idx`: VisibleScales for the run that it is in.
HWY_INLINE void ValueScales(const DecodeArgs& args, const Pieces& pieces, int64_t idx, const std::byte* halves,
                            float* scales) {
  const bool is_sink = idx < pieces.num_sink_groups;
  VisibleScales(halves, pieces.groups[idx].pos, is_sink ? args.sink_begin : args.recent_begin,
                is_sink ? args.sink_end : args.recent_end, scales);
}

}  // namespace
}  // namespace headwise::cpu::HW_ISA

#endif  // HEADWISE_BACKEND_CPU_KERNELS_ATTENTION_DECODE_INL_H_
