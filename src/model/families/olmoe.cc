// OLMoE: Llama's block with norms over all heads of queries and of keys, and a mixture of experts in every layer, whose
// weights are shares of the softmax over all [arXiv 2409.02060 §2].
#include <fmt/format.h>

#include "model/families/config_reader.h"
#include "model/families/families.h"
#include "model/families/llama_like.h"
#include "model/families/rope_reader.h"

namespace headwise {
namespace {

constexpr ShapeDefaults kDefaults = {
    .vocab = 50304, .hidden = 2048, .ffn = 2048, .layers = 16, .q_heads = 16, .trained_length = 4096, .eos = 50279};
constexpr ExpertKeys kExperts = {
    .ffn = "intermediate_size", .default_experts = 64, .default_chosen = 8, .default_ffn = 2048};

Result<ModelConfig> ReadConfig(const JsonObject& config) {
  ModelConfig model;
  HW_RETURN_IF_ERROR(ReadLlamaLikeConfig(config, {}, kDefaults, model));
  // Absent, it is not Llama's.
  HW_ASSIGN_OR_RETURN(model.norm_eps, config.DoubleOr("rms_norm_eps", 1e-5));
  HW_RETURN_IF_ERROR(ReadRope(config, {}, model));
  if (config.Has("clip_qkv")) {
    return Status::Unsupported(
        fmt::format("{}: \"clip_qkv\" is there, expected none: queries and keys would be clamped behind their norms",
                    config.origin()));
  }
  HW_RETURN_IF_ERROR(RequireBool(config, "attention_bias", false, false));
  HW_RETURN_IF_ERROR(ReadExpertsConfig(config, kExperts, model));
  HW_RETURN_IF_ERROR(ReadNormalised(config, model));
  model.qk_norm = QkNorm::kRows;
  return model;
}

}  // namespace

const ModelFamily kOlmoeFamily = {
    .name = "olmoe",
    .other_names = {},
    .description = "OLMoE",
    .read_config = ReadConfig,
    .read_weights = ReadLlamaWeights,
};

}  // namespace headwise
