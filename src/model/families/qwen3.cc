// Qwen3: Llama's block with a norm of each head's queries and keys, and head_dim as a key of its own.
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
                                     .head_dim = 128,
                                     .trained_length = 32768};

Result<ModelConfig> ReadConfig(const JsonObject& config) {
  ModelConfig model;
  HW_RETURN_IF_ERROR(ReadLlamaLikeConfig(config, {}, kDefaults, model));
  HW_RETURN_IF_ERROR(ReadRope(config, {}, model));
  HW_RETURN_IF_ERROR(RequireBool(config, "mlp_bias", false, false));
  HW_RETURN_IF_ERROR(ReadQwenWindows(config, model));
  HW_ASSIGN_OR_RETURN(model.qkv_bias, config.BoolOr("attention_bias", false));
  model.o_bias = model.qkv_bias;
  model.qk_norm = QkNorm::kHeads;
  return model;
}

}  // namespace

const ModelFamily kQwen3Family = {
    .name = "qwen3",
    .other_names = {},
    .description = "Qwen3, its dense models",
    .read_config = ReadConfig,
    .read_weights = ReadLlamaWeights,
};

}  // namespace headwise
