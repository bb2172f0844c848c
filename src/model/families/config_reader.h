// What several families' config.json have in common, under the key names of transformers 4 and of 5.
#ifndef HEADWISE_MODEL_FAMILIES_CONFIG_READER_H_
#define HEADWISE_MODEL_FAMILIES_CONFIG_READER_H_

#include <cstdint>
#include <string>
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

// Sizes, heads (KV heads default to query heads, head_dim to hidden / heads), vocabulary, trained length, token ids,
// tied embeddings, softmax scale 1 / sqrt(D). `default_length` where the trained length is not given.
Status ReadShape(const JsonObject& config, const ShapeKeys& keys, int64_t default_length, ModelConfig& model);

// rope_theta + rope_scaling, or rope_parameters. `rotary_share` of head_dim is rotated. An unknown scaling is an error.
Status ReadRope(const JsonObject& config, double default_theta, double rotary_share, ModelConfig& model);

// An option that is only supported at one value: any other is refused by name rather than ignored.
Status RequireBool(const JsonObject& config, const char* key, bool value_if_absent, bool supported);
// hidden_act and its like: one of `names`, or an error that lists them.
Result<MlpKind> ReadActivation(const JsonObject& config, const char* key, const std::string& if_absent,
                               const std::vector<std::pair<std::string, MlpKind>>& names);
// gelu, gelu_new, gelu_fast, ... of the families without a gate.
const std::vector<std::pair<std::string, MlpKind>>& GeluNames();

// Slopes 2^(-max_bias (h + 1) / n) with n the heads rounded up to a power of two; where that is not the number of
// heads, in the order 1, 3, 5, ..., 0, 2, 4, ... of the n [MPT].
std::vector<float> MptAlibiSlopes(int64_t num_heads, double max_bias);
// The slopes of the largest power of two below, then every other one of twice that [ALiBi paper; falcon, baichuan].
std::vector<float> PaperAlibiSlopes(int64_t num_heads);

}  // namespace headwise

#endif  // HEADWISE_MODEL_FAMILIES_CONFIG_READER_H_
