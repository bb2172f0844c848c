// MPT: ALiBi, LayerNorm (RMSNorm in a few), biases everywhere or, as a rule, nowhere, a plain GELU MLP; Wqkv holds q
// rows, k rows, v rows.
#include <fmt/format.h>

#include "model/families/config_reader.h"
#include "model/families/families.h"
#include "model/families/weight_reader.h"

namespace headwise {
namespace {

constexpr ShapeKeys kKeys = {.hidden = "d_model",
                             .ffn = nullptr,
                             .layers = "n_layers",
                             .q_heads = "n_heads",
                             .kv_heads = nullptr,
                             .head_dim = nullptr,
                             .trained_length = "max_seq_len"};

constexpr ShapeDefaults kDefaults = {
    .vocab = 50368, .hidden = 2048, .layers = 24, .q_heads = 16, .trained_length = 2048, .tied_embeddings = true};

Status ReadAttention(const JsonObject& attention, ModelConfig& model) {
  HW_RETURN_IF_ERROR(RequireBool(attention, "alibi", true, true));  // without it positions are learned
  HW_RETURN_IF_ERROR(RequireBool(attention, "fused_qkv", true, true));
  for (const char* key : {"rope", "qk_ln", "qk_gn", "prefix_lm", "attn_uses_sequence_id"}) {
    HW_RETURN_IF_ERROR(RequireBool(attention, key, false, false));
  }
  HW_ASSIGN_OR_RETURN(const int64_t window, attention.IntOr("sliding_window_size", -1));
  if (window != -1) {
    return Status::Unsupported(
        fmt::format("{}: \"sliding_window_size\" {} is not supported, expected -1", attention.origin(), window));
  }
  HW_ASSIGN_OR_RETURN(const std::string type, attention.StringOr("attn_type", "multihead_attention"));
  if (type == "multiquery_attention") {
    model.num_kv_heads = 1;
  } else if (type == "grouped_query_attention") {
    HW_ASSIGN_OR_RETURN(model.num_kv_heads, ReadSize(attention, "kv_n_heads", 0));
  } else if (type != "multihead_attention") {
    return Status::Unsupported(fmt::format("{}: \"attn_type\" \"{}\" is not supported", attention.origin(), type));
  }
  HW_ASSIGN_OR_RETURN(const double max_bias, attention.DoubleOr("alibi_bias_max", 8.0));
  constexpr double kMostBias = 100;  // slopes are powers of two down to 2^-this, and soon are no f32
  if (!(max_bias > 0 && max_bias <= kMostBias)) {
    return Status::InvalidInput(fmt::format("{}: \"alibi_bias_max\" is {}, expected more than 0 and up to {}",
                                            attention.origin(), max_bias, kMostBias));
  }
  model.alibi_slopes = MptAlibiSlopes(model.num_q_heads, max_bias);
  HW_ASSIGN_OR_RETURN(model.softmax_scale, attention.DoubleOr("softmax_scale", model.softmax_scale));
  HW_ASSIGN_OR_RETURN(const double clip, attention.DoubleOr("clip_qkv", 0.0));  // 0 is none
  if (clip < 0) {
    return Status::InvalidInput(fmt::format("{}: \"clip_qkv\" is {}, expected 0 or more", attention.origin(), clip));
  }
  if (clip > 0) model.qkv_clip = clip;
  return Status::Ok();
}

Status ReadMlp(const JsonObject& config, ModelConfig& model) {
  HW_ASSIGN_OR_RETURN(const double expansion, config.DoubleOr("expansion_ratio", 4.0));
  const double ffn_dim = static_cast<double>(model.model_dim) * expansion;
  if (!(ffn_dim >= 1.0 && ffn_dim < 0x1p31)) {
    return Status::InvalidInput(fmt::format("{}: \"expansion_ratio\" {} of \"d_model\" {} is out of range",
                                            config.origin(), expansion, model.model_dim));
  }
  model.ffn_dim = static_cast<int64_t>(ffn_dim);  // cut off, as the ratio may be a fraction
  model.mlp = MlpKind::kGelu;
  if (!config.Has("ffn_config")) return Status::Ok();
  HW_ASSIGN_OR_RETURN(const JsonObject ffn, config.Object("ffn_config"));
  HW_ASSIGN_OR_RETURN(const std::string type, ffn.StringOr("ffn_type", "mptmlp"));
  if (type == "mptmlp" && !ffn.Has("ffn_act_fn") && !ffn.Has("ffn_hidden_size")) return Status::Ok();
  return Status::Unsupported(
      fmt::format("{}: \"ffn_config\" with ffn_type \"{}\", ffn_act_fn or ffn_hidden_size is not supported, expected "
                  "a plain \"mptmlp\"",
                  config.origin(), type));
}

Status ReadNorm(const JsonObject& config, ModelConfig& model) {
  HW_ASSIGN_OR_RETURN(const std::string type, config.StringOr("norm_type", "low_precision_layernorm"));
  const bool layer_norm = type == "low_precision_layernorm" || type == "layernorm";
  if (!layer_norm && type != "low_precision_rmsnorm" && type != "rmsnorm") {
    return Status::Unsupported(fmt::format("{}: \"norm_type\" \"{}\" is not supported", config.origin(), type));
  }
  model.norm = layer_norm ? NormKind::kLayer : NormKind::kRms;
  HW_ASSIGN_OR_RETURN(model.norm_eps, config.DoubleOr("layer_norm_epsilon", 1e-5));
  HW_ASSIGN_OR_RETURN(const bool no_bias, config.BoolOr("no_bias", true));
  model.qkv_bias = model.o_bias = model.mlp_bias = !no_bias;
  model.norm_bias = layer_norm && !no_bias;
  return Status::Ok();
}

Result<ModelConfig> ReadConfig(const JsonObject& config) {
  ModelConfig model;
  HW_RETURN_IF_ERROR(ReadShape(config, kKeys, kDefaults, model));
  HW_RETURN_IF_ERROR(RequireBool(config, "attention_sinks", false, false));
  HW_RETURN_IF_ERROR(ReadMlp(config, model));
  HW_RETURN_IF_ERROR(ReadNorm(config, model));
  if (config.Has("logit_scale")) {
    return Status::Unsupported(fmt::format("{}: \"logit_scale\" is not supported", config.origin()));
  }
  model.residual = ResidualKind::kSerial;
  model.positions = PositionKind::kAlibi;
  const Json defaults = Json::object();
  const bool has_attention = config.Has("attn_config");
  HW_ASSIGN_OR_RETURN(const JsonObject attention,
                      has_attention ? config.Object("attn_config") : JsonObject::Of(defaults, config.origin()));
  HW_RETURN_IF_ERROR(ReadAttention(attention, model));
  return model;
}

Result<ModelWeights> ReadWeights(const ModelConfig& config, const WeightSource& source) {
  ModelWeights weights;
  WeightReader reader(config, source, weights);
  const Bias bias = config.qkv_bias ? Bias::kPresent : Bias::kNone;
  const Bias norm_bias = config.norm_bias ? Bias::kPresent : Bias::kNone;
  const int64_t model_dim = config.model_dim;
  HW_ASSIGN_OR_RETURN(weights.embedding, reader.Matrix("transformer.wte.weight", config.vocab_size, model_dim));
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const std::string at = fmt::format("transformer.blocks.{}.", i);
    LayerWeights layer;
    HW_RETURN_IF_ERROR(reader.Norm(at + "norm_1", norm_bias, layer.norm));
    HW_RETURN_IF_ERROR(reader.FusedQkv(at + "attn.Wqkv", FusedOrder::kBlocks, bias, layer));
    HW_RETURN_IF_ERROR(reader.Linear(at + "attn.out_proj", model_dim, model_dim, bias, layer.o));
    HW_RETURN_IF_ERROR(reader.Norm(at + "norm_2", norm_bias, layer.mlp_norm));
    HW_RETURN_IF_ERROR(reader.Linear(at + "ffn.up_proj", config.ffn_dim, model_dim, bias, layer.up));
    HW_RETURN_IF_ERROR(reader.Linear(at + "ffn.down_proj", model_dim, config.ffn_dim, bias, layer.down));
    weights.layers.push_back(layer);
  }
  HW_RETURN_IF_ERROR(reader.Norm("transformer.norm_f", norm_bias, weights.final_norm));
  HW_RETURN_IF_ERROR(reader.Output("lm_head"));
  return weights;
}

}  // namespace

const ModelFamily kMptFamily = {
    .name = "mpt",
    .other_names = {},
    .description = "MPT (ALiBi)",
    .read_config = ReadConfig,
    .read_weights = ReadWeights,
};

}  // namespace headwise
