// What several families' config.json have in common, under the key names of transformers 4 and of 5. An absent key has
// the value that the family's Hugging Face config class gives it. What the engine cannot do is refused by name.
#ifndef HEADWISE_MODEL_FAMILIES_CONFIG_READER_H_
#define HEADWISE_MODEL_FAMILIES_CONFIG_READER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "model/model_config.h"

namespace headwise {

// The keys of a shape, as a family spells them; null: the family has no such key.
struct ShapeKeys {
  const char* hidden = "hidden_size";
  const char* ffn = "intermediate_size";
  const char* layers = "num_hidden_layers";
  const char* q_heads = "num_attention_heads";
  const char* kv_heads = "num_key_value_heads";
  const char* head_dim = "head_dim";
  const char* trained_length = "max_position_embeddings";
};

// Values of absent keys; 0: the key is required.
struct ShapeDefaults {
  int64_t vocab = 0;
  int64_t hidden = 0;
  int64_t ffn = 0;
  int64_t layers = 0;
  int64_t q_heads = 0;
  int64_t kv_heads = 0;  // 0: as many as query heads
  int64_t head_dim = 0;  // 0: hidden / heads
  int64_t trained_length = 0;
  std::optional<int32_t> bos = {};
  std::optional<int32_t> eos = {};
  bool tied_embeddings = false;
};

// Sizes, heads (head_dim defaults to hidden / heads), vocabulary, trained length, token ids, tied embeddings, softmax
// scale 1 / sqrt(D), zero sink; layers without windows or rotation. Refuses quantised checkpoints. Every size that it
// leaves in `model` is 1 to 2^31 - 1, heads at most kMaxHeads, layers at most kMaxLayers.
Status ReadShape(const JsonObject& config, const ShapeKeys& keys, const ShapeDefaults& defaults, ModelConfig& model);

// A size: 1 to 2^31 - 1. With `if_absent` 0 the key is required.
Result<int64_t> ReadSize(const JsonObject& config, const char* key, int64_t if_absent);

// One token id or a list of them, each below `vocab_size`; -1, which is how some configs write "none", adds nothing.
// Requires: config.Has(key).
Result<std::vector<int32_t>> ReadTokenIds(const JsonObject& config, const char* key, int64_t vocab_size);

// More than any model has; families make lists of this length before the config as a whole is validated.
inline constexpr int64_t kMaxHeads = 4096;

enum class LayerType { kFull, kSliding };
// "layer_types": [num_layers], or none in older configs.
Result<std::optional<std::vector<LayerType>>> ReadLayerTypes(const JsonObject& config, int64_t num_layers);
// Gives the window to the layers that slide; none where a layer slides is an error. Requires: a type for every layer.
Status SetWindows(const JsonObject& config, const std::vector<LayerType>& types, std::optional<int64_t> window,
                  ModelConfig& model);
// The same by "layer_types", or without them for all layers.
Status SetSlidingWindow(const JsonObject& config, std::optional<int64_t> window, ModelConfig& model);

// A number above 0, or none where the key is null.
Result<std::optional<double>> ReadPositive(const JsonObject& config, const char* key, std::optional<double> if_absent);

// An option that is only supported at one value: any other is refused by name rather than ignored.
Status RequireBool(const JsonObject& config, const char* key, bool value_if_absent, bool supported);

using ActivationNames = std::vector<std::pair<std::string, MlpKind>>;
// hidden_act and its like: one of `names`, or an error that lists them.
Result<MlpKind> ReadActivation(const JsonObject& config, const char* key, const std::string& if_absent,
                               const ActivationNames& names);
// silu, of the families with a gate.
const ActivationNames& GatedNames();
// The tanh approximation of GELU, of others with a gate.
const ActivationNames& GatedGeluNames();
// gelu, gelu_new, gelu_fast, ... of the families without.
const ActivationNames& GeluNames();

// Slopes 2^(-max_bias (h + 1) / n) with n the heads rounded up to a power of two; where that is not the number of
// heads, in the order 1, 3, 5, ..., 0, 2, 4, ... of the n [MPT].
std::vector<float> MptAlibiSlopes(int64_t num_heads, double max_bias);
// The slopes of the largest power of two below, then every other one of twice that [ALiBi paper; falcon, baichuan].
std::vector<float> PaperAlibiSlopes(int64_t num_heads);

}  // namespace headwise

#endif  // HEADWISE_MODEL_FAMILIES_CONFIG_READER_H_
