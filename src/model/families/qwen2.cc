// Qwen2 and Qwen2.5: Llama's block with biases on q, k and v.
#include "model/families/config_reader.h"
#include "model/families/families.h"
#include "model/families/llama_like.h"
#include "model/families/qwen_windows.h"
#include "model/families/rope_reader.h"

namespace headwise {
namespace {

constexpr ShapeDefaults kDefaults = {.vocab = 151936,
                                     .hidden = 4096,
                                     .ffn = 22016,
                                     .layers = 32,
                                     .q_heads = 32,
                                     .kv_heads = 32,
                                     .trained_length = 32768};

Result<ModelConfig> ReadConfig(const JsonObject& config) {
  ModelConfig model;
  HW_RETURN_IF_ERROR(ReadLlamaLikeConfig(config, {}, kDefaults, model));
  HW_RETURN_IF_ERROR(ReadRope(config, {}, model));
  HW_RETURN_IF_ERROR(RequireBool(config, "use_mrope", false, false));
  HW_RETURN_IF_ERROR(RequireBool(config, "attention_bias", true, true));
  HW_RETURN_IF_ERROR(RequireBool(config, "mlp_bias", false, false));
  HW_RETURN_IF_ERROR(ReadQwenWindows(config, model));
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
