// What decoding has in common over all formats: the groups of a piece, blocks of them, and a softmax that goes on from
// one block to the next; over q8 and q4 rows of integers. Included by the decode kernels only, once per instruction
// set.
#ifndef HEADWISE_BACKEND_CPU_KERNELS_ATTENTION_DECODE_INL_H_
#define HEADWISE_BACKEND_CPU_KERNELS_ATTENTION_DECODE_INL_H_

#include "backend/cpu/kernels/kv_page-inl.h"

namespace headwise::cpu::HW_ISA {
namespace {

// Query heads whose sums are in registers together.
constexpr int64_t kMaxHeads = kSub == 1 ? 4 : 2;

// How far ahead to ask for cache lines, in groups: of a head of 64 dimensions 8 KiB in q4 to 64 KiB in f32. Half of it
// is a little slower in every format, four times as much is so in q8. Pages of a head need not be neighbours, so the
// hardware's own prefetcher stops at each page's end.
constexpr int64_t kGroupsAhead = 8;

// Groups whose keys and then values all query heads pass over before the next are read. Pages are so read in the order
// of their bytes, or nearly: reading the keys of many pages and then their values takes a fifth longer. 64 tokens
// share a scale of probabilities in q8 and q4.
constexpr int64_t kBlockGroups = 4;
constexpr int64_t kBlockTokens = kBlockGroups * kGroupTokens;
constexpr int64_t kBlockVecs = kBlockTokens / kLanes;

struct Pieces {
  // Sinks, then recent keys. Behind them, only to be asked for, what this thread reads next.
  Group groups[kDecodePieceTokens / kGroupTokens + 4 + kGroupsAhead];
  int64_t num_groups = 0;
  int64_t num_sink_groups = 0;
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

HWY_INLINE void AddRecent(const DecodeArgs& args, int64_t most, Group* groups, int64_t& num_groups) {
  if (args.chosen == nullptr) {
    return AddGroups(args.pages, args.recent_begin, args.recent_end, most, groups, num_groups);
  }
  for (int64_t i = 0; i < args.num_chosen && num_groups < most; ++i) {
    groups[num_groups++] = GroupAt(args.pages, args.chosen[i]);
  }
}

HWY_INLINE void ListGroups(const DecodeArgs& args, Pieces& pieces) {
  constexpr int64_t kAll = kDecodePieceTokens / kGroupTokens + 4;
  AddGroups(args.pages, args.sink_begin, args.sink_end, kAll, pieces.groups, pieces.num_groups);
  pieces.num_sink_groups = pieces.num_groups;
  AddRecent(args, kAll, pieces.groups, pieces.num_groups);
  const int64_t most = pieces.num_groups + kGroupsAhead;
  int64_t num_listed = pieces.num_groups;
  if (const DecodeArgs* next = args.next) {
    AddGroups(next->pages, next->sink_begin, next->sink_end, most, pieces.groups, num_listed);
    AddRecent(*next, most, pieces.groups, num_listed);
    // Where a format without scales follows one that has them.
    for (int64_t i = pieces.num_groups; i < num_listed; ++i) {
      Group& group = pieces.groups[i];
      if (group.k_scales == nullptr) group.k_scales = group.v_scales = group.k;
    }
  }
  // Where nothing follows, what the cache holds already.
  while (num_listed < most) pieces.groups[num_listed++] = pieces.groups[0];
}

// Groups of a piece that follow one another, all sinks or all recent keys. Each holds a key that is read.
struct Block {
  int64_t num_groups;
  const Group* groups;  // groups[i + kGroupsAhead], too, is one that can be asked for
  // Tokens that are read: the sinks or the recent keys of the piece.
  int64_t begin, end;
  int64_t query_pos;
  const float* q;  // [G, Dp]
  bool is_whole;   // kBlockGroups groups, and all of their tokens are read

