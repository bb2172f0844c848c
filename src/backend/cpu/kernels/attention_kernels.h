// The KV cache and attention of one instruction set.
//
// A page of the cpu backend holds K, then V, of P tokens in groups of 16. Dp is D rounded up to 16, a pair is two
// 16-bit elements side by side:
//   f32, f16   K group [Dp][16 tokens]             V group [16 tokens][Dp]
//   bf16       K group [Dp/2][16 tokens][2 dims]   V group [8 token pairs][Dp][2 tokens]
//   q8         K group [Dp/4][16 tokens][4 dims]   V group [4 token quads][Dp][4 tokens]
//   q4         K group [Dp/8][16 tokens][8 dims]   V group [2 token octets][Dp][8 tokens]
// Scores of 16 tokens then grow in the lanes of a vector, one key dimension after the other, and outputs in the lanes
// of Dp, one token after the other: no sums across lanes. The orders of bf16, q8 and q4 are those of the dot
// instructions.
//
// q8 bytes are code + 128. An element is code * scale, with an f16 scale per token for its key and one for its value;
// all groups are followed by the scales: K [P], V [P].
//
// q4 has two codes in a byte: byte i of 4 holds number i of 8 in its low half and number 4 + i in its high half, so
// that one load gives two operands of q8's kind. An element is code * scale + low, both f16. All groups are followed by
// K scales [Dp], K lows [Dp], V scales [Dp/32][P], V lows [Dp/32][P]; Dp/32 is rounded up.
#ifndef HEADWISE_BACKEND_CPU_KERNELS_ATTENTION_KERNELS_H_
#define HEADWISE_BACKEND_CPU_KERNELS_ATTENTION_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "backend/key_mask.h"

