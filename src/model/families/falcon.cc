// Falcon in its three layouts. 7B: one KV head, attention and MLP in parallel on one norm. Grouped (40B, 180B, 11B):
// rows of query_key_value are [group][queries, k, v][head_dim], two norms or one. RW: multi-head, serial, biases. With
// ALiBi, the bias is added before the scores are scaled, so its slopes carry a factor 1 / sqrt(D).
#include <fmt/format.h>

#include "model/families/config_reader.h"
#include "model/families/families.h"
#include "model/families/weight_reader.h"

namespace headwise {
namespace {

Result<ModelConfig> ReadConfig(const JsonObject& config) {
  ModelConfig model;
  HW_RETURN_IF_ERROR(ReadShape(config, {.ffn = nullptr, .kv_heads = nullptr, .head_dim = nullptr},
                               /*default_length=*/2048, model));
  HW_ASSIGN_OR_RETURN(model.ffn_dim, config.IntOr("ffn_hidden_size", 4 * model.model_dim));
  HW_ASSIGN_OR_RETURN(model.tied_embeddings, config.BoolOr("tie_word_embeddings", true));
  HW_ASSIGN_OR_RETURN(const bool grouped, config.BoolOr("new_decoder_architecture", false));
  HW_ASSIGN_OR_RETURN(const bool multi_query, config.BoolOr("multi_query", true));
  HW_ASSIGN_OR_RETURN(const bool parallel, config.BoolOr("parallel_attn", true));
  if (grouped) {
    HW_ASSIGN_OR_RETURN(model.num_kv_heads, config.IntOr("num_kv_heads", model.num_q_heads));
  } else if (multi_query) {
    model.num_kv_heads = 1;  // whatever num_kv_heads says
  }
  HW_ASSIGN_OR_RETURN(const int64_t num_norms, config.IntOr("num_ln_in_parallel_attn", grouped ? 2 : 1));
  if (num_norms != 1 && num_norms != 2) {
    return Status::InvalidInput(
        fmt::format("{}: \"num_ln_in_parallel_attn\" is {}, expected 1 or 2", config.origin(), num_norms));
  }
  // The grouped layout is parallel whatever parallel_attn says.
  model.residual = !parallel && !grouped       ? ResidualKind::kSerial
                   : grouped && num_norms == 2 ? ResidualKind::kParallelTwoNorms
                                               : ResidualKind::kParallelSharedNorm;
  model.norm = NormKind::kLayer;
  model.norm_bias = true;
  HW_ASSIGN_OR_RETURN(model.norm_eps, config.DoubleOr("layer_norm_epsilon", 1e-5));
  HW_ASSIGN_OR_RETURN(model.mlp, ReadActivation(config, "activation", "gelu", GeluNames()));
  HW_ASSIGN_OR_RETURN(model.qkv_bias, config.BoolOr("bias", false));
  model.o_bias = model.mlp_bias = model.qkv_bias;
  HW_ASSIGN_OR_RETURN(const bool alibi, config.BoolOr("alibi", false));
  if (!alibi) {
    HW_RETURN_IF_ERROR(ReadRope(config, /*default_theta=*/10000.0, /*rotary_share=*/1.0, model));
    return model;
  }
  model.positions = PositionKind::kAlibi;
  model.alibi_slopes = PaperAlibiSlopes(model.num_q_heads);
  for (float& slope : model.alibi_slopes) slope = static_cast<float>(slope * model.softmax_scale);
  return model;
}

Result<ModelWeights> ReadWeights(const ModelConfig& config, const WeightSource& source) {
  ModelWeights weights;
  WeightReader reader(config, source, weights);
  const Bias bias = config.qkv_bias ? Bias::kPresent : Bias::kNone;
  const int64_t model_dim = config.model_dim;
  HW_ASSIGN_OR_RETURN(weights.embedding,
                      reader.Matrix("transformer.word_embeddings.weight", config.vocab_size, model_dim));
  const bool two_norms = config.residual == ResidualKind::kParallelTwoNorms;
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const std::string at = fmt::format("transformer.h.{}.", i);
    LayerWeights layer;
    HW_RETURN_IF_ERROR(reader.Norm(at + (two_norms ? "ln_attn" : "input_layernorm"), Bias::kPresent, layer.norm));
    if (two_norms) HW_RETURN_IF_ERROR(reader.Norm(at + "ln_mlp", Bias::kPresent, layer.mlp_norm));
    if (config.residual == ResidualKind::kSerial) {
      HW_RETURN_IF_ERROR(reader.Norm(at + "post_attention_layernorm", Bias::kPresent, layer.mlp_norm));
    }
    HW_RETURN_IF_ERROR(reader.FusedQkv(at + "self_attention.query_key_value", FusedOrder::kGroups, bias, layer));
    HW_RETURN_IF_ERROR(reader.Linear(at + "self_attention.dense", model_dim, model_dim, bias, layer.o));
    HW_RETURN_IF_ERROR(reader.Linear(at + "mlp.dense_h_to_4h", config.ffn_dim, model_dim, bias, layer.up));
    HW_RETURN_IF_ERROR(reader.Linear(at + "mlp.dense_4h_to_h", model_dim, config.ffn_dim, bias, layer.down));
    weights.layers.push_back(layer);
  }
  HW_RETURN_IF_ERROR(reader.Norm("transformer.ln_f", Bias::kPresent, weights.final_norm));
  HW_RETURN_IF_ERROR(reader.Output("lm_head"));
  return weights;
}

}  // namespace

const ModelFamily kFalconFamily = {
    .name = "falcon",
    .other_names = {"RefinedWeb", "RefinedWebModel"},
    .description = "Falcon: multi-query, grouped, and RW with ALiBi",
    .read_config = ReadConfig,
    .read_weights = ReadWeights,
};

}  // namespace headwise
