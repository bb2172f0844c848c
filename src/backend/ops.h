// The arguments of every operation a backend must do: one struct each, shapes behind the fields, and one Validate that
// all backends share. Letters: T tokens of this step, Hq query heads, Hkv KV heads, G = Hq / Hkv, D head dim, E model
// dim, F ffn dim, V vocabulary, K and N of a matrix product, P tokens per page. Query head q reads KV head q / G.
//
// `data` pointers and page addresses lie in the backend's memory; only a backend dereferences them. std::span members
// lie in host memory.
#ifndef HEADWISE_BACKEND_OPS_H_
#define HEADWISE_BACKEND_OPS_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string_view>

#include "backend/kv_format.h"
#include "tensor/tensor.h"

namespace headwise {

// Larger than any position; the sum of two does not overflow.
inline constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max() / 4;

// ---- dense ops ------------------------------------------------------------------------------------------------------

// out[i] = table[ids[i]]
struct EmbedArgs {
  ConstTensorView table;         // [V, E] f32, f16, bf16 or a block format
  std::span<const int32_t> ids;  // [T], each in [0, V)
  TensorView out;                // [T, E] f32
};

struct NormArgs {
  enum class Kind { kRms, kLayer };
  Kind kind = Kind::kRms;
  ConstTensorView x;       // [T, E] f32
  ConstTensorView weight;  // [E] f32
  ConstTensorView bias;    // [E] f32, or absent
  float eps = 1e-5f;
  TensorView out;  // [T, E] f32; may be x itself
};

// In which numbers a product is computed. Sums are always f32.
enum class Compute {
  kF32,   // x and W widened to f32
  kBF16,  // x rounded to bf16, products by bf16 dot instructions where the machine has them
  kInt8,  // x rounded to int8 with a scale for 32 elements, for weights of block formats; with others as kBF16
};

std::string_view NameOf(Compute compute);  // "f32", "bf16", "int8"
std::optional<Compute> ComputeByName(std::string_view name);

// out = x W^T + bias, for several matrices that share x: one launch for q, k and v.
struct MatMulPart {
  ConstTensorView weight;  // [N, K] f32, f16, bf16 or a block format
  ConstTensorView bias;    // [N] f32, or absent
  TensorView out;          // [T, N] f32
};
struct MatMulArgs {
  enum class Write { kStore, kAdd };  // kAdd: out += ..., the residual connection
  ConstTensorView x;                  // [T, K] f32
  std::span<const MatMulPart> parts;
  Write write = Write::kStore;
  Compute compute = Compute::kF32;
};

// Rotary embedding in halves (Hugging Face order): the first R = rotary_dims of D are rotated, the rest copied.
//   out[i] = x[i] cos - x[i + R/2] sin,  out[i + R/2] = x[i + R/2] cos + x[i] sin,  0 <= i < R/2
struct RopeArgs {
  ConstTensorView x;       // [T, H*D] f32
  TensorView out;          // [T, H*D] f32; may be x itself
  ConstTensorView angles;  // [A, R/2, 2] f32: cos, sin
  // Row of `angles` for token t and head h: rows[t * rows_per_token + h / heads_per_row].
  std::span<const int32_t> rows;  // [T * rows_per_token]
  int64_t rows_per_token = 1;     // 1: all heads alike; Hkv: one per KV head
  int64_t num_heads = 0;          // H
  int64_t head_dim = 0;           // D
};

struct ActivateArgs {
  enum class Kind { kGatedSilu, kGelu, kGeluTanh };
  Kind kind = Kind::kGatedSilu;
  ConstTensorView gate;  // [T, F] f32; absent unless gated
  TensorView x;          // [T, F] f32, in place: x = silu(gate) * x, or gelu(x)
};

// x = clamp(x, -limit, limit)
struct ClampArgs {
  TensorView x;  // f32
  float limit = 0;
};

// out[i] = x[rows[i]]
struct GatherRowsArgs {
  ConstTensorView x;              // [T, E] f32
  std::span<const int32_t> rows;  // [R]
  TensorView out;                 // [R, E] f32
};

// ---- the KV cache ---------------------------------------------------------------------------------------------------

// How a head's pages store tokens. A page holds keys and values of P consecutive tokens of ONE KV head; the order of
// bytes inside is the backend's own business.
struct KvLayout {
  int64_t head_dim = 0;      // D
  int64_t page_tokens = 32;  // P, a multiple of 16
  KvFormat format = KvFormat::kF16;

  friend bool operator==(const KvLayout&, const KvLayout&) = default;
};

// Of keys and values, scales included, padding left out, where whole pages are full.
inline double BytesPerToken(const KvLayout& layout) {
  return static_cast<double>(TokensBytes(layout.format, layout.head_dim, layout.page_tokens)) /
         static_cast<double>(layout.page_tokens);
}

// The pages of one KV head of one sequence. Token j of the text lies in page j / P, slot j % P. Pages in the middle,
// whose tokens were dropped, are absent: sinks and the recent window each have their own run.
struct PageTable {
  std::span<std::byte* const> sink;    // pages 0 .. sink.size()-1
  std::span<std::byte* const> recent;  // pages recent_first .. ; recent_first >= sink.size()
  int64_t recent_first = 0;