namespace headwise::cpu {

enum class KvType : uint8_t { kF32, kF16, kBF16, kQ8, kQ4 };

// Tokens of a group: the unit in which pages are read.
inline constexpr int64_t kGroupTokens = 16;
// Dimensions of a value of q4 that share a scale.
inline constexpr int64_t kScaleDims = 32;

// Pages by number; as PageSpace in backend/kv_step.h.
struct KvSpace {
  std::byte* const* extents;
  int64_t page_bytes;
  int extent_shift;
};

// The pages of one KV head; as StepHead in backend/kv_step.h.
struct KvPages {
  const uint32_t* table;  // from the head's first entry on
  int64_t num_sink;
  int64_t ring_first, ring_pages;
  int64_t page_tokens;  // P
  int64_t dim;          // D
  int64_t padded_dim;   // Dp
  KvType type;
  int64_t aged_begin, aged_end;  // pages that are q4; all others are of `type`
  KvSpace newest, aged;          // where the pages of `type` are, and those of q4
};

// Tokens [first_pos, first_pos + num_tokens) into their pages.
struct AppendArgs {
  KvPages pages;
  int64_t first_pos;
  int64_t num_tokens;
  const float* k;  // [num_tokens, D], rows `stride` floats apart
  const float* v;
  int64_t stride;
};

// What the keys of blocks lie between, behind those of tokens [first_pos, first_pos + num_tokens) being written: as
// AppendKvArgs in backend/ops.h.
struct BoundKeysArgs {
  KvPages pages;
  int64_t block_tokens;
  int64_t first_pos;
  int64_t num_tokens;
};

// The bounds of blocks [begin, end) for the queries of one position, of G query heads the largest: as AttentionArgs
// there, in the unit of q. Infinite where it is no number.
struct ScoreBlocksArgs {
  KvPages pages;
  int64_t block_tokens;
  int64_t begin, end;
  int64_t num_q;    // G
  const float* q;   // [G, D]
  float* signed_q;  // [2, G, Dp], scratch
  float* bounds;    // [end - begin]
};

// A complete page of q8 as a page of q4.
struct AgeArgs {
  const std::byte* from;
  std::byte* to;
  int64_t page_tokens;  // P
  int64_t dim;          // D
  int64_t padded_dim;   // Dp
};

// One query position of one KV head against up to kDecodePieceTokens of its keys: all G query heads of the group share
// one pass over the bytes. The keys are all in aged pages, or none is. Scores are in units of log 2 throughout.
inline constexpr int64_t kDecodePieceTokens = 1024;
struct DecodeArgs {
  KvPages pages;
  int64_t num_q;        // G
  const float* q;       // [G, Dp] times scale * log2(e), zero-padded
  const float* q_sink;  // the same, rotated at the sink position
  const float* slopes;  // [G] times log2(e), or null
  float score_cap;      // times log2(e); 0: none
  int64_t query_pos;
  int64_t sink_query_pos;
  int64_t sink_begin, sink_end;      // keys read with q_sink
  int64_t recent_begin, recent_end;  // keys read with q,
  const int64_t* chosen;             // of these only those of the groups at these positions, ascending; null: all
  int64_t num_chosen;
  const DecodeArgs* next;  // what this thread reads next, to be asked for; or null
  float* scratch;          // DecodeScratchFloats(G, Dp); faster where it begins with a cache line
  float* out;              // [G, Dp] sum of p v; likewise
  float* max;              // [G] the largest score, or less by up to 8
  float* sum;              // [G] sum of p = 2^(score - max)
};
// What a decode kernel keeps beside its results, the most that any format does.
inline int64_t DecodeScratchFloats(int64_t num_q, int64_t padded_dim) {
  const int64_t num_runs = (padded_dim + kScaleDims - 1) / kScaleDims;
  // Of a block of 64 tokens the scores; sums of probabilities and what is added to outputs in the end, a vector each.
  const int64_t softmax = num_q * (64 + 16 + 16 * num_runs);
  // q8, q4: queries as bytes, a multiple of 64, their scales, inverses of these and offsets; q4 has them for two pages,
  // and sums that are spread over lanes.
  const int64_t query = 2 * num_q * ((padded_dim + 63) / 64 * 16 + 3 + 16);
  // q8, q4: for every 32 dimensions the probabilities of a block as bytes, their scale and its inverse.
  const int64_t weights = num_q * num_runs * (16 + 2);
  // q4: scales and lows of the values of a block.
  const int64_t steps = num_runs * 64;
  // Each of up to twenty of these begins with a cache line.
  return softmax + query + weights + steps + 20 * 16;
}

// What rows have of some of their keys, before it is divided by anything; as in DecodeArgs.
struct PrefillPartial {
  float* out;  // [rows, Dp]; null: not asked for
  float* max;  // [rows]
  float* sum;  // [rows], 0 where a row reads none of them
};

// A tile of consecutive tokens of one sequence, all G query heads of one KV head: rows are [token][query head].
struct PrefillArgs {
  KvPages pages;
  int64_t num_tokens;
  int64_t num_q;  // G
  int64_t first_pos;
  KeyRanges keys;       // of which each row reads what the mask allows it
  const float* q;       // [num_tokens, G*D], tokens `stride` floats apart
  const float* q_sink;  // or null
  float* out;           // as q
  int64_t stride;
  float* lse;  // [num_tokens, G], tokens `lse_stride` floats apart; or null
  int64_t lse_stride;
  const float* slopes;       // [G], or null
  const float* sink_logits;  // [G], or null
  float scale;
  float score_cap;  // 0: none
  KeyMask mask;
  bool use_bf16;       // products in bf16; ignored where the machine has no bf16 dot
  std::byte* scratch;  // PrefillScratchBytes, 64-byte aligned
  // Asked for: `out`, `lse` and `sink_logits` are passed over, and a row's result is that of the decode kernel over the
  // same keys, bit for bit, where no page is q8 or q4.
  PrefillPartial partial;
};
inline constexpr int64_t kPrefillKeys = 64;       // whose scores lie side by side
inline constexpr int64_t kPrefillTileKeys = 256;  // that are converted together, at most
inline constexpr int64_t kPrefillBlockRows = 32;  // that are multiplied together, at most
// Rows of q (bf16 or f32) and out, key and value tiles, scores: see attention_prefill.cc.
inline int64_t PrefillScratchBytes(int64_t num_rows, int64_t padded_dim) {
  const int64_t rows = num_rows + kPrefillBlockRows;  // a block of rows may run over the end
  return 4 * (rows * padded_dim * 3 + 2 * kPrefillTileKeys * padded_dim + 3 * kPrefillBlockRows * kPrefillKeys +
              (4 + kGroupTokens) * rows) +
         1024;
}

// The compensation token of one head: see CompensateArgs in backend/ops.h.
struct FoldArgs {
  KvPages pages;
  int64_t sink, recent, first_pos;
  int64_t num_rows;    // that read the mean
  int64_t num_folded;  // in the mean before
  int64_t fold_end;    // tokens before this one are in it afterwards
  float* state;        // [2, D]
  const float* q;      // [num_rows, G*D], rows `stride` floats apart
  float* out;
  int64_t stride;
  float* lse;  // [num_rows, G], rows `lse_stride` floats apart
  int64_t lse_stride;
  int64_t num_q;  // G
  float scale;
  float score_cap;      // 0: none
  const float* slopes;  // [G], or null
};

// What query rows of one KV head give its tokens in slots [begin, end), added to what these have noted of them; as
// SelectKvArgs in backend/ops.h. Tokens see the slots up to their own.
inline constexpr int64_t kSelectGroups = 4;  // whose keys are widened together, at most
struct SelectScoreArgs {
  KvPages pages;
  int64_t begin, end;  // begin is a multiple of 16; groups are done whole
  int64_t first_slot;  // of the first of these tokens
  int64_t num_tokens;
  int64_t num_q;   // G
  const float* q;  // [num_tokens, G*D], tokens `stride` floats apart
  int64_t stride;
  const float* lse;  // [num_tokens, G], tokens `lse_stride` floats apart
  int64_t lse_stride;
  float scale;
  float score_cap;  // 0: none
  bool resets;      // what they had does not count
  float* tile;      // [kSelectGroups, Dp, 16], 64-byte aligned
  // Of kExpected, by slot and in place of notes: of n + 1 rows, m and then what n queries are beyond it, c, the sum of
  // scale m k and of all scale^2 / 2n (c k)^2. Asked for: whole groups, `lse` is passed over.
  float* exponents = nullptr;
};

// Notes minus the length of its key for every token in slots [begin, end), whole groups.
struct SelectNormArgs {
  KvPages pages;
  int64_t begin, end;  // begin is a multiple of 16
  float* tile;         // [Dp, 16], 64-byte aligned
};

// The directions k / |k| of the keys in slots [begin, end), added up; notes 1 / |k|, or 0 of no length, whole groups.
struct SelectDirectionsArgs {
  KvPages pages;
  int64_t begin, end;  // begin is a multiple of 16
  float* sums;         // [D]
  float* tile;         // [2, Dp, 16], 64-byte aligned
};

// Notes minus the cosine of its key with `mean` for every token in slots [begin, end), whole groups; 0 for keys of no
// length. Behind select_directions, which noted what lengths are.
struct SelectCosineArgs {
  KvPages pages;
  int64_t begin, end;  // begin is a multiple of 16
  const float* mean;   // [D], of length 1 or 0
  float* tile;         // [Dp, 16], 64-byte aligned
};

// The tokens in slots from[i] into slots to[i], with what is noted of them.
struct MoveSlotsArgs {
  KvPages pages;
  const int64_t* from;
  const int64_t* to;
  int64_t num_tokens;
};

struct AttentionKernels {
  void (*append)(const AppendArgs& args);
  void (*bound_keys)(const BoundKeysArgs& args);
  void (*score_blocks)(const ScoreBlocksArgs& args);
  void (*age)(const AgeArgs& args);
  void (*decode)(const DecodeArgs& args);
  void (*prefill)(const PrefillArgs& args);
  void (*fold)(const FoldArgs& args);
  void (*select_score)(const SelectScoreArgs& args);
  void (*select_norm)(const SelectNormArgs& args);
  void (*select_directions)(const SelectDirectionsArgs& args);
  void (*select_cosine)(const SelectCosineArgs& args);
  void (*move_slots)(const MoveSlotsArgs& args);
  bool has_bf16_dot;
};

}  // namespace headwise::cpu

#endif  // HEADWISE_BACKEND_CPU_KERNELS_ATTENTION_KERNELS_H_
