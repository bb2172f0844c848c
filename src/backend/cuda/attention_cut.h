// How the attention of one head in one step is cut into blocks of work. It follows from the head's own numbers alone,
// so that a result does not depend, bit for bit, on who shares the step. For host and device; no std:: code.
#ifndef HEADWISE_BACKEND_CUDA_ATTENTION_CUT_H_
#define HEADWISE_BACKEND_CUDA_ATTENTION_CUT_H_

#include <cstdint>

#include "backend/key_mask.h"
#include "base/round_up.h"

namespace headwise::cuda {

// A tile is so many (row, query head) pairs of one KV head: pair i is row i / G, query head i % G of the group.
inline constexpr int64_t kTilePairs = 16;
// Steps of more rows have tiles enough; their keys are not cut.
inline constexpr int64_t kMaxCutRows = 16;
inline constexpr int64_t kMinPieceKeys = 256;
inline constexpr int64_t kMaxPieces = 128;  // about as many as multiprocessors
inline constexpr int64_t kPieceUnit = 64;

// A tile of the kernel for prompts.
inline constexpr int64_t kPrefillPairs = 128;

// What queries at the positions [first, last] read, all together: two ranges of positions, key i of which is sink key
// sink_begin + i or a later one.
struct KeyWindow {
  int64_t sink_begin, num_sink, recent_begin, num_recent;

  constexpr int64_t num_keys() const { return num_sink + num_recent; }
  constexpr int64_t PosOf(int64_t i) const { return i < num_sink ? sink_begin + i : recent_begin + i - num_sink; }
};
constexpr KeyWindow WindowOf(const KeyMask& mask, int64_t first, int64_t last) {
  const KeyRanges begin = mask.KeysOf(first);
  const KeyRanges end = mask.KeysOf(last);
  const int64_t recent_begin = begin.recent_begin > end.sink_end ? begin.recent_begin : end.sink_end;
  const int64_t num_recent = end.recent_end - recent_begin;
  return {begin.sink_begin, end.sink_end - begin.sink_begin, recent_begin, num_recent > 0 ? num_recent : 0};
}

// Every tile is done once for each piece of its keys; pieces are merged in order.
struct AttentionCut {
  int64_t num_tiles;
  int64_t num_pieces;
  int64_t piece_keys;  // of the last one at most so many

  constexpr int64_t num_blocks() const { return num_tiles * num_pieces; }
};
constexpr AttentionCut CutOf(const KeyMask& mask, int64_t first_pos, int64_t num_rows, int64_t group) {
  const int64_t num_tiles = CeilDiv(num_rows * group, kTilePairs);
  const int64_t num_keys = WindowOf(mask, first_pos, first_pos + num_rows - 1).num_keys();
  if (num_rows > kMaxCutRows || num_keys <= kMinPieceKeys) return {num_tiles, 1, num_keys};
  const int64_t even = CeilDiv(CeilDiv(num_keys, kMaxPieces), kPieceUnit) * kPieceUnit;
  const int64_t piece_keys = even > kMinPieceKeys ? even : kMinPieceKeys;
  return {num_tiles, CeilDiv(num_keys, piece_keys), piece_keys};
}

}  // namespace headwise::cuda

#endif  // HEADWISE_BACKEND_CUDA_ATTENTION_CUT_H_
