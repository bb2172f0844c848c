// Qwen2 and Qwen2.5: Llama's block with biases on q, k and v.
#include <fmt/format.h>

#include "model/families/config_reader.h"
#include "model/families/families.h"
#include "model/families/llama_like.h"

namespace headwise {
namespace {

constexpr ShapeDefaults kDefaults = {.vocab = 151936,
                                     .hidden = 4096,
                                     .ffn = 22016,
                                     .layers = 32,
                                     .q_heads = 32,
                                     .kv_heads = 32,
                                     .trained_length = 32768};

// The layers from max_window_layers on have the window, or those that layer_types names.
Status ReadWindows(const JsonObject& config, ModelConfig& model) {
  HW_ASSIGN_OR_RETURN(const bool use_window, config.BoolOr("use_sliding_window", false));
  const bool null_window = config.Names("sliding_window") && !config.Has("sliding_window");
  std::optional<int64_t> window;
  if (use_window && !null_window) {
    HW_ASSIGN_OR_RETURN(window, ReadSize(config, "sliding_window", 4096));
  }
  HW_ASSIGN_OR_RETURN(const int64_t first, config.IntOr("max_window_layers", 28));
  if (first < 0) {
    return Status::InvalidInput(
        fmt::format("{}: \"max_window_layers\" is {}, expected 0 or more", config.origin(), first));
  }
  HW_ASSIGN_OR_RETURN(const auto types, ReadLayerTypes(config, model.num_layers));
  for (size_t i = 0; i < model.layers.size(); ++i) {
    const bool slides = types ? (*types)[i] == LayerType::kSliding : window && static_cast<int64_t>(i) >= first;
    if (slides && !window) {
      return Status::InvalidInput(
          fmt::format("{}: \"layer_types\" say sliding attention, but there is no window", config.origin()));
    }
    if (slides) model.layers[i].window = window;
  }
  return Status::Ok();
}

Result<ModelConfig> ReadConfig(const JsonObject& config) {
  ModelConfig model;
  HW_RETURN_IF_ERROR(ReadLlamaLikeConfig(config, {}, kDefaults, model));
  HW_RETURN_IF_ERROR(ReadRope(config, {}, model));
  HW_RETURN_IF_ERROR(RequireBool(config, "use_mrope", false, false));
  HW_RETURN_IF_ERROR(RequireBool(config, "attention_bias", true, true));
  HW_RETURN_IF_ERROR(RequireBool(config, "mlp_bias", false, false));
  HW_RETURN_IF_ERROR(ReadWindows(config, model));
  model.qkv_bias = true;
  return model;
}

}  // namespace

const ModelFamily kQwen2Family = {
    .name = "qwen2",
    .other_names = {},
    .description = "Qwen2 and Qwen2.5",
    .read_config = ReadConfig,
    .read_weights = ReadLlamaWeights,
};

}  // namespace headwise
