// The arguments of every operation a backend must do: one struct each, shapes behind the fields, and one Validate that
// all backends share. Letters: T tokens of this step, Hq query heads, Hkv KV heads, G = Hq / Hkv, D head dim, E model
// dim, F ffn dim, V vocabulary, X experts, K and N of a matrix product, P tokens per page. Query head q reads KV head
// q / G.
//
// `data` pointers and page addresses lie in the device's memory; only a backend dereferences them. std::span members
// and the step's tables lie in host memory and are read before a call returns.
#ifndef HEADWISE_BACKEND_OPS_H_
#define HEADWISE_BACKEND_OPS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "backend/kv_step.h"
#include "tensor/tensor.h"
#include "tensor/token_draw.h"
#include "tensor/weight_matrix.h"

namespace headwise {

// ---- dense ops ------------------------------------------------------------------------------------------------------

// out[i] = scale * table[ids[i]], and where positions are learned + positions[position_ids[i]]
struct EmbedArgs {
  WeightMatrix table;            // [V, E], adopted
  std::span<const int32_t> ids;  // [T], each in [0, V); with `chosen`: which of those, in [0, R)
  TensorView out;                // [T, E] f32
  float scale = 1.0f;
  WeightMatrix positions = {};                 // [P, E], adopted, or absent
  std::span<const int32_t> position_ids = {};  // [T], each in [0, P); empty without positions
  // [R] i32 in the device's memory: ids that the host may not know yet, or absent. What is none of [0, V), as
  // DrawTokens leaves it where numbers are not finite, is read as 0.
  ConstTensorView chosen = {};
};
// The id of row t, where the host can read what is chosen.
inline int64_t EmbeddedId(const EmbedArgs& args, size_t t) {
  if (!args.chosen.present()) return args.ids[t];
  const int32_t id = static_cast<const int32_t*>(args.chosen.data)[args.ids[t]];
  return id >= 0 && id < args.table.shape[0] ? id : 0;
}

// Rows may be heads: T is then tokens times heads, E the head dim, and W is 1 or the number of heads.
struct NormArgs {
  enum class Kind { kRms, kLayer };
  enum class Write { kStore, kAdd };  // kAdd: out += ..., a residual connection behind a norm
  Kind kind = Kind::kRms;
  ConstTensorView x;       // [T, E] f32
  ConstTensorView weight;  // [E] or [W, E] f32: row t takes weight t % W; W divides T
  ConstTensorView bias;    // as weight, or absent
  float eps = 1e-5f;
  TensorView out;  // [T, E] f32; may be x itself under kStore
  Write write = Write::kStore;

