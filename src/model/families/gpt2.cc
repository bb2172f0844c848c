// GPT-2: LayerNorm, learned positions, matrices that are the transpose of everybody else's. Published folders leave out
// the "transformer." that the names begin with.
#include <fmt/format.h>

#include <cmath>

#include "model/families/config_reader.h"
#include "model/families/families.h"
#include "model/families/weight_reader.h"

namespace headwise {
namespace {

constexpr ShapeDefaults kDefaults = {.vocab = 50257,
                                     .hidden = 768,
                                     .layers = 12,
                                     .q_heads = 12,
                                     .trained_length = 1024,
                                     .bos = 50256,
                                     .eos = 50256,
                                     .tied_embeddings = true};

Result<ModelConfig> ReadConfig(const JsonObject& config) {
  ModelConfig model;
  const ShapeKeys keys = {.hidden = "n_embd",
                          .ffn = nullptr,
                          .layers = "n_layer",
                          .q_heads = "n_head",
                          .kv_heads = nullptr,
                          .head_dim = nullptr,
                          .trained_length = "n_positions"};
  HW_RETURN_IF_ERROR(ReadShape(config, keys, kDefaults, model));
  HW_ASSIGN_OR_RETURN(model.ffn_dim, ReadSize(config, "n_inner", 4 * model.model_dim));
  model.norm = NormKind::kLayer;
  model.norm_bias = true;
  HW_ASSIGN_OR_RETURN(model.norm_eps, config.DoubleOr("layer_norm_epsilon", 1e-5));
  HW_ASSIGN_OR_RETURN(model.mlp, ReadActivation(config, "activation_function", "gelu_new", GeluNames()));
  model.qkv_bias = model.o_bias = model.mlp_bias = true;
  HW_RETURN_IF_ERROR(RequireBool(config, "scale_attn_by_inverse_layer_idx", false, false));
  HW_RETURN_IF_ERROR(RequireBool(config, "add_cross_attention", false, false));
  HW_ASSIGN_OR_RETURN(const bool is_scaled, config.BoolOr("scale_attn_weights", true));
  if (!is_scaled) model.softmax_scale = 1.0;
  model.positions = PositionKind::kLearned;
  model.num_positions = model.trained_length;
  return model;
}

Result<ModelWeights> ReadWeights(const ModelConfig& config, const WeightSource& source) {
  ModelWeights weights;
  WeightReader reader(config, source, weights);
  const std::string prefix = source.Has("wte.weight") ? "" : "transformer.";
  const int64_t model_dim = config.model_dim;
  HW_ASSIGN_OR_RETURN(weights.embedding, reader.Matrix(prefix + "wte.weight", config.vocab_size, model_dim));
  HW_ASSIGN_OR_RETURN(weights.positions, reader.Matrix(prefix + "wpe.weight", config.num_positions, model_dim));
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const std::string at = fmt::format("{}h.{}.", prefix, i);
    LayerWeights layer;
    HW_RETURN_IF_ERROR(reader.Norm(at + "ln_1", Bias::kPresent, layer.norm));
    LinearWeights* const parts[] = {&layer.q, &layer.k, &layer.v};
    HW_RETURN_IF_ERROR(reader.TransposedLinears(at + "attn.c_attn", model_dim, model_dim, parts));
    HW_RETURN_IF_ERROR(reader.TransposedLinear(at + "attn.c_proj", model_dim, model_dim, layer.o));
    HW_RETURN_IF_ERROR(reader.Norm(at + "ln_2", Bias::kPresent, layer.mlp_norm));
    HW_RETURN_IF_ERROR(reader.TransposedLinear(at + "mlp.c_fc", config.ffn_dim, model_dim, layer.up));
    HW_RETURN_IF_ERROR(reader.TransposedLinear(at + "mlp.c_proj", model_dim, config.ffn_dim, layer.down));
    weights.layers.push_back(layer);
  }
  HW_RETURN_IF_ERROR(reader.Norm(prefix + "ln_f", Bias::kPresent, weights.final_norm));
  HW_RETURN_IF_ERROR(reader.Output("lm_head"));
  return weights;
}

}  // namespace

const ModelFamily kGpt2Family = {
    .name = "gpt2",
    .other_names = {},
    .description = "GPT-2",
    .read_config = ReadConfig,
    .read_weights = ReadWeights,
};

}  // namespace headwise
