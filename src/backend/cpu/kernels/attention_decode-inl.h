// What decoding has in common: over all formats the groups of a piece, and from scores to probabilities; over q8 and q4
// rows of integers and the order of blocks. Included by the decode kernels only, once per instruction set.
#ifndef HEADWISE_BACKEND_CPU_KERNELS_ATTENTION_DECODE_INL_H_
#define HEADWISE_BACKEND_CPU_KERNELS_ATTENTION_DECODE_INL_H_

#include "backend/cpu/kernels/kv_page-inl.h"

namespace headwise::cpu::HW_ISA {
namespace {

// Query heads whose sums are in registers together.
constexpr int64_t kMaxHeads = kSub == 1 ? 4 : 2;

// How far ahead of a pass to ask for cache lines, in groups: of a head of 64 dimensions 4 KiB in q4 to 32 KiB in f32.
// Half of it is too little for q8, four times as much is no better for any. Pages of a head need not be neighbours, so
// the hardware's own prefetcher stops at each page's end.
constexpr int64_t kGroupsAhead = 8;

struct Pieces {
  // Sinks, then the recent run. Behind them, only to be asked for, what a pass is followed by: keys by the piece's
  // values, values by the keys of what this thread reads next.
  Group groups[kDecodePieceTokens / kGroupTokens + 4 + kGroupsAhead];
  int64_t num_groups = 0;
  int64_t num_sink_groups = 0;
  // Of the recent run those that hold no token outside it.
  int64_t whole_begin = 0, whole_end = 0;
};

// At most `most` groups, those of the tokens [begin, end), into groups[num_groups] and on.
HWY_INLINE void AddGroups(const KvPages& pages, int64_t begin, int64_t end, int64_t most, Group* groups,
                          int64_t& num_groups) {
  if (begin >= end) return;
  int64_t pos = begin / kGroupTokens * kGroupTokens;
  while (pos < end && num_groups < most) {
    const int64_t page_end = (pos / pages.page_tokens + 1) * pages.page_tokens;
    Group group = GroupAt(pages, pos);
    const int64_t group_bytes = GroupBytes(group.type, pages.padded_dim);
    for (; pos < page_end && pos < end && num_groups < most; pos += kGroupTokens) {
      groups[num_groups++] = group;
      StepGroup(group_bytes, group);
    }
  }
}

HWY_INLINE void ListGroups(const DecodeArgs& args, Pieces& pieces) {
  constexpr int64_t kAll = kDecodePieceTokens / kGroupTokens + 4;
  AddGroups(args.pages, args.sink_begin, args.sink_end, kAll, pieces.groups, pieces.num_groups);
  pieces.num_sink_groups = pieces.num_groups;
  AddGroups(args.pages, args.recent_begin, args.recent_end, kAll, pieces.groups, pieces.num_groups);
  pieces.whole_begin = pieces.num_sink_groups + (args.recent_begin % kGroupTokens != 0);
  pieces.whole_end = pieces.num_groups - (args.recent_end % kGroupTokens != 0);
  Group next[kGroupsAhead];
  int64_t num_next = 0;
  if (const DecodeArgs* n = args.next) {
    AddGroups(n->pages, n->sink_begin, n->sink_end, kGroupsAhead, next, num_next);
    AddGroups(n->pages, n->recent_begin, n->recent_end, kGroupsAhead, next, num_next);
  }
  for (int64_t i = 0; i < kGroupsAhead; ++i) {
    const Group& values = pieces.groups[i < pieces.num_groups ? i : 0];
    // Where nothing follows, what the cache holds already.
    const Group& keys = i < num_next ? next[i] : values;
    Group& ahead = pieces.groups[pieces.num_groups + i];
    ahead.k = values.v;
    ahead.k_scales = values.v_scales;
    ahead.v = keys.k;
    ahead.v_scales = keys.k_scales != nullptr ? keys.k_scales : keys.k;
  }
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

// What the scores of one head still lack: position biases, and kLowest where the rule hides a key. Returns the largest.
HWY_INLINE float FinishScores(const DecodeArgs& args, const Pieces& pieces, int64_t head, float* scores) {
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
  VF max = hn::Set(kDF, kLowest);
  for (int64_t i = 0; i < pieces.num_groups * kGroupTokens; i += kLanes) {
    max = hn::Max(max, hn::LoadU(kDF, scores + i));
  }
  return hn::GetLane(hn::MaxOfLanes(kDF, max));
}

// ---- integer dot products: q8 and q4 --------------------------------------------------------------------------------

// Groups that all query heads pass over, one after the other, before the next are read from memory: 16 KiB of a head of
// 256 dimensions in q8, which the first-level cache keeps. They share a scale of probabilities.
constexpr int64_t kBlockGroups = 4;
constexpr int64_t kBlockTokens = kBlockGroups * kGroupTokens;
constexpr int64_t kBlockVecs = kBlockTokens / kLanes;
static_assert(kBlockVecs == kByteVecs);

// Floats from the scores of a head to those of the next: whole blocks.
HWY_INLINE int64_t ScoreStride(const Pieces& pieces) {
  return (pieces.num_groups + kBlockGroups - 1) / kBlockGroups * kBlockTokens;
}

// One row of int8 numbers per query head: x = scale * code.
struct Int8Rows {
  int8_t* codes;
  int64_t stride;  // a multiple of 64
  float* scales;

  HWY_INLINE int8_t* Row(int64_t head) const { return codes + head * stride; }

  // The scales of kNum rows, whose largest magnitudes lie in one of the lanes of `largest` each; and their inverses.
  template <int64_t kNum>
  HWY_INLINE void SetScales(int64_t first, const VF (&largest)[kNum], VF (&inverses)[kNum]) const {
    float magnitudes[kNum];
    MaxOfEach(largest, magnitudes);
    HW_UNROLL
    for (int64_t i = 0; i < kNum; ++i) {
      scales[first + i] = magnitudes[i] * (1.0f / 127.0f);
      // So small that its inverse might not be finite: nothing.
      inverses[i] = hn::Set(kDF, magnitudes[i] > 0x1p-100f ? 127.0f / magnitudes[i] : 0.0f);
    }
  }

  // Elements [idx, idx + 64) of a row from x, of which [idx, n) exist. Returns the sum of their codes, spread over
  // lanes.
  HWY_INLINE VI Round(int64_t head, const float* x, int64_t idx, int64_t n, VF inverse) const {
    VF scaled[kByteVecs];
    HW_UNROLL
    for (int64_t i = 0; i < kByteVecs; ++i) {
      const int64_t at = idx + i * kLanes;
      scaled[i] = at < n ? hn::Mul(hn::LoadU(kDF, x + at), inverse) : hn::Zero(kDF);
    }
    return RoundToBytes(scaled, Row(head) + idx);
  }
};

// What a decode kernel needs behind the scores of the piece.
class Scratch {
 public:
  HWY_INLINE Scratch(const DecodeArgs& args, const Pieces& pieces)
      : next_(args.scratch + args.num_q * ScoreStride(pieces)) {}

  HWY_INLINE float* Take(int64_t floats) {
    float* taken = next_;
    next_ += floats;
    return taken;
  }
  HWY_INLINE float* TakeZeros(int64_t floats) {
    float* taken = Take(floats);
    for (int64_t i = 0; i < floats; ++i) taken[i] = 0.0f;
    return taken;
  }
  HWY_INLINE Int8Rows TakeRows(int64_t num_rows, int64_t row_bytes) {
    const int64_t stride = (row_bytes + 63) / 64 * 64;
    auto* codes = reinterpret_cast<int8_t*>(Take(num_rows * stride / 4));
    return {codes, stride, Take(num_rows)};
  }

 private:
  float* next_;
};

// Scores of all heads as blocks are read: they end with whole blocks, in which kLowest fills what is not a key.
HWY_INLINE void FinishBlockScores(const DecodeArgs& args, const Pieces& pieces) {
  const int64_t stride = ScoreStride(pieces);
  for (int64_t head = 0; head < args.num_q; ++head) {
    float* scores = args.scratch + head * stride;
    for (int64_t i = pieces.num_groups * kGroupTokens; i < stride; ++i) scores[i] = kLowest;
    args.max[head] = FinishScores(args, pieces, head, scores);
  }
}

HWY_INLINE void AddTo(float* lanes, VF x) {
  hn::StoreU(hn::Add(hn::LoadU(kDF, lanes), x), kDF, lanes);
}

// Probabilities 2^(score - max) of one head, for the tokens of the block that begins with group number `first`; their
// sum joins `sums` [G][kLanes].
HWY_INLINE void BlockProbabilities(const DecodeArgs& args, const Pieces& pieces, int64_t first, int64_t head,
                                   float* sums, VF* probabilities) {
  const float* scores = args.scratch + head * ScoreStride(pieces) + first * kGroupTokens;
  const VF max = hn::Set(kDF, args.max[head]);
  VF sum = hn::Zero(kDF);
  HW_UNROLL
  for (int64_t i = 0; i < kBlockVecs; ++i) {
    probabilities[i] = CoarseExp2(hn::Sub(hn::LoadU(kDF, scores + i * kLanes), max));
    sum = hn::Add(sum, probabilities[i]);
  }
  AddTo(sums + head * kLanes, sum);
}

// out[h][0 .. kVecs) += sums[h] of integers times codes of p[h], at the scale of these.
template <int64_t kHeads, int64_t kVecs>
HWY_INLINE void AddScaled(const VI (&sums)[kHeads][kVecs], const Int8Rows& p, int64_t first_head, int64_t padded_dim,
                          float* out) {
  HW_UNROLL
  for (int64_t h = 0; h < kHeads; ++h) {
    const VF scale = hn::Set(kDF, p.scales[first_head + h]);
    float* row = out + h * padded_dim;
    HW_UNROLL
    for (int64_t i = 0; i < kVecs; ++i) {
      const VF old = hn::LoadU(kDF, row + i * kLanes);
      hn::StoreU(hn::MulAdd(hn::ConvertTo(kDF, sums[h][i]), scale, old), kDF, row + i * kLanes);
    }
  }
}

// What is still spread over lanes: out[h][d] += offsets[d / run_dims][h], and the sums of probabilities.
HWY_INLINE void FinishOutputs(const DecodeArgs& args, const float* offsets, int64_t run_dims, const float* sums) {
  const int64_t padded_dim = args.pages.padded_dim;
  const auto sum_of = [](const float* lanes)
                          HW_INLINE_LAMBDA { return hn::GetLane(hn::SumOfLanes(kDF, hn::LoadU(kDF, lanes))); };
  for (int64_t head = 0; head < args.num_q; ++head) {
    args.sum[head] = sum_of(sums + head * kLanes);
    for (int64_t d = 0; d < padded_dim; d += run_dims) {
      const VF offset = hn::Set(kDF, sum_of(offsets + (d / run_dims * args.num_q + head) * kLanes));
      const int64_t end = d + run_dims < padded_dim ? d + run_dims : padded_dim;
      for (int64_t i = d; i < end; i += kLanes) AddTo(args.out + head * padded_dim + i, offset);
    }
  }
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

// Some neighbouring groups of a piece; pieces go on behind them, so that kGroupsAhead further is what to ask for.
struct Block {
  const Group* groups;
  int64_t num_groups;
};

HWY_INLINE Block BlockAt(const Pieces& pieces, int64_t first, int64_t end) {
  return {pieces.groups + first, end - first < kBlockGroups ? end - first : kBlockGroups};
}

// body.operator()<kGroups>(first_group) until every group of the block had its turn: as many together as there are
// registers for with kMaxHeads, which hides the latency of sums and reads a query once for all of them.
template <typename Body>
HWY_INLINE void ForGroups(const Block& block, const Body& body) {
  int64_t i = 0;
  if constexpr (kSub == 1) {
    for (; i + 4 <= block.num_groups; i += 4) body.template operator()<4>(i);
    for (; i + 2 <= block.num_groups; i += 2) body.template operator()<2>(i);
  }
  for (; i < block.num_groups; ++i) body.template operator()<1>(i);
}

// Scales or lows of the values of the block that begins with group number `first`, [kBlockTokens], become 0 for tokens
// outside its runs, whose slots may hold anything, also NaN, and behind its last group.
HWY_INLINE void HideOutside(const DecodeArgs& args, const Pieces& pieces, int64_t first, float* scales) {
  if (first >= pieces.whole_begin && first + kBlockGroups <= pieces.whole_end) return;
  for (int64_t i = 0; i < kBlockTokens; ++i) {
    const int64_t idx = first + i / kGroupTokens;
    const bool is_sink = idx < pieces.num_sink_groups;
    const int64_t begin = is_sink ? args.sink_begin : args.recent_begin;
    const int64_t end = is_sink ? args.sink_end : args.recent_end;
    const int64_t pos = idx < pieces.num_groups ? pieces.groups[idx].pos + i % kGroupTokens : end;
    if (pos < begin || pos >= end) scales[i] = 0.0f;
  }
}

}  // namespace
}  // namespace headwise::cpu::HW_ISA

#endif  // HEADWISE_BACKEND_CPU_KERNELS_ATTENTION_DECODE_INL_H_
