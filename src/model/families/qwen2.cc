// Qwen2 and Qwen2.5: Llama's block with biases on q, k and v.
#include "model/families/config_reader.h"
#include "model/families/families.h"
#include "model/families/llama_like.h"

namespace headwise {
namespace {

Result<ModelConfig> ReadConfig(const JsonObject& config) {
  ModelConfig model;
  HW_RETURN_IF_ERROR(ReadLlamaLikeConfig(config, /*default_length=*/32768, model));
  HW_RETURN_IF_ERROR(ReadRope(config, /*default_theta=*/10000.0, /*rotary_share=*/1.0, model));
  // With it, only the layers from max_window_layers on would have a window.
  HW_RETURN_IF_ERROR(RequireBool(config, "use_sliding_window", false, false));
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
