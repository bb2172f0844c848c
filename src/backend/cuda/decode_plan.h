// How the attention of a decoding step, one new token a sequence, is dealt to the multiprocessors: once a step for all
// layers, on the device. A head is cut by its own length and those of its sequence's other heads in the layer, so that
// its result does not depend, bit for bit, on who shares the step; runs of pieces of equal cost go to the blocks. For
// host and device; no std:: code.
#ifndef HEADWISE_BACKEND_CUDA_DECODE_PLAN_H_
#define HEADWISE_BACKEND_CUDA_DECODE_PLAN_H_

#include <cstdint>

#include "backend/cuda/attention_cut.h"

namespace headwise::cuda {

// Beside its pages a piece costs as much as reading this many: a state written, and read again by who merges.
inline constexpr int64_t kPieceCost = 1;
// And what a head costs whose first piece a block does: its plan, its rows and its queries are fetched one after the
// other. Measured: layers of four full and four short heads take 28 microseconds with 0, 23 with 3 and with 6, and a
// little less with 6 where fewer are full.
inline constexpr int64_t kHeadCost = 6;
inline constexpr int64_t kMaxWholeKeys = 768;  // of a head that is not cut: merging its pieces would take as long
inline constexpr int64_t kMaxOnlyKeys = 2560;  // of a piece that is a block's only one, where a sequence is alone
inline constexpr int32_t kPiecesOfBlock = 3;   // where that would be longer

// The pages that one query reads, in visits: those of the sink range, then those of the recent one. A page that both
// touch is visited twice, each time with its range's query.
struct HeadVisits {
  int32_t sink_page = 0;    // the first of the sink range
  int32_t recent_page = 0;  // and of the recent one
  int32_t num_sink = 0;     // visits
  int32_t num_visits = 0;   // all

  constexpr int32_t PageOf(int32_t visit) const {
    return visit < num_sink ? sink_page + visit : recent_page + visit - num_sink;
  }
};
constexpr HeadVisits VisitsOf(const KeyRanges& keys, int64_t page_tokens) {
  const auto first = [&](int64_t begin) { return static_cast<int32_t>(begin / page_tokens); };
  const auto count = [&](int64_t begin, int64_t end) {
    return begin < end ? static_cast<int32_t>((end - 1) / page_tokens - begin / page_tokens + 1) : 0;
  };
  const int32_t num_sink = count(keys.sink_begin, keys.sink_end);
  return {first(keys.sink_begin), first(keys.recent_begin), num_sink,
          num_sink + count(keys.recent_begin, keys.recent_end)};
}

// What a sequence's heads of one layer cost together, in visits, and the blocks that do them where it is alone.
struct LayerWork {
  int32_t cost = 0;
  int32_t num_heads = 0;
  int32_t num_blocks = 0;
};
constexpr LayerWork WorkOfLayer(int64_t num_visits, int64_t num_heads, int64_t num_blocks) {
  return {static_cast<int32_t>(num_visits + kHeadCost * num_heads), static_cast<int32_t>(num_heads),
          static_cast<int32_t>(num_blocks)};
}

// Of a head, whatever else is in its layer: no shorter than kMinPieceKeys, and so many that it fills the chip alone.
constexpr int64_t MaxPieces(int64_t num_visits, int64_t page_tokens) {
  if (num_visits <= kMaxWholeKeys / page_tokens) return num_visits > 0 ? 1 : 0;
  const int64_t count = num_visits * page_tokens / kMinPieceKeys;
  return count < kMaxPieces ? count : kMaxPieces;
}
// A head's pieces are as long as each other, and no shorter than a block's part of the layer, so that no block has two
// where the sequence is alone: what a piece costs beyond its pages, the wait of all warps for the last of them, is paid
// once. Two exceptions. In a batch blocks differ by up to a piece: pieces of more than kMaxOnlyKeys are cut into two or
// three. And a head of almost two parts would be one piece of almost two: of fewer than four it has the nearest number,
// if it is shorter than the layer's mean; were all heads' numbers raised, blocks would have two pieces.
constexpr int32_t NumPieces(int32_t num_visits, int64_t page_tokens, const LayerWork& layer) {
  const auto most = static_cast<int32_t>(MaxPieces(num_visits, page_tokens));
  if (most <= 1) return most;
  const int32_t part = (layer.cost + layer.num_blocks - 1) / layer.num_blocks;
  int32_t pieces = num_visits / part;
  const bool is_short = (num_visits + kHeadCost) * layer.num_heads < layer.cost;
  if (is_short && pieces < 4) pieces = (num_visits + part / 2) / part;
  for (int32_t of_block = part * page_tokens > kMaxOnlyKeys ? kPiecesOfBlock : 1; of_block > 1; --of_block) {
    const int32_t count = num_visits * of_block * layer.num_blocks / layer.cost;
    if (count > kMaxPieces) continue;  // cut down to that, some blocks would have one more than others
    pieces = count;
    break;
  }
  return pieces < 1 ? 1 : pieces < most ? pieces : most;
}

// One head of one layer as the step's plan has it.
struct HeadPlan {
  HeadVisits visits;
  int32_t num_pieces = 0;
  int32_t first_state = 0;  // of the states of its layer
  int32_t cost_before = 0;  // of the heads before it

