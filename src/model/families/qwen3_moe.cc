// Qwen3's mixtures of experts: its block, with a mixture in place of the MLP in all layers but those that the config
// names.
#include "model/families/config_reader.h"
#include "model/families/families.h"
#include "model/families/llama_like.h"
#include "model/families/rope_reader.h"

namespace headwise {
namespace {

constexpr ShapeDefaults kDefaults = {
    .vocab = 151936, .hidden = 2048, .ffn = 6144, .layers = 24, .q_heads = 32, .kv_heads = 4, .trained_length = 32768};
// transformers 5 writes the other name.
constexpr ExpertKeys kExperts = {
    .also_num_experts = "num_local_experts", .default_experts = 128, .default_chosen = 8, .default_ffn = 768};

Result<ModelConfig> ReadConfig(const JsonObject& config) {
  ModelConfig model;
  HW_RETURN_IF_ERROR(ReadLlamaLikeConfig(config, {}, kDefaults, model));
  HW_RETURN_IF_ERROR(ReadRope(config, {}, model));
  // In all layers, where it is used.
  HW_ASSIGN_OR_RETURN(const bool use_window, config.BoolOr("use_sliding_window", false));
  if (use_window && (config.Has("sliding_window") || !config.Names("sliding_window"))) {
    HW_ASSIGN_OR_RETURN(const int64_t window, ReadSize(config, "sliding_window", 4096));
    for (LayerConfig& layer : model.layers) layer.window = window;
  }
  HW_RETURN_IF_ERROR(ReadExpertsConfig(config, kExperts, model));
  HW_RETURN_IF_ERROR(ReadSparseLayers(config, model));
  HW_RETURN_IF_ERROR(ReadNormalised(config, model));
  HW_ASSIGN_OR_RETURN(model.qkv_bias, config.BoolOr("attention_bias", false));
  model.o_bias = model.qkv_bias;
  model.qk_norm = QkNorm::kHeads;
  return model;
}

}  // namespace

const ModelFamily kQwen3MoeFamily = {
    .name = "qwen3_moe",
    .other_names = {},
    .description = "Qwen3, its mixtures of experts",
    .read_config = ReadConfig,
    .read_weights = ReadLlamaWeights,
};

}  // namespace headwise
