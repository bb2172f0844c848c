// StableLM: Llama's block with LayerNorm, a quarter of each head rotated; in some sizes attention and MLP in parallel
// on one norm, and a norm of every head's queries and keys, each a tensor of its own.
#include <fmt/format.h>

#include "model/families/config_reader.h"
#include "model/families/families.h"
#include "model/families/llama_like.h"
#include "model/families/rope_reader.h"

namespace headwise {
namespace {

constexpr ShapeDefaults kDefaults = {.vocab = 50304,
                                     .hidden = 2560,
                                     .ffn = 6912,
                                     .layers = 32,
                                     .q_heads = 32,
                                     .kv_heads = 32,
                                     .trained_length = 4096,
                                     .bos = 0,
                                     .eos = 0};

Result<ModelConfig> ReadConfig(const JsonObject& config) {
  ModelConfig model;
  HW_RETURN_IF_ERROR(ReadShape(config, {.head_dim = nullptr}, kDefaults, model));
  model.norm = NormKind::kLayer;
  model.norm_bias = true;
  HW_ASSIGN_OR_RETURN(model.norm_eps, config.DoubleOr("layer_norm_eps", 1e-5));
  HW_ASSIGN_OR_RETURN(model.mlp, ReadActivation(config, "hidden_act", "silu", GatedNames()));
  HW_ASSIGN_OR_RETURN(model.qkv_bias, config.BoolOr("use_qkv_bias", false));
  HW_ASSIGN_OR_RETURN(const bool is_parallel, config.BoolOr("use_parallel_residual", false));
  if (is_parallel) model.residual = ResidualKind::kParallelSharedNorm;
  HW_ASSIGN_OR_RETURN(const bool has_qk_norm, config.BoolOr("qk_layernorm", false));
  if (has_qk_norm) model.qk_norm = QkNorm::kHeads;
  HW_RETURN_IF_ERROR(ReadRope(config, {.share = "partial_rotary_factor", .default_share = 0.25}, model));
  return model;
}

Result<ModelWeights> ReadWeights(const ModelConfig& config, const WeightSource& source) {
  const bool is_parallel = config.residual == ResidualKind::kParallelSharedNorm;
  return ReadLlamaLikeWeights(config, source,
                              {.mlp_norm = is_parallel ? nullptr : "post_attention_layernorm",
                               .q_norm = "self_attn.q_layernorm.norms.{}",
                               .k_norm = "self_attn.k_layernorm.norms.{}",
                               .norms_by_head = LlamaLikeTensors::NormsByHead::kTensorsApart});
}

}  // namespace

const ModelFamily kStableLmFamily = {
    .name = "stablelm",
    .other_names = {},
    .description = "StableLM",
    .read_config = ReadConfig,
    .read_weights = ReadWeights,
};

}  // namespace headwise
