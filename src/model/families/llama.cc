// Llama 1 to 3.x and the many models of its architecture: MHA or GQA; rope plain, linear, dynamic NTK, llama3, YaRN or
// LongRoPE; optional biases; optional sink logits: "zero_sink" (softmax-off-by-one [streaming-llm §3.3 eq.2]) or
// learned ones per query head ("attention_sinks", tensors self_attn.sinks).
#include "model/families/config_reader.h"
#include "model/families/families.h"
#include "model/families/llama_like.h"
#include "model/families/rope_reader.h"

namespace headwise {
namespace {

constexpr ShapeDefaults kDefaults = {.vocab = 32000,
                                     .hidden = 4096,
                                     .ffn = 11008,
                                     .layers = 32,
                                     .q_heads = 32,
                                     .trained_length = 2048,
                                     .bos = 1,
                                     .eos = 2};

Result<ModelConfig> ReadConfig(const JsonObject& config) {
  ModelConfig model;
  HW_RETURN_IF_ERROR(ReadLlamaLikeConfig(config, {}, kDefaults, model));
  HW_RETURN_IF_ERROR(ReadRope(config, {}, model));
  HW_RETURN_IF_ERROR(SetSlidingWindow(config, std::nullopt, model));
  HW_ASSIGN_OR_RETURN(model.qkv_bias, config.BoolOr("attention_bias", false));
  model.o_bias = model.qkv_bias;
  HW_ASSIGN_OR_RETURN(model.mlp_bias, config.BoolOr("mlp_bias", false));
  return model;
}

}  // namespace

const ModelFamily kLlamaFamily = {
    .name = "llama",
    .other_names = {},
    .description = "Llama and models of its architecture",
    .read_config = ReadConfig,
    .read_weights = ReadLlamaWeights,
};

}  // namespace headwise
