// Phi-1 to Phi-2: attention and MLP in parallel on one LayerNorm, half of each head rotated, biases everywhere, that of
// the logits included.
#include <fmt/format.h>

#include "model/families/config_reader.h"
#include "model/families/families.h"
#include "model/families/rope_reader.h"
#include "model/families/weight_reader.h"

namespace headwise {
namespace {

constexpr ShapeDefaults kDefaults = {.vocab = 51200,
                                     .hidden = 2048,
                                     .ffn = 8192,
                                     .layers = 24,
                                     .q_heads = 32,
                                     .trained_length = 2048,
                                     .bos = 1,
                                     .eos = 2};

Result<ModelConfig> ReadConfig(const JsonObject& config) {
  ModelConfig model;
  HW_RETURN_IF_ERROR(ReadShape(config, {.head_dim = nullptr}, kDefaults, model));
  model.norm = NormKind::kLayer;
  model.norm_bias = true;
  HW_ASSIGN_OR_RETURN(model.norm_eps, config.DoubleOr("layer_norm_eps", 1e-5));
  HW_ASSIGN_OR_RETURN(model.mlp, ReadActivation(config, "hidden_act", "gelu_new", GeluNames()));
  model.residual = ResidualKind::kParallelSharedNorm;
  model.qkv_bias = model.o_bias = model.mlp_bias = true;
  HW_ASSIGN_OR_RETURN(const bool has_qk_norm, config.BoolOr("qk_layernorm", false));
  if (has_qk_norm) model.qk_norm = QkNorm::kHeads;
  HW_RETURN_IF_ERROR(ReadRope(config, {.share = "partial_rotary_factor", .default_share = 0.5}, model));
  return model;
}

Result<ModelWeights> ReadWeights(const ModelConfig& config, const WeightSource& source) {
  ModelWeights weights;
  WeightReader reader(config, source, weights);
  const int64_t q_rows = config.num_q_heads * config.head_dim;
  const int64_t model_dim = config.model_dim;
  HW_ASSIGN_OR_RETURN(weights.embedding, reader.Matrix("model.embed_tokens.weight", config.vocab_size, model_dim));
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const std::string at = fmt::format("model.layers.{}.", i);
    LayerWeights layer;
    HW_RETURN_IF_ERROR(reader.Norm(at + "input_layernorm", Bias::kPresent, layer.norm));
    HW_RETURN_IF_ERROR(reader.SeparateQkv(at + "self_attn", Bias::kPresent, layer));
    HW_RETURN_IF_ERROR(reader.Linear(at + "self_attn.dense", model_dim, q_rows, Bias::kPresent, layer.o));
    if (config.qk_norm == QkNorm::kHeads) {
      const Shape head{config.head_dim};
      HW_RETURN_IF_ERROR(reader.Norm(at + "self_attn.q_layernorm", head, Bias::kPresent, layer.q_norm));
      HW_RETURN_IF_ERROR(reader.Norm(at + "self_attn.k_layernorm", head, Bias::kPresent, layer.k_norm));
    }
    HW_RETURN_IF_ERROR(reader.Linear(at + "mlp.fc1", config.ffn_dim, model_dim, Bias::kPresent, layer.up));
    HW_RETURN_IF_ERROR(reader.Linear(at + "mlp.fc2", model_dim, config.ffn_dim, Bias::kPresent, layer.down));
    weights.layers.push_back(layer);
  }
  HW_RETURN_IF_ERROR(reader.Norm("model.final_layernorm", Bias::kPresent, weights.final_norm));
  HW_RETURN_IF_ERROR(reader.Output("lm_head", Bias::kPresent));
  return weights;
}

}  // namespace

const ModelFamily kPhiFamily = {
    .name = "phi",
    .other_names = {},
    .description = "Phi-1, Phi-1.5 and Phi-2",
    .read_config = ReadConfig,
    .read_weights = ReadWeights,
};

}  // namespace headwise
