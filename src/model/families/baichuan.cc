// Baichuan: Llama's block with one packed W_pack. 7B rotates positions, 13B has ALiBi; the config of the first names
// its trained length max_position_embeddings, that of the second model_max_length only. Baichuan2, told apart by its
// vocabulary, scales every row of the output matrix to length 1.
#include <fmt/format.h>

#include "model/families/config_reader.h"
#include "model/families/families.h"
#include "model/families/llama_like.h"
#include "model/families/rope_reader.h"

namespace headwise {
namespace {

constexpr int64_t kBaichuan2Vocabulary = 125696;

// Sizes have no defaults: the two models share a model_type, so there is nothing to fall back on.
constexpr ShapeDefaults kDefaults = {.bos = 1, .eos = 2};

// The published 13B sizes mean ALiBi even in a config that somebody gave the other length's key.
bool Has13BSizes(const ModelConfig& model) {
  return model.model_dim == 5120 && model.num_q_heads == 40;
}

Result<ModelConfig> ReadConfig(const JsonObject& config) {
  ModelConfig model;
  const char* length_key = config.Has("max_position_embeddings") ? "max_position_embeddings" : "model_max_length";
  HW_RETURN_IF_ERROR(ReadLlamaLikeConfig(config, {.trained_length = length_key}, kDefaults, model));
  if (config.Has("max_position_embeddings") && !Has13BSizes(model)) {
    HW_RETURN_IF_ERROR(ReadRope(config, {}, model));
    return model;
  }
  model.positions = PositionKind::kAlibi;
  model.alibi_slopes = PaperAlibiSlopes(model.num_q_heads);
  return model;
}

Result<ModelWeights> ReadWeights(const ModelConfig& config, const WeightSource& source) {
  HW_ASSIGN_OR_RETURN(ModelWeights weights, ReadLlamaLikeWeights(config, source, {.fused_qkv = "self_attn.W_pack"}));
  if (config.vocab_size == kBaichuan2Vocabulary) {
    WeightReader reader(config, source, weights);
    weights.output.weight = reader.NormalizedRows(weights.output.weight.rows());
  }
  return weights;
}

}  // namespace

const ModelFamily kBaichuanFamily = {
    .name = "baichuan",
    .other_names = {},
    .description = "Baichuan and Baichuan2, 7B (RoPE) and 13B (ALiBi)",
    .read_config = ReadConfig,
    .read_weights = ReadWeights,
};

}  // namespace headwise