  int64_t num_weights() const { return weight.shape.num_elements() / x.shape[1]; }  // W
};

// In which numbers a product is computed. Sums are always f32.
enum class Compute {
  kF32,   // x and W widened to f32
  kBF16,  // x rounded to bf16, products by bf16 dot instructions where the machine has them
  kInt8,  // x rounded to int8 with a scale for 32 elements, for weights of block formats; with others, and on tile
          // registers for many rows, as kBF16
  kFp8,   // as kInt8, but many rows of x and weights that Backend::PrepareProducts has prepared rounded to e4m3, with a
          // scale for each row of x and each output
  kW8A8,  // as kInt8, but many rows of x, and their weights of block formats, rounded to int8 once more, with a scale
          // for 512 elements of a row of x and of an output; weights in q8_0 for any rows, by Backend::PrepareProducts
};

std::string_view NameOf(Compute compute);  // "f32", "bf16", "int8", "fp8", "w8a8"
std::optional<Compute> ComputeByName(std::string_view name);

// out = x W^T + bias, for several matrices that share x: one launch for q, k and v.
struct MatMulPart {
  WeightMatrix weight;   // [N, K], adopted
  ConstTensorView bias;  // [N] f32, or absent
  TensorView out;        // [T, N] f32
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
  enum class Kind { kGatedSilu, kGatedGeluTanh, kGatedSiluClamped, kGelu, kGeluTanh };
  Kind kind = Kind::kGatedSilu;
  ConstTensorView gate;  // [T, F] f32; absent unless gated
  TensorView x;          // [T, F] f32, in place: x = silu(gate) * x, gelu(gate) * x, or gelu(x)
};
inline bool IsGated(ActivateArgs::Kind kind) {
  return kind != ActivateArgs::Kind::kGelu && kind != ActivateArgs::Kind::kGeluTanh;
}
// kGatedSiluClamped [gpt-oss]: with g = min(gate, limit), x = (clamp(x, -limit, limit) + 1) * g * sigmoid(slope * g).
inline constexpr float kClampedSiluLimit = 7.0f;
inline constexpr float kClampedSiluSlope = 1.702f;

// A product with what comes before and after it, as if done one behind the other. What only the later ones read need
// not be written.
struct LinearArgs {
  std::optional<NormArgs> norm = {};  // its `out` is the product's x
  MatMulArgs product;
  std::optional<ActivateArgs> activation = {};  // in place, of the product's outputs: {gate, x} where gated, else {x}
  std::optional<MatMulArgs> then = {};          // its x is what the activation left
};

// One expert of a mixture: E -> F -> E around a gated activation.
struct ExpertWeights {
  LinearWeights gate;  // [F, E], bias [F]
  LinearWeights up;    // [F, E], bias [F]
  LinearWeights down;  // [E, F], bias [E]
};

// How a row's router logits become the experts that it goes through, and their weights.
struct ExpertRouting {
  enum class Scores {
    kSoftmax,  // of all logits of the row
    kSigmoid,  // of each logit by itself [deepseek v3]
  };
  Scores scores = Scores::kSoftmax;
  int64_t num_chosen = 1;          // those of the highest scores; of equal ones as ChooseExperts says
  ConstTensorView selection_bias;  // [X] f32, or absent: joins the scores for the choice, not in the weights
  bool normalised = true;          // weights are scores over their sum: of kSoftmax, the softmax of the chosen logits
  float scale = 1.0f;              // of the weights
};

// out = or += for each row the sum over its chosen experts of weight * down(activation(gate(x), up(x))). What experts
// that nobody has chosen hold is not read.
struct ExpertsArgs {
  ConstTensorView x;       // [T, E] f32
  ConstTensorView logits;  // [T, X] f32, the router's
  ExpertRouting routing;
  ActivateArgs::Kind activation = ActivateArgs::Kind::kGatedSilu;  // a gated one
  std::span<const ExpertWeights> experts;                          // [X], adopted, of one F
  TensorView out;                                                  // [T, E] f32, other memory than x
  MatMulArgs::Write write = MatMulArgs::Write::kStore;
  Compute compute = Compute::kF32;

