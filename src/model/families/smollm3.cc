// SmolLM3: Llama's block, but every fourth layer knows no positions [NoPE, arXiv 2501.18795].
#include <fmt/format.h>

#include "model/families/config_reader.h"
#include "model/families/families.h"
#include "model/families/llama_like.h"
#include "model/families/rope_reader.h"

namespace headwise {
namespace {

constexpr ShapeDefaults kDefaults = {.vocab = 128256,
                                     .hidden = 2048,
                                     .ffn = 11008,
                                     .layers = 36,
                                     .q_heads = 16,
                                     .kv_heads = 4,
                                     .trained_length = 32768,
                                     .bos = 128000,
                                     .eos = 128001,
                                     .tied_embeddings = true};

// "no_rope_layers": 1 for a layer that is rotated, 0 for one that is not; or every layer of an interval's end.
Status ReadUnrotated(const JsonObject& config, ModelConfig& model) {
  constexpr const char* kLayers = "no_rope_layers";
  constexpr const char* kInterval = "no_rope_layer_interval";
  HW_ASSIGN_OR_RETURN(const int64_t interval, ReadSize(config, kInterval, 4));
  std::vector<double> is_rotated;
  if (config.Has(kLayers)) {
    HW_ASSIGN_OR_RETURN(is_rotated, config.Doubles(kLayers));
    if (is_rotated.size() != model.layers.size()) {
      return Status::InvalidInput(fmt::format("{}: \"{}\" has {} entries, expected one for each of {} layers",
                                              config.origin(), kLayers, is_rotated.size(), model.layers.size()));
    }
  }
  for (size_t i = 0; i < model.layers.size(); ++i) {
    const bool rotates = is_rotated.empty() ? (static_cast<int64_t>(i) + 1) % interval != 0 : is_rotated[i] != 0.0;
    if (!rotates) model.layers[i].rope.reset();
  }
  return Status::Ok();
}

Result<ModelConfig> ReadConfig(const JsonObject& config) {
  ModelConfig model;
  HW_RETURN_IF_ERROR(ReadLlamaLikeConfig(config, {}, kDefaults, model));
  HW_RETURN_IF_ERROR(ReadRope(config, {.default_theta = 2000000.0}, model));
  HW_RETURN_IF_ERROR(ReadUnrotated(config, model));
  HW_ASSIGN_OR_RETURN(model.qkv_bias, config.BoolOr("attention_bias", false));
  model.o_bias = model.qkv_bias;
  HW_ASSIGN_OR_RETURN(model.mlp_bias, config.BoolOr("mlp_bias", false));
  HW_ASSIGN_OR_RETURN(const bool use_window, config.BoolOr("use_sliding_window", false));
  std::optional<int64_t> window;
  if (use_window && config.Has("sliding_window")) {
    HW_ASSIGN_OR_RETURN(window, ReadSize(config, "sliding_window", 0));
  }
  HW_ASSIGN_OR_RETURN(const auto types, ReadLayerTypes(config, model.num_layers));
  if (types) {
    HW_RETURN_IF_ERROR(SetWindows(config, *types, window, model));
    return model;
  }
  for (LayerConfig& layer : model.layers) {
    if (!layer.rope) layer.window = window;
  }
  return model;
}

}  // namespace

const ModelFamily kSmolLm3Family = {
    .name = "smollm3",
    .other_names = {},
    .description = "SmolLM3",
    .read_config = ReadConfig,
    .read_weights = ReadLlamaWeights,
};

}  // namespace headwise
