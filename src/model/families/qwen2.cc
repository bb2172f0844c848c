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

// The window of all layers or of none. The layers below max_window_layers have none, unless layer_types says which.
Result<std::optional<int64_t>> ReadWindow(const JsonObject& config, int64_t num_layers) {
  std::optional<int64_t> window;
  HW_ASSIGN_OR_RETURN(const bool use_window, config.BoolOr("use_sliding_window", false));
  const bool null_window = config.Names("sliding_window") && !config.Has("sliding_window");
  if (!use_window || null_window) return window;
  HW_ASSIGN_OR_RETURN(window, ReadSize(config, "sliding_window", 4096));
  HW_ASSIGN_OR_RETURN(const auto type, ReadLayerTypes(config, num_layers));
  if (type) return *type == LayerType::kSliding ? window : std::nullopt;
  HW_ASSIGN_OR_RETURN(const int64_t first, config.IntOr("max_window_layers", 28));
  if (first <= 0) return window;
  if (first >= num_layers) return std::optional<int64_t>();
  return Status::Unsupported(
      fmt::format("{}: a sliding window from layer {} of {} on is not supported, expected all layers or none",
                  config.origin(), first, num_layers));
}

Result<ModelConfig> ReadConfig(const JsonObject& config) {
  ModelConfig model;
  HW_RETURN_IF_ERROR(ReadLlamaLikeConfig(config, {}, kDefaults, model));
  HW_RETURN_IF_ERROR(ReadRope(config, {}, model));
  HW_RETURN_IF_ERROR(RequireBool(config, "use_mrope", false, false));
  HW_RETURN_IF_ERROR(RequireBool(config, "attention_bias", true, true));
  HW_RETURN_IF_ERROR(RequireBool(config, "mlp_bias", false, false));
  HW_ASSIGN_OR_RETURN(const std::optional<int64_t> window, ReadWindow(config, model.num_layers));
  HW_RETURN_IF_ERROR(SetSlidingWindow(config, window, model));
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