  // The visits [BeginOf(i), BeginOf(i + 1)) are piece i.
  constexpr int32_t BeginOf(int32_t piece) const { return visits.num_visits * piece / num_pieces; }
  constexpr int64_t cost() const { return kHeadCost + visits.num_visits + kPieceCost * num_pieces; }
};
constexpr HeadPlan PlanHead(const KeyMask& mask, int64_t pos, int64_t page_tokens, const LayerWork& layer) {
  HeadPlan plan;
  plan.visits = VisitsOf(mask.KeysOf(pos), page_tokens);
  plan.num_pieces = NumPieces(plan.visits.num_visits, page_tokens, layer);
  return plan;
}

// A head's visits as parts that pass through memory: a page that has aged is one, and of pages that are twice as large,
// ahead of those and behind them, each half of the tokens is.
struct VisitParts {
  int32_t num_early = 0;  // visits of larger pages ahead of those that have aged
  int32_t num_aged = 0;

  struct Part {
    int32_t visit = 0;
    int32_t half = -1;  // -1: all tokens
  };
  // The first of a visit.
  constexpr int32_t FirstOf(int32_t visit) const {
    const int32_t behind = visit - num_early - num_aged;
    return visit + (visit < num_early ? visit : num_early) + (behind > 0 ? behind : 0);
  }
  constexpr Part PartOf(int32_t i) const {
    if (i < 2 * num_early) return {i / 2, i % 2};
    const int32_t behind = i - 2 * num_early - num_aged;
    if (behind < 0) return {i - num_early, -1};
    return {num_early + num_aged + behind / 2, behind % 2};
  }
};
// Of a head whose pages [aged_begin, aged_end) have aged.
constexpr VisitParts PartsOf(const HeadVisits& visits, int64_t aged_begin, int64_t aged_end) {
  const auto num_before = [&](int64_t page) {
    const auto within = [](int64_t count, int64_t most) {
      return static_cast<int32_t>(count < 0 ? 0 : count < most ? count : most);
    };
    return within(page - visits.sink_page, visits.num_sink) +
           within(page - visits.recent_page, visits.num_visits - visits.num_sink);
  };
  const int32_t num_early = num_before(aged_begin);
  return {num_early, num_before(aged_end) - num_early};
}

// Where a block's run of pieces begins; it ends where the next one's does.
struct RunStart {
  int32_t head = 0;
  int32_t piece = 0;
};
// The run that begins with the first piece at `cost` or behind. Requires: heads in order, the first at cost 0.
constexpr RunStart RunFrom(const HeadPlan* heads, int32_t num_heads, int64_t cost) {
  // The last head that begins there or before.
  int32_t begin = 0;
  int32_t end = num_heads;
  while (end - begin > 1) {
    const int32_t middle = (begin + end) / 2;
    (heads[middle].cost_before <= cost ? begin : end) = middle;
  }
  const HeadPlan& plan = heads[begin];
  const int64_t in_pieces = cost - plan.cost_before - kHeadCost;
  const int64_t of_pieces = plan.visits.num_visits + kPieceCost * plan.num_pieces;
  const int64_t piece = in_pieces > 0 ? CeilDiv(in_pieces * plan.num_pieces, of_pieces) : 0;
  return {begin, static_cast<int32_t>(piece < plan.num_pieces ? piece : plan.num_pieces)};
}

}  // namespace headwise::cuda

#endif  // HEADWISE_BACKEND_CUDA_DECODE_PLAN_H_
