// Mixtral: Mistral's block with a mixture of experts in every layer; a token's weights are the softmax of the logits of
// those that it goes through [arXiv 2401.04088 §2.1].
#include "model/families/config_reader.h"
#include "model/families/families.h"
#include "model/families/llama_like.h"
#include "model/families/rope_reader.h"

namespace headwise {
namespace {

constexpr ShapeDefaults kDefaults = {.vocab = 32000,
                                     .hidden = 4096,
                                     .ffn = 14336,
                                     .layers = 32,
                                     .q_heads = 32,
                                     .kv_heads = 8,
                                     .trained_length = 131072,
                                     .bos = 1,
                                     .eos = 2};
constexpr ExpertKeys kExperts = {.num_experts = "num_local_experts",
                                 .ffn = "intermediate_size",
                                 .default_experts = 8,
                                 .default_chosen = 2,
                                 .default_ffn = 14336};

Result<ModelConfig> ReadConfig(const JsonObject& config) {
  ModelConfig model;
  HW_RETURN_IF_ERROR(ReadLlamaLikeConfig(config, {}, kDefaults, model));
  // Absent, it is not Llama's.
  HW_ASSIGN_OR_RETURN(model.norm_eps, config.DoubleOr("rms_norm_eps", 1e-5));
  HW_RETURN_IF_ERROR(ReadRope(config, {.default_theta = 1e6}, model));
  HW_RETURN_IF_ERROR(RequireBool(config, "attention_bias", false, false));
  std::optional<int64_t> window;
  if (config.Has("sliding_window")) {
    HW_ASSIGN_OR_RETURN(window, ReadSize(config, "sliding_window", 0));
  }
  HW_RETURN_IF_ERROR(SetSlidingWindow(config, window, model));
  HW_RETURN_IF_ERROR(ReadExpertsConfig(config, kExperts, model));
  return model;
}

// Published checkpoints have a module for each expert; transformers 5 may write its own tensors for all.
Result<ModelWeights> ReadWeights(const ModelConfig& config, const WeightSource& source) {
  if (source.Has("model.layers.0.mlp.gate.weight")) return ReadLlamaLikeWeights(config, source, {});
  const ExpertTensors published = {
      .router = "block_sparse_moe.gate", .experts = "block_sparse_moe.experts", .gate = "w1", .up = "w3", .down = "w2"};
  return ReadLlamaLikeWeights(config, source, {.experts = published});
}

}  // namespace

const ModelFamily kMixtralFamily = {
    .name = "mixtral",
    .other_names = {},
    .description = "Mixtral",
    .read_config = ReadConfig,
    .read_weights = ReadWeights,
};

}  // namespace headwise
