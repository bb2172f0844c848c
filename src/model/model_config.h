// The whole architecture of a supported model as data: one decoder loop (model/decoder.h) reads these fields; a family
// file (model/families/) fills them in from config.json.
#ifndef HEADWISE_MODEL_MODEL_CONFIG_H_
#define HEADWISE_MODEL_MODEL_CONFIG_H_

#include <headwise/head_plan.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kv/layer_windows.h"
#include "model/layer_config.h"

namespace headwise {

enum class NormKind { kRms, kLayer };

enum class MlpKind {
  kGatedSilu,         // down(silu(gate(x)) * up(x))
  kGatedGeluTanh,     // down(gelu(gate(x)) * up(x)), tanh approximation
  kGatedSiluClamped,  // what ActivateArgs::Kind has under the same name; of experts alone [gpt-oss]
  kGelu,              // down(gelu(up(x))), exact (erf)
  kGeluTanh,          // down(gelu(up(x))), tanh approximation
};
bool IsGated(MlpKind kind);

enum class ResidualKind {
  kSerial,              // x += attention(norm(x)); x += mlp(mlp_norm(x)); norms elsewhere as NormPlaces says
  kParallelSharedNorm,  // x += attention(norm(x)) + mlp(norm(x))          [falcon 7B]
  kParallelTwoNorms,    // x += attention(norm(x)) + mlp(mlp_norm(x))      [gpt_neox, falcon grouped]
};

// Where a layer of kSerial has its norms. The others have theirs before.
enum class NormPlaces {
  kBefore,  // of what attention and MLP read
  kAfter,   // of what they add to x [olmo 2]
  kBoth,    // [gemma 2, glm 4]
};

// Norms of queries and keys, of the model's kind and epsilon, before they are rotated.
enum class QkNorm {
  kNone,
  kHeads,  // of each head [D]; weights are the same for all heads [qwen 3, gemma 3] or each head's own [cohere]
  kRows,   // of all heads of a token together [Hq*D], [Hkv*D] [olmo 2]
};

enum class PositionKind {
  kRope,
  kAlibi,
  kLearned,  // a vector for each position joins the embedding [gpt2]
};

// A mixture of experts, which takes the place of the MLP in layers that have one (LayerConfig::has_experts). What is
// left of their MLP is an expert that all tokens go through.
struct ExpertsConfig {
  enum class Scores { kSoftmax, kSigmoid };
  int64_t num_experts = 0;       // X; 0: no layer has one
  int64_t num_chosen = 0;        // of a token
  int64_t ffn_dim = 0;           // F of an expert
  int64_t shared_ffn_dim = 0;    // of the MLP beside them; 0: there is none
  bool has_shared_gate = false;  // a token takes sigmoid(w x) of that [qwen 2 moe]; else all of it
  Scores scores = Scores::kSoftmax;
  bool has_selection_bias = false;  // joins scores for the choice [deepseek v3]
  bool normalised = true;           // a token's weights add up to `scale`
  double scale = 1.0;
  bool router_bias = false;
  bool bias = false;  // of experts' projections
};

struct ModelConfig {
  std::string family;  // registry name, the plan's `architecture`

  int64_t num_layers = 0;      // L
  int64_t model_dim = 0;       // E
  int64_t ffn_dim = 0;         // F, of layers without experts
  int64_t num_q_heads = 0;     // Hq
  int64_t num_kv_heads = 0;    // Hkv
  int64_t head_dim = 0;        // D
  int64_t vocab_size = 0;      // V
  int64_t trained_length = 0;  // tokens; longer prompts get a warning

  NormKind norm = NormKind::kRms;
  double norm_eps = 1e-5;
  MlpKind mlp = MlpKind::kGatedSilu;
  ResidualKind residual = ResidualKind::kSerial;
  NormPlaces norm_places = NormPlaces::kBefore;
  QkNorm qk_norm = QkNorm::kNone;
  bool tied_embeddings = false;  // the output matrix is the embedding table
  bool norm_bias = false;
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;
  ExpertsConfig experts;

  PositionKind positions = PositionKind::kRope;
  std::vector<RopeConfig> ropes;    // kRope: the different ones, few
  std::vector<LayerConfig> layers;  // [L]
  std::vector<float> alibi_slopes;  // kAlibi: [Hq], score += slope * (j - t), in the scale the model adds them:
                                    // falcon's are already times 1 / sqrt(D)
  int64_t num_positions = 0;        // kLearned: P, more than which no sequence can have
  double embedding_scale = 1.0;     // of tokens' embeddings
  double logit_scale = 1.0;         // readers put it into the last norm, so hidden states show it
  double softmax_scale = 0;         // 1 / sqrt(D) unless the model says otherwise
  std::optional<double> score_cap;  // scores become cap * tanh(score / cap) [gemma 2]
  std::optional<double> logit_cap;  // and so do logits
  std::optional<double> qkv_clip;   // q, k, v are clamped to +-this after the projection [mpt clip_qkv]
  // Sink logit per query head in the softmax denominator [streaming-llm §3.3 eq.2]: `zero_sink` means 0 everywhere;
  // learned values come with the layer's weights.
  bool zero_sink = false;
  bool learned_sinks = false;

  std::optional<int32_t> bos_id;
  std::vector<int32_t> eos_ids;

  // Layers that are all alike, as those of most models are: one rope, or none, and one window, or none.
  void SetLayersAlike(std::optional<RopeConfig> rope, std::optional<int64_t> window);
  // What every layer is, where all are alike.
  std::optional<LayerConfig> CommonLayer() const;
  const LayerConfig& layer(int64_t layer_idx) const { return layers[static_cast<size_t>(layer_idx)]; }

  // F of a layer's MLP; 0: it has none beside its experts.
  int64_t FfnDim(int64_t layer_idx) const { return layer(layer_idx).has_experts ? experts.shared_ffn_dim : ffn_dim; }
  bool AnyExperts() const { return experts.num_experts > 0; }

  int64_t q_heads_per_kv_head() const { return num_q_heads / num_kv_heads; }
  ModelShape shape() const {
    return {.architecture = family,
            .num_layers = num_layers,
            .num_q_heads = num_q_heads,
            .num_kv_heads = num_kv_heads,
            .head_dim = head_dim};
  }
};

// The windows of its layers, as everything that counts what heads keep wants them.
LayerWindows LayerWindowsOf(const ModelConfig& config);

// Every dimension positive and below 2^31, heads divide, and so on. `origin` opens the message. Parsers call it last.
Status ValidateConfig(const ModelConfig& config, const std::string& origin);

}  // namespace headwise

#endif  // HEADWISE_MODEL_MODEL_CONFIG_H_