  std::byte* Page(int64_t page_idx) const {
    return page_idx < static_cast<int64_t>(sink.size()) ? sink[static_cast<size_t>(page_idx)]
                                                        : recent[static_cast<size_t>(page_idx - recent_first)];
  }
};

// One KV head of one sequence in this step: the unit of work of all cache ops. The query at position t, for token row
// first_row + (t - first_pos), reads key j <= t if
//     j < sink and SinkPos(t) - j < sink_reach,   or   j >= sink and t - j < recent,
// with SinkPos(t) = min(t, sink_pos_limit). That is all a kernel knows of rules.
struct HeadWork {
  int64_t first_row = 0;  // row of the sequence's first token of this step in [T, ...] tensors
  int64_t num_rows = 0;   // its tokens in this step
  int64_t first_pos = 0;  // their first position in the text
  int64_t kv_head = 0;
  KvLayout layout = {};  // heads may differ in format, but not in head_dim
  PageTable pages = {};
  // Pages [aged_begin, aged_end) of the table are kQ4, all others as `layout` says.
  int64_t aged_begin = 0;
  int64_t aged_end = 0;
  int64_t sink = 0;
  int64_t recent = kNoLimit;
  int64_t sink_reach = kNoLimit;
  int64_t sink_pos_limit = kNoLimit;
  // True: sink keys are read with q_sink, rotated at SinkPos(t). [streaming-llm §3.2]
  bool uses_sink_query = false;
};

// Writes this step's keys and values into their pages, in the head's format.
struct AppendKvArgs {
  ConstTensorView k;  // [T, Hkv*D] f32, rotated
  ConstTensorView v;  // [T, Hkv*D] f32
  std::span<const HeadWork> heads;
};

// Makes complete pages smaller: each page of `from`, in `layout`, becomes the kQ4 page of `to` beside it, of the same
// head_dim and page_tokens. Values that are not numbers stay so: they spread over what they share a scale with.
struct AgeKvArgs {
  KvLayout layout;  // of `from`: kQ8
  std::span<const std::byte* const> from;
  std::span<std::byte* const> to;
};

// softmax(scale q k^T + alibi, with an optional sink logit in the denominator) v. Every head of every sequence is in
// one work list, whatever its rule.
struct AttentionArgs {
  ConstTensorView q;                // [T, Hq*D] f32, rotated at the text position
  ConstTensorView q_sink;           // [T, Hq*D] f32, rotated at SinkPos; absent when no head uses it
  TensorView out;                   // [T, Hq*D] f32
  TensorView lse;                   // [T, Hq] f32: natural log of the denominator; absent when nobody needs it
  ConstTensorView alibi_slopes;     // [Hq] f32, or absent: score += slope * (j - t), for sinks slope * (j - SinkPos(t))
  ConstTensorView sink_logits;      // [Hq] f32, or absent: exp(logit) joins the denominator [streaming-llm §3.3 eq.2]
  std::span<const HeadWork> heads;  // every (sequence, KV head) of the step exactly once
  int64_t num_q_heads = 0;          // Hq
  int64_t num_kv_heads = 0;         // Hkv
  float scale = 1.0f;
  Compute compute = Compute::kF32;

  int64_t head_dim() const { return q.shape[1] / num_q_heads; }  // D
};

// The compensation token [razor §3.3 eq.4-5]. For each head, in order of positions: token t - recent (if >= sink) is
// folded into the running mean of keys and of values, then the query at t reads the mean as one more key with log(n)
// added to its score, n = tokens folded so far. `out` and `lse` hold the attention over kept keys and are updated.
// With num_rows 0 only the folding is done: the cut at the end of the prompt.
struct HeadFold {
  HeadWork work;           // work.recent and work.sink bound the folded range
  float* state = nullptr;  // [2, D] f32: mean key (after rotation), mean value; in the backend's memory
  int64_t num_folded = 0;  // n before this step: tokens [sink, sink + n) are in the mean
  int64_t fold_end = 0;    // tokens [sink + n, fold_end) join; ahead of the queries where num_rows is 0
};
struct CompensateArgs {
  ConstTensorView q;  // as in AttentionArgs
  TensorView out;
  TensorView lse;
  // [Hq] f32, or absent. The mean's score is the mean of its tokens' scores, so its bias is slope * (their mean
  // position
  // - t).
  ConstTensorView alibi_slopes;
  std::span<const HeadFold> heads;
  int64_t num_q_heads = 0;
  int64_t num_kv_heads = 0;
  float scale = 1.0f;
};

// Aborts (HW_CHECK) when shapes or dtypes do not fit: a caller's bug, never input.
void Validate(const EmbedArgs& args);
void Validate(const NormArgs& args);
void Validate(const MatMulArgs& args);
void Validate(const RopeArgs& args);
void Validate(const ActivateArgs& args);
void Validate(const ClampArgs& args);
void Validate(const GatherRowsArgs& args);
void Validate(const AppendKvArgs& args);
void Validate(const AgeKvArgs& args);
void Validate(const AttentionArgs& args);
void Validate(const CompensateArgs& args);

}  // namespace headwise

#endif  // HEADWISE_BACKEND_OPS_H_