  int64_t ffn_dim() const { return experts.front().up.weight.shape[0]; }  // F
};

// x = sigmoid(gate) * x, one number for each row: how much of a shared expert a token takes [qwen 2 moe].
struct GateRowsArgs {
  ConstTensorView gate;  // [T, 1] f32
  TensorView x;          // [T, F] f32, in place
};

// x = clamp(x, -limit, limit)
struct ClampArgs {
  TensorView x;  // f32
  float limit = 0;
};

// x = cap * tanh(x / cap): a clamp with soft ends, of logits [gemma 2 §2, arXiv 2408.00118].
struct SoftCapArgs {
  TensorView x;  // f32
  float cap = 0;
};

// out[i] = x[rows[i]]
struct GatherRowsArgs {
  ConstTensorView x;              // [T, E] f32
  std::span<const int32_t> rows;  // [R]
  TensorView out;                 // [R, E] f32
};

// A token drawn from each row of logits (tensor/token_draw.h).
struct DrawTokensArgs {
  TensorView logits;                 // [R, V] f32; of draws that have edits they mean nothing afterwards
  std::span<const TokenDraw> draws;  // [R]
  TensorView ids;                    // [R] i32; -1 where one of the row's logits is not finite
  TensorView arriving_ids = {};      // [R] i32, the same once more, where Device::Arriving has memory; absent: nowhere
  // Natural logarithms of what the softmax of logits as they came gives the drawn id, then its highest ones, of equal
  // ones the lowest id first; of rows whose num_top says so. N is the largest num_top. Absent: nobody wants them.
  TensorView logprobs = {};  // [R, 1 + N] f32
  TensorView top_ids = {};   // [R, N] i32, the ids of the highest; absent where N is 0
};
// Of a device whose memory the host may read, once its queue is done.
void DrawTokensOnHost(const DrawTokensArgs& args);

// ---- the KV cache ---------------------------------------------------------------------------------------------------

// Of layer `layer_idx` of a step that BeginStep was given: every (sequence, KV head) of it exactly once, whatever its
// rule.

// Writes this step's keys and values into their pages, in the heads' formats. Of a head that reads blocks (KvBlockReads
// in backend/kv_step.h) the bounds of their blocks too: for every dimension the least and the largest number that the
// block's keys have there, as they are stored, rounded to f16 downwards and upwards. Numbers beyond what f16 holds
// count as its largest; where one is none, neither is the bound. Blocks that have representatives have no bounds.
struct AppendKvArgs {
  const KvStep* step = nullptr;
  int64_t layer_idx = 0;
  ConstTensorView k;  // [T, Hkv*D] f32, rotated
  ConstTensorView v;  // [T, Hkv*D] f32
};

// Pages into others as they are, of the same space: step->copies.
struct CopyPagesArgs {
  const KvStep* step = nullptr;
};

// Makes complete pages of the layer smaller: the kQ8 page `from` becomes the kQ4 page `to`, of the same head_dim and
// page_tokens (step->AgesOf). Values that are not numbers stay so: they spread over what they share a scale with.
struct AgeKvArgs {
  const KvStep* step = nullptr;
  int64_t layer_idx = 0;
};

// softmax(scale q k^T + alibi, with an optional sink logit in the denominator) v. Every head of every sequence is in
// one work list, whatever its rule.
//
// Of a head that reads blocks the query at position t >= `from` reads the blocks of its B tokens that follow [quest
// §3.2], where these are fewer than there are: the `first` first; the newest, of which it reads the tokens up to its
// own; and of those between them the most - 1 with the highest bounds, of equal ones the later. The bound of a block is
// the most that a key between its bounds could give: sum over d of max(q_d low_d, q_d high_d), of the G query heads of
// the group the largest. What is no number is above all bounds.
//
// Where blocks have representatives [infllm §3.2] the `newest` newest are always read, and of those before them the
// others that fit, by their products with the sum of the group's queries at t: of a block the mean of its R
// representatives, rounded to f16. These are the tokens whose keys have the largest products with the sum of all
// queries of the group in the newest - 1 blocks behind theirs, of equal ones the earlier. They are settled when the
// last of these blocks is complete: before its queries attend, a step adds them to the sums of their blocks, one after
// the other.
struct AttentionArgs {
  const KvStep* step = nullptr;
  int64_t layer_idx = 0;
  ConstTensorView q;             // [T, Hq*D] f32, rotated at the text position
  ConstTensorView q_sink;        // [T, Hq*D] f32, rotated at SinkPos: sinks are read with it; absent: with q
  TensorView out;                // [T, Hq*D] f32
  TensorView lse;                // [T, Hq] f32: natural log of the denominator; absent when nobody needs it
  ConstTensorView alibi_slopes;  // [Hq] f32, or absent: score += slope * (j - t), for sinks slope * (j - SinkPos(t))
  ConstTensorView sink_logits;   // [Hq] f32, or absent: exp(logit) joins the denominator [streaming-llm §3.3 eq.2]
  int64_t num_q_heads = 0;       // Hq
  float scale = 1.0f;
  // Where it is not 0, cap * tanh(scale q k^T / cap) in place of scale q k^T; never with ALiBi.
  float score_cap = 0.0f;
  Compute compute = Compute::kF32;

  int64_t head_dim() const { return q.shape[1] / num_q_heads; }       // D
  int64_t group() const { return num_q_heads / step->num_kv_heads; }  // G
};

// The compensation token [razor §3.3 eq.4-5]. For each head that folds, in order of positions: token t - recent (if >=
// sink) is folded into the running mean of keys and of values, then the query at t reads the mean as one more key with
// log(n) added to its score, n = tokens folded so far. `out` and `lse` hold the attention over kept keys and are
// updated. Where queries do not read the mean, only the folding is done: around the cut at the end of the prompt, or
// with q absent. A mean of no tokens may hold anything. Of heads that select by score see backend/dropped_mean.h.
struct CompensateArgs {
  const KvStep* step = nullptr;
  int64_t layer_idx = 0;
  ConstTensorView q;  // as in AttentionArgs, or absent
  TensorView out;
  TensorView lse;
  // [Hq] f32, or absent. The mean's score is the mean of its tokens' scores, so its bias is slope * (their mean
  // position - t).
  ConstTensorView alibi_slopes;
  int64_t num_q_heads = 0;
  float scale = 1.0f;
  float score_cap = 0.0f;  // as in AttentionArgs; log(n) is added behind it