  // Of group number `idx` the tokens [TokensBegin, TokensEnd) of its 16 are read.
  HWY_INLINE int64_t TokensBegin(int64_t idx) const { return begin > groups[idx].pos ? begin - groups[idx].pos : 0; }
  HWY_INLINE int64_t TokensEnd(int64_t idx) const {
    const int64_t left = end - groups[idx].pos;
    return left < kGroupTokens ? left : kGroupTokens;
  }
};

// The block that begins with group number `first`. Blocks end at multiples of their size, whatever they begin with: two
// queries that see a key see it with the same others, but for what is hidden from either. Groups that were chosen need
// not be neighbours, and are counted from the first.
HWY_INLINE Block BlockAt(const DecodeArgs& args, const Pieces& pieces, int64_t first) {
  const bool is_sink = first < pieces.num_sink_groups;
  const int64_t left = (is_sink ? pieces.num_sink_groups : pieces.num_groups) - first;
  const int64_t place = args.chosen != nullptr ? first : pieces.groups[first].pos / kGroupTokens;
  const int64_t most = kBlockGroups - place % kBlockGroups;
  Block block;
  block.num_groups = left < most ? left : most;
  block.groups = pieces.groups + first;
  block.begin = is_sink ? args.sink_begin : args.recent_begin;
  block.end = is_sink ? args.sink_end : args.recent_end;
  block.query_pos = is_sink ? args.sink_query_pos : args.query_pos;
  block.q = is_sink ? args.q_sink : args.q;
  block.is_whole = block.num_groups == kBlockGroups && block.TokensBegin(0) == 0 &&
                   block.TokensEnd(kBlockGroups - 1) == kGroupTokens;
  return block;
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

// args.scratch from its beginning on, in whole cache lines: a vector that lies in two of them costs twice.
class Scratch {
 public:
  HWY_INLINE explicit Scratch(const DecodeArgs& args) : next_(args.scratch) {}

  HWY_INLINE float* Take(int64_t floats) {
    float* taken = next_;
    next_ += (floats + 15) / 16 * 16;
    return taken;
  }

 private:
  float* next_;
};

HWY_INLINE void AddTo(float* lanes, VF x) {
  hn::StoreU(hn::Add(hn::LoadU(kDF, lanes), x), kDF, lanes);
}

// Softmax and outputs of a piece, one block after the other: no score so far exceeds args.max of its head by more than
// kMaxSlack, and all sums are of 2^(score - max). Where a block has a larger one, max is raised and they shrink [online
// softmax, arXiv 1805.02867]. The branch to there is nearly always foreseen.
class OnlineSoftmax {
 public:
  // What is added to outputs in the end differs by run of dimensions: one run, several, or none where nothing is.
  HWY_INLINE OnlineSoftmax(const DecodeArgs& args, int64_t num_runs, Scratch& scratch)
      : args_(args),
        num_runs_(num_runs),
        scores_(scratch.Take(args.num_q * kBlockTokens)),
        sums_(scratch.Take(args.num_q * kLanes)),
        offsets_(scratch.Take(num_runs * args.num_q * kLanes)) {
    const VF zero = hn::Zero(kDF);
    for (int64_t head = 0; head < args.num_q; ++head) {
      args.max[head] = kLowest;
      hn::StoreU(zero, kDF, Sum(head));
      for (int64_t run = 0; run < num_runs; ++run) hn::StoreU(zero, kDF, Offset(run, head));
      for (int64_t d = 0; d < args.pages.padded_dim; d += kLanes) hn::StoreU(zero, kDF, Out(head) + d);
    }
  }

  HWY_INLINE const DecodeArgs& args() const { return args_; }
  HWY_INLINE int64_t num_runs() const { return num_runs_; }
  // [kBlockTokens], those of the next head behind it.
  HWY_INLINE float* Scores(int64_t head) const { return scores_ + head * kBlockTokens; }
  // [Dp], those of the next head behind it.
  HWY_INLINE float* Out(int64_t head) const { return args_.out + head * args_.pages.padded_dim; }
  // Of probabilities, [kLanes]: spread over lanes.
  HWY_INLINE float* Sum(int64_t head) const { return sums_ + head * kLanes; }
  // What is added in the end to the outputs of a run of dimensions, [kLanes]: spread over lanes.
  HWY_INLINE float* Offset(int64_t run, int64_t head) const { return offsets_ + (run * args_.num_q + head) * kLanes; }

  // What the scores of a block still lack: a cap, position biases, and kLowest where the rule hides a key or there is
  // none. At least one key is read, so that max is far above kLowest then.
  HWY_INLINE void FinishScores(const Block& block) const {
    if (args_.score_cap != 0.0f) CapScores();
    if (args_.slopes == nullptr && block.is_whole) return;
    for (int64_t head = 0; head < args_.num_q; ++head) {
      if (args_.slopes != nullptr) AddAlibi(block, args_.slopes[head], Scores(head));
      if (!block.is_whole) Hide(block, Scores(head));
    }
  }

  // args.max of a head in every lane, after it was made to hold for the block's scores.
  HWY_INLINE VF MaxForBlock(int64_t head) const {
    const float* scores = Scores(head);
    VF largest = hn::LoadU(kDF, scores);
    HW_UNROLL
    for (int64_t i = 1; i < kBlockVecs; ++i) largest = hn::Max(largest, hn::LoadU(kDF, scores + i * kLanes));
    const bool holds = hn::AllFalse(kDF, hn::Gt(largest, hn::Set(kDF, args_.max[head] + kMaxSlack)));
    if (__builtin_expect(!holds, 0)) Raise(head, hn::GetLane(hn::MaxOfLanes(kDF, largest)));
    return hn::Set(kDF, args_.max[head]);
  }

  // All that is still spread over lanes joins outputs and args_.sum; an offset is for run_dims dimensions.
  HWY_INLINE void Finish(int64_t run_dims) const {
    const auto sum_of = [](const float* lanes)
                            HW_INLINE_LAMBDA { return hn::GetLane(hn::SumOfLanes(kDF, hn::LoadU(kDF, lanes))); };
    const int64_t padded_dim = args_.pages.padded_dim;
    for (int64_t head = 0; head < args_.num_q; ++head) {
      args_.sum[head] = sum_of(Sum(head));
      for (int64_t run = 0; run < num_runs_; ++run) {
        const VF offset = hn::Set(kDF, sum_of(Offset(run, head)));
        const int64_t end = (run + 1) * run_dims < padded_dim ? (run + 1) * run_dims : padded_dim;
        for (int64_t d = run * run_dims; d < end; d += kLanes) AddTo(Out(head) + d, offset);
      }
    }
  }

 private:
  // Of all heads and slots: what of them is not read is hidden afterwards.
  HWY_INLINE void CapScores() const {
    const VF cap = hn::Set(kDF, args_.score_cap);
    const VF inverse = hn::Set(kDF, 1.0f / args_.score_cap);
    for (int64_t i = 0; i < args_.num_q * kBlockTokens; i += kLanes) {
      hn::StoreU(hn::Mul(cap, Tanh(hn::Mul(hn::LoadU(kDF, scores_ + i), inverse))), kDF, scores_ + i);
    }
  }

  HWY_INLINE static void AddAlibi(const Block& block, float slope, float* row) {
    for (int64_t i = 0; i < block.num_groups; ++i) {
      const int64_t distance = block.groups[i].pos - block.query_pos;
      for (int64_t s = 0; s < kSub; ++s) {
        float* to = row + i * kGroupTokens + s * kLanes;
        const VF offset = hn::Iota(kDF, static_cast<float>(distance + s * kLanes));
        hn::StoreU(hn::MulAdd(offset, hn::Set(kDF, slope), hn::LoadU(kDF, to)), kDF, to);
      }
    }
  }

  // A group may hold tokens that the rule hides, or slots never written.
  HWY_INLINE static void Hide(const Block& block, float* row) {
    for (int64_t i = 0; i < kBlockGroups; ++i) {
      const int64_t begin = i < block.num_groups ? block.TokensBegin(i) : kGroupTokens;
      const int64_t end = i < block.num_groups ? block.TokensEnd(i) : kGroupTokens;
      for (int64_t lane = 0; lane < kGroupTokens; ++lane) {
        if (lane < begin || lane >= end) row[i * kGroupTokens + lane] = kLowest;
      }
    }
  }

  HWY_INLINE void Raise(int64_t head, float max) const {
    const VF factor = Exp2(hn::Set(kDF, args_.max[head] - max));
    args_.max[head] = max;
    const auto shrink = [&](float* x) HW_INLINE_LAMBDA { hn::StoreU(hn::Mul(hn::LoadU(kDF, x), factor), kDF, x); };
    for (int64_t d = 0; d < args_.pages.padded_dim; d += kLanes) shrink(Out(head) + d);
    shrink(Sum(head));
    for (int64_t run = 0; run < num_runs_; ++run) shrink(Offset(run, head));
  }

  const DecodeArgs& args_;
  const int64_t num_runs_;
  float* const scores_;   // [G][kBlockTokens]
  float* const sums_;     // [G][kLanes]
  float* const offsets_;  // [num_runs][G][kLanes]
};

// Probabilities exp2(score - max) of one head and a block; their sum joins the others.
template <typename Exp2>
HWY_INLINE void BlockProbabilities(const OnlineSoftmax& softmax, int64_t head, const Exp2& exp2, VF* probabilities) {
  const float* scores = softmax.Scores(head);
  const VF max = softmax.MaxForBlock(head);
  VF sum = hn::LoadU(kDF, softmax.Sum(head));
  HW_UNROLL
  for (int64_t i = 0; i < kBlockVecs; ++i) {
    probabilities[i] = exp2(hn::Sub(hn::LoadU(kDF, scores + i * kLanes), max));
    sum = hn::Add(sum, probabilities[i]);
  }
  hn::StoreU(sum, kDF, softmax.Sum(head));
}

// The same in place of the scores.
template <typename Exp2>
HWY_INLINE void Exponentiate(const OnlineSoftmax& softmax, int64_t head, const Exp2& exp2) {
  VF probabilities[kBlockVecs];
  BlockProbabilities(softmax, head, exp2, probabilities);
  HW_UNROLL
  for (int64_t i = 0; i < kBlockVecs; ++i) hn::StoreU(probabilities[i], kDF, softmax.Scores(head) + i * kLanes);
}

constexpr auto kCoarseExp2 = [](VF x) HW_INLINE_LAMBDA { return CoarseExp2(x); };
constexpr auto kExp2 = [](VF x) HW_INLINE_LAMBDA { return Exp2(x); };

// ---- integer dot products: q8 and q4 --------------------------------------------------------------------------------

static_assert(kBlockVecs == kByteVecs);

// One row of int8 numbers per query head: x = scale * code.
struct Int8Rows {
  int8_t* codes;
  int64_t stride;  // a multiple of 64
  float* scales;
  float* inverses;

  HWY_INLINE Int8Rows(int64_t num_rows, int64_t row_bytes, Scratch& scratch) : stride((row_bytes + 63) / 64 * 64) {
    codes = reinterpret_cast<int8_t*>(scratch.Take(num_rows * stride / 4));
    scales = scratch.Take(num_rows);
    inverses = scratch.Take(num_rows);
  }

  HWY_INLINE int8_t* Row(int64_t head) const { return codes + head * stride; }

  // The scales of kNum rows, whose largest magnitudes lie in one of the lanes of `largest` each; and their inverses.
  template <int64_t kNum>
  HWY_INLINE void SetScales(int64_t first, const VF (&largest)[kNum]) const {
    float magnitudes[kNum];
    MaxOfEach(largest, magnitudes);
    const hn::CappedTag<float, kNum> df;
    const auto magnitude = hn::LoadU(df, magnitudes);
    hn::StoreU(hn::Mul(magnitude, hn::Set(df, 1.0f / 127.0f)), df, scales + first);
    // So small that its inverse might not be finite: nothing.
    const auto has_inverse = hn::Gt(magnitude, hn::Set(df, 0x1p-100f));
    hn::StoreU(hn::IfThenElseZero(has_inverse, hn::Div(hn::Set(df, 127.0f), magnitude)), df, inverses + first);
  }
};

// out[h][0 .. kVecs) += sums[h] of integers times codes of p[h], at the scale of these.
template <int64_t kHeads, int64_t kVecs>
HWY_INLINE void AddScaled(const VI (&sums)[kHeads][kVecs], const float* scales, int64_t padded_dim, float* out) {
  HW_UNROLL
  for (int64_t h = 0; h < kHeads; ++h) {
    const VF scale = hn::Set(kDF, scales[h]);
    float* row = out + h * padded_dim;
    HW_UNROLL
    for (int64_t i = 0; i < kVecs; ++i) {
      const VF old = hn::LoadU(kDF, row + i * kLanes);
      hn::StoreU(hn::MulAdd(hn::ConvertTo(kDF, sums[h][i]), scale, old), kDF, row + i * kLanes);
    }
  }
}

}  // namespace
}  // namespace headwise::cpu::HW_ISA

#endif  // HEADWISE_BACKEND_CPU_KERNELS_ATTENTION_DECODE_INL_H_
