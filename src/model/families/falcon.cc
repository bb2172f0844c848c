// Falcon in its three layouts. 7B: one KV head, attention and MLP in parallel on one norm. Grouped (40B, 180B, 11B):
// rows of query_key_value are [group][queries, k, v][head_dim], two norms or one. RW: multi-head, serial, biases. With
// ALiBi, the bias is added before the scores are scaled, so its slopes carry a factor 1 / sqrt(D).
#include <fmt/format.h>

#include "model/families/config_reader.h"
#include "model/families/families.h"
#include "model/families/rope_reader.h"
#include "model/families/weight_reader.h"

namespace headwise {
namespace {

constexpr ShapeDefaults kDefaults = {.vocab = 65024,
                                     .hidden = 4544,
                                     .layers = 32,
                                     .q_heads = 71,
                                     .trained_length = 2048,
                                     .bos = 11,
                                     .eos = 11,
                                     .tied_embeddings = true};

// The key, or the one that RefinedWeb, Falcon's first name, had for it.
const char* Either(const JsonObject& config, const char* key, const char* old_key) {
  return config.Has(old_key) && !config.Has(key) ? old_key : key;
}

// KV heads and the order of attention, MLP and norms.
Status ReadLayout(const JsonObject& config, ModelConfig& model) {
  HW_ASSIGN_OR_RETURN(const bool grouped, config.BoolOr("new_decoder_architecture", false));
  HW_ASSIGN_OR_RETURN(const bool multi_query, config.BoolOr("multi_query", true));
  HW_ASSIGN_OR_RETURN(const bool parallel, config.BoolOr("parallel_attn", true));
  const char* kv_key = Either(config, "num_kv_heads", "n_head_kv");
  HW_ASSIGN_OR_RETURN(const int64_t kv_heads, ReadSize(config, kv_key, model.num_q_heads));
  HW_ASSIGN_OR_RETURN(const int64_t num_norms, config.IntOr("num_ln_in_parallel_attn", grouped ? 2 : 1));
  if (num_norms != 1 && num_norms != 2) {
    return Status::InvalidInput(
        fmt::format("{}: \"num_ln_in_parallel_attn\" is {}, expected 1 or 2", config.origin(), num_norms));
  }
  if (grouped ? !parallel : num_norms == 2) {
    return Status::Unsupported(
        fmt::format("{}: \"new_decoder_architecture\" {} with \"parallel_attn\" {} and {} norms is not supported",
                    config.origin(), grouped, parallel, num_norms));
  }
  if (!grouped && !multi_query && kv_heads != model.num_q_heads) {
    return Status::Unsupported(fmt::format("{}: \"{}\" is {} without new_decoder_architecture, expected {}",
                                           config.origin(), kv_key, kv_heads, model.num_q_heads));
  }
  model.num_kv_heads = !grouped && multi_query ? 1 : kv_heads;  // multi_query wins over num_kv_heads
  model.residual = !parallel        ? ResidualKind::kSerial
                   : num_norms == 2 ? ResidualKind::kParallelTwoNorms
                                    : ResidualKind::kParallelSharedNorm;
  return Status::Ok();
}

Result<ModelConfig> ReadConfig(const JsonObject& config) {
  ModelConfig model;
  const ShapeKeys keys = {.hidden = Either(config, "hidden_size", "n_embed"),
                          .ffn = nullptr,
                          .layers = Either(config, "num_hidden_layers", "n_layer"),
                          .q_heads = Either(config, "num_attention_heads", "n_head"),
                          .kv_heads = nullptr,
                          .head_dim = nullptr};
  HW_RETURN_IF_ERROR(ReadShape(config, keys, kDefaults, model));
  HW_RETURN_IF_ERROR(ReadLayout(config, model));
  HW_RETURN_IF_ERROR(RequireBool(config, "attention_sinks", false, false));
  HW_ASSIGN_OR_RETURN(model.ffn_dim, ReadSize(config, "ffn_hidden_size", 4 * model.model_dim));
  model.norm = NormKind::kLayer;
  model.norm_bias = true;
  HW_ASSIGN_OR_RETURN(model.norm_eps, config.DoubleOr("layer_norm_epsilon", 1e-5));
  HW_ASSIGN_OR_RETURN(model.mlp, ReadActivation(config, "activation", "gelu", GeluNames()));
  HW_ASSIGN_OR_RETURN(model.qkv_bias, config.BoolOr("bias", false));
  model.o_bias = model.mlp_bias = model.qkv_bias;
  HW_ASSIGN_OR_RETURN(const bool alibi, config.BoolOr("alibi", false));
  if (!alibi) {
    HW_RETURN_IF_ERROR(ReadRope(config, {}, model));
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
