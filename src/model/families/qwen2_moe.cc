// Qwen1.5 and Qwen2's mixtures of experts: the block of Qwen2, and beside the experts an MLP that all tokens go
// through, of which each takes as much as a gate of its own says.
#include "model/families/config_reader.h"
#include "model/families/families.h"
#include "model/families/llama_like.h"
#include "model/families/qwen_windows.h"
#include "model/families/rope_reader.h"

namespace headwise {
namespace {

constexpr ShapeDefaults kDefaults = {
    .vocab = 151936, .hidden = 2048, .ffn = 5632, .layers = 24, .q_heads = 16, .kv_heads = 16, .trained_length = 32768};
constexpr ExpertKeys kExperts = {.default_experts = 60, .default_chosen = 4, .default_ffn = 1408};

Result<ModelConfig> ReadConfig(const JsonObject& config) {
  ModelConfig model;
  HW_RETURN_IF_ERROR(ReadLlamaLikeConfig(config, {}, kDefaults, model));
  HW_RETURN_IF_ERROR(ReadRope(config, {}, model));
  HW_RETURN_IF_ERROR(RequireBool(config, "use_mrope", false, false));
  // Versions of transformers do not agree on which layers have a window; published models have none.
  if (!config.Has("layer_types")) HW_RETURN_IF_ERROR(RequireBool(config, "use_sliding_window", false, false));
  HW_RETURN_IF_ERROR(ReadQwenWindows(config, model));
  HW_RETURN_IF_ERROR(ReadExpertsConfig(config, kExperts, model));
  HW_RETURN_IF_ERROR(ReadSparseLayers(config, model));
  HW_RETURN_IF_ERROR(ReadNormalised(config, model));
  HW_ASSIGN_OR_RETURN(model.experts.shared_ffn_dim, ReadSize(config, "shared_expert_intermediate_size", 5632));
  model.experts.has_shared_gate = true;
  HW_ASSIGN_OR_RETURN(model.qkv_bias, config.BoolOr("qkv_bias", true));
  return model;
}

}  // namespace

const ModelFamily kQwen2MoeFamily = {
    .name = "qwen2_moe",
    .other_names = {},
    .description = "Qwen1.5 and Qwen2, their mixtures of experts",
    .read_config = ReadConfig,
    .read_weights = ReadLlamaWeights,
};

}  // namespace headwise
