// Phi-3 to Phi-4: Llama's block with query, key and value rows in one matrix, gate and up in another; LongRoPE.
#include "model/families/config_reader.h"
#include "model/families/families.h"
#include "model/families/llama_like.h"
#include "model/families/rope_reader.h"

namespace headwise {
namespace {

constexpr ShapeDefaults kDefaults = {.vocab = 32064,
                                     .hidden = 3072,
                                     .ffn = 8192,
                                     .layers = 32,
                                     .q_heads = 32,
                                     .trained_length = 4096,
                                     .bos = 1,
                                     .eos = 32000};

Result<ModelConfig> ReadConfig(const JsonObject& config) {
  ModelConfig model;
  HW_RETURN_IF_ERROR(ReadLlamaLikeConfig(config, {}, kDefaults, model));
  HW_ASSIGN_OR_RETURN(model.norm_eps, config.DoubleOr("rms_norm_eps", 1e-5));
  HW_RETURN_IF_ERROR(ReadRope(config, {.share = "partial_rotary_factor", .yarn_is_longrope = true}, model));
  HW_RETURN_IF_ERROR(RequireBool(config, "attention_bias", false, false));
  HW_RETURN_IF_ERROR(RequireBool(config, "mlp_bias", false, false));
  std::optional<int64_t> window;
  if (config.Has("sliding_window")) {
    HW_ASSIGN_OR_RETURN(window, ReadSize(config, "sliding_window", 0));
  }
  HW_RETURN_IF_ERROR(SetSlidingWindow(config, window, model));
  return model;
}

Result<ModelWeights> ReadWeights(const ModelConfig& config, const WeightSource& source) {
  return ReadLlamaLikeWeights(config, source, {.fused_qkv = "self_attn.qkv_proj", .fused_gate_up = "mlp.gate_up_proj"});
}

}  // namespace

const ModelFamily kPhi3Family = {
    .name = "phi3",
    .other_names = {},
    .description = "Phi-3, Phi-3.5 and Phi-4, their dense text models",
    .read_config = ReadConfig,
    .read_weights = ReadWeights,
};

}  // namespace headwise
