// StarCoder2: LayerNorm, grouped heads, a plain MLP with GELU, biases by one key.
#include <fmt/format.h>

#include "model/families/config_reader.h"
#include "model/families/families.h"
#include "model/families/rope_reader.h"
#include "model/families/weight_reader.h"

namespace headwise {
namespace {

constexpr ShapeDefaults kDefaults = {.vocab = 49152,
                                     .hidden = 3072,
                                     .ffn = 12288,
                                     .layers = 30,
                                     .q_heads = 24,
                                     .kv_heads = 2,
                                     .trained_length = 4096,
                                     .bos = 50256,
                                     .eos = 50256,
                                     .tied_embeddings = true};

Result<ModelConfig> ReadConfig(const JsonObject& config) {
  ModelConfig model;
  HW_RETURN_IF_ERROR(ReadShape(config, {.head_dim = nullptr}, kDefaults, model));
  model.norm = NormKind::kLayer;
  model.norm_bias = true;
  HW_ASSIGN_OR_RETURN(model.norm_eps, config.DoubleOr("norm_epsilon", 1e-5));
  HW_ASSIGN_OR_RETURN(model.mlp, ReadActivation(config, "hidden_act", "gelu_pytorch_tanh", GeluNames()));
  HW_ASSIGN_OR_RETURN(model.qkv_bias, config.BoolOr("use_bias", true));
  model.o_bias = model.mlp_bias = model.qkv_bias;
  HW_RETURN_IF_ERROR(ReadRope(config, {}, model));
  std::optional<int64_t> window;
  if (config.Has("sliding_window")) {
    HW_ASSIGN_OR_RETURN(window, ReadSize(config, "sliding_window", 0));
  }
  HW_RETURN_IF_ERROR(SetSlidingWindow(config, window, model));
  return model;
}

Result<ModelWeights> ReadWeights(const ModelConfig& config, const WeightSource& source) {
  ModelWeights weights;
  WeightReader reader(config, source, weights);
  const Bias bias = BiasIf(config.qkv_bias);
  const int64_t q_rows = config.num_q_heads * config.head_dim;
  const int64_t model_dim = config.model_dim;
  HW_ASSIGN_OR_RETURN(weights.embedding, reader.Matrix("model.embed_tokens.weight", config.vocab_size, model_dim));
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const std::string at = fmt::format("model.layers.{}.", i);
    LayerWeights layer;
    HW_RETURN_IF_ERROR(reader.Norm(at + "input_layernorm", Bias::kPresent, layer.norm));
    HW_RETURN_IF_ERROR(reader.SeparateQkv(at + "self_attn", bias, layer));
    HW_RETURN_IF_ERROR(reader.Linear(at + "self_attn.o_proj", model_dim, q_rows, bias, layer.o));
    HW_RETURN_IF_ERROR(reader.Norm(at + "post_attention_layernorm", Bias::kPresent, layer.mlp_norm));
    HW_RETURN_IF_ERROR(reader.Linear(at + "mlp.c_fc", config.ffn_dim, model_dim, bias, layer.up));
    HW_RETURN_IF_ERROR(reader.Linear(at + "mlp.c_proj", model_dim, config.ffn_dim, bias, layer.down));
    weights.layers.push_back(layer);
  }
  HW_RETURN_IF_ERROR(reader.Norm("model.norm", Bias::kPresent, weights.final_norm));
  HW_RETURN_IF_ERROR(reader.Output("lm_head"));
  return weights;
}

}  // namespace

const ModelFamily kStarcoder2Family = {
    .name = "starcoder2",
    .other_names = {},
    .description = "StarCoder2",
    .read_config = ReadConfig,
    .read_weights = ReadWeights,
};

}  // namespace headwise
