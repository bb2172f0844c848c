// GLM-4-0414: norms before and behind attention and MLP, half of each head rotated, in pairs, gate and up in one
// matrix.
#include "model/families/config_reader.h"
#include "model/families/families.h"
#include "model/families/llama_like.h"
#include "model/families/rope_reader.h"

namespace headwise {
namespace {

constexpr ShapeDefaults kDefaults = {.vocab = 151552,
                                     .hidden = 4096,
                                     .ffn = 13696,
                                     .layers = 40,
                                     .q_heads = 32,
                                     .kv_heads = 2,
                                     .head_dim = 128,
                                     .trained_length = 131072};

Result<ModelConfig> ReadConfig(const JsonObject& config) {
  ModelConfig model;
  HW_RETURN_IF_ERROR(ReadLlamaLikeConfig(config, {}, kDefaults, model));
  HW_ASSIGN_OR_RETURN(model.norm_eps, config.DoubleOr("rms_norm_eps", 1.5625e-7));
  HW_RETURN_IF_ERROR(ReadRope(config, {.share = "partial_rotary_factor", .default_share = 0.5}, model));
  HW_RETURN_IF_ERROR(SetSlidingWindow(config, std::nullopt, model));
  HW_ASSIGN_OR_RETURN(model.qkv_bias, config.BoolOr("attention_bias", true));
  model.norm_places = NormPlaces::kBoth;
  if (config.Names("eos_token_id")) return model;
  for (const int32_t id : {151329, 151336, 151338}) {
    if (id < model.vocab_size) model.eos_ids.push_back(id);
  }
  return model;
}

Result<ModelWeights> ReadWeights(const ModelConfig& config, const WeightSource& source) {
  return ReadLlamaLikeWeights(config, source,
                              {.post_norm = "post_self_attn_layernorm",
                               .mlp_post_norm = "post_mlp_layernorm",
                               .fused_gate_up = "mlp.gate_up_proj",
                               .rotary_order = RotaryOrder::kPairs});
}

}  // namespace

const ModelFamily kGlm4Family = {
    .name = "glm4",
    .other_names = {},
    .description = "GLM-4 of 2025 (0414), its dense models",
    .read_config = ReadConfig,
    .read_weights = ReadWeights,
};

}  // namespace headwise