  int64_t group() const { return num_q_heads / step->num_kv_heads; }  // G
};

// The score that a marked token is noted with: special tokens before all others, then punctuation.
constexpr float ScoreOfMark(const KvSelection& selection, TokenMark mark) {
  if (mark == TokenMark::kOther || mark > selection.keeps_marked) return 0.0f;
  return mark == TokenMark::kSpecial ? 0x1p+120f : 0x1p+100f;
}

// Heads that choose by score which tokens they keep: behind the attention of a step, for every head of the
// layer that selects (KvSelection in backend/kv_step.h), in this order.
//
// 1. The step's tokens are noted: their positions, and scores of 0. Of heads that keep marked tokens (keeps_marked)
//    tokens with such a mark begin with ScoreOfMark instead, to which no sum of probabilities adds anything. It is
//    finite, so that sums of it would be too.
// 2. Scores. Query i of query head h gives the token in slot j <= first_pos + i the probability that attention gave it,
//    p = exp(score - lse), summed over the G query heads of the group. kSum adds that of every query at
//    observe_begin <= t < observe_end to what the token has, query by query; kLast sets it to that of the last query.
//    kLast only where tokens go, which nobody could tell from the outside. kKeyNorm gives the step's own tokens minus
//    the Euclidean length of their keys as they are stored, and looks at no query. Neither does kKeyDiff, which, where
//    tokens go, gives each minus the cosine between its key k and the sum of k / |k| over all slots; 0 where one of the
//    two has no length. kExpected takes the step's observed queries of a query head, n of them, turned to positions to
//    come (q_ahead), for draws from a normal distribution of their mean m and covariance S [expected §3]: with
//    e = scale m k + scale^2 / 2 k S k, a the softmax of e over slots from keep_first on and A its mean over the group,
//    it adds n (A + epsilon), and where tokens go scores are that times |v|, v being the token's value. score_cap is
//    left out; slots are positions.
// 3. Where there are more than `most` tokens, num_slots - most of them go: those of the lowest scores, the earlier in
//    the text where scores are equal. Tokens before position keep_first and the keep_newest newest stay. With a kernel
//    of k > 1 a token's score is the largest, or the mean, of those (k - 1) / 2 slots around it, itself included, and
//    those of the newest that always stay are left out; of a mean the missing count as 0. What is no number is below
//    all scores. Requires there: slots are in the order of the text, as they are while nothing was dropped.
// 4. Tokens in slots from `most` on that stay move into the slots of those that go, both ascending, bit for bit: their
//    codes, positions and scores.
//
// Where tokens go of heads that share (KvSelection::shares), `most` is what these heads have on average, and a head's
// own is `most` and P times the pages that it gains, GainedPages in backend/page_shares.h. What is counted there of
// each head are those of the highest scores among the tokens of all these heads that may go, as many as all of
// them may keep; of equal scores the earlier in the text goes, then that of the lower head. Behind step 4 the pages
// of heads that gain change places with pages that others gave up (ForGivenPages there): the content of the former is
// in the latter, and `gained` of the step says how many.
struct SelectKvArgs {
  const KvStep* step = nullptr;
  int64_t layer_idx = 0;
  ConstTensorView q;             // as in AttentionArgs, or absent: no query is observed
  ConstTensorView lse;           // [T, Hq] f32, of Attention
  ConstTensorView q_ahead = {};  // as q; absent: q, where positions turn nothing
  int64_t num_q_heads = 0;
  float scale = 1.0f;
  float score_cap = 0.0f;  // as in AttentionArgs

  int64_t group() const { return num_q_heads / step->num_kv_heads; }  // G
};

// Aborts (HW_CHECK) when shapes or dtypes do not fit: a caller's bug, never input.
void Validate(const EmbedArgs& args);
void Validate(const NormArgs& args);
void Validate(const MatMulArgs& args);
void Validate(const RopeArgs& args);
void Validate(const ActivateArgs& args);
void Validate(const ExpertsArgs& args);
void Validate(const GateRowsArgs& args);
void Validate(const ClampArgs& args);
void Validate(const SoftCapArgs& args);
void Validate(const GatherRowsArgs& args);
void Validate(const DrawTokensArgs& args);
void Validate(const KvStep& step);  // what its operations rest on
void Validate(const AppendKvArgs& args);
void Validate(const CopyPagesArgs& args);
void Validate(const AgeKvArgs& args);
void Validate(const AttentionArgs& args);
void Validate(const CompensateArgs& args);
void Validate(const SelectKvArgs& args);

}  // namespace headwise

#endif  // HEADWISE_BACKEND_OPS_H_
