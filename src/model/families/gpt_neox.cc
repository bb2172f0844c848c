// GPT-NeoX (Pythia): LayerNorm, partial rotary, attention and MLP in parallel (or not), each with its own norm; rows of
// query_key_value are [head][q, k, v][head_dim].
#include <fmt/format.h>

#include "model/families/config_reader.h"
#include "model/families/families.h"
#include "model/families/rope_reader.h"
#include "model/families/weight_reader.h"

namespace headwise {
namespace {

constexpr ShapeDefaults kDefaults = {.vocab = 50432,
                                     .hidden = 6144,
                                     .ffn = 24576,
                                     .layers = 44,
                                     .q_heads = 64,
                                     .trained_length = 2048,
                                     .bos = 0,
                                     .eos = 2};

Result<ModelConfig> ReadConfig(const JsonObject& config) {
  ModelConfig model;
  HW_RETURN_IF_ERROR(ReadShape(config, {.kv_heads = nullptr, .head_dim = nullptr}, kDefaults, model));
  HW_RETURN_IF_ERROR(RequireBool(config, "attention_sinks", false, false));
  model.norm = NormKind::kLayer;
  model.norm_bias = true;
  HW_ASSIGN_OR_RETURN(model.norm_eps, config.DoubleOr("layer_norm_eps", 1e-5));
  HW_ASSIGN_OR_RETURN(model.mlp, ReadActivation(config, "hidden_act", "gelu", GeluNames()));
  HW_ASSIGN_OR_RETURN(const bool parallel, config.BoolOr("use_parallel_residual", true));
  model.residual = parallel ? ResidualKind::kParallelTwoNorms : ResidualKind::kSerial;
  HW_ASSIGN_OR_RETURN(model.qkv_bias, config.BoolOr("attention_bias", true));
  model.o_bias = model.qkv_bias;
  model.mlp_bias = true;
  HW_RETURN_IF_ERROR(
      ReadRope(config, {.theta = "rotary_emb_base", .share = "rotary_pct", .default_share = 0.25}, model));
  return model;
}

Result<ModelWeights> ReadWeights(const ModelConfig& config, const WeightSource& source) {
  ModelWeights weights;
  WeightReader reader(config, source, weights);
  const Bias bias = config.qkv_bias ? Bias::kPresent : Bias::kNone;
  const int64_t model_dim = config.model_dim;
  HW_ASSIGN_OR_RETURN(weights.embedding, reader.Matrix("gpt_neox.embed_in.weight", config.vocab_size, model_dim));
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const std::string at = fmt::format("gpt_neox.layers.{}.", i);
    LayerWeights layer;
    HW_RETURN_IF_ERROR(reader.Norm(at + "input_layernorm", Bias::kPresent, layer.norm));
    HW_RETURN_IF_ERROR(reader.FusedQkv(at + "attention.query_key_value", FusedOrder::kGroups, bias, layer));
    HW_RETURN_IF_ERROR(reader.Linear(at + "attention.dense", model_dim, model_dim, bias, layer.o));
    HW_RETURN_IF_ERROR(reader.Norm(at + "post_attention_layernorm", Bias::kPresent, layer.mlp_norm));
    HW_RETURN_IF_ERROR(reader.Linear(at + "mlp.dense_h_to_4h", config.ffn_dim, model_dim, Bias::kPresent, layer.up));
    HW_RETURN_IF_ERROR(reader.Linear(at + "mlp.dense_4h_to_h", model_dim, config.ffn_dim, Bias::kPresent, layer.down));
    weights.layers.push_back(layer);
  }
  HW_RETURN_IF_ERROR(reader.Norm("gpt_neox.final_layer_norm", Bias::kPresent, weights.final_norm));
  HW_RETURN_IF_ERROR(reader.Output("embed_out"));
  return weights;
}

}  // namespace

const ModelFamily kGptNeoxFamily = {
    .name = "gpt_neox",
    .other_names = {},
    .description = "GPT-NeoX and Pythia",
    .read_config = ReadConfig,
    .read_weights = ReadWeights,
};

}  // namespace headwise
