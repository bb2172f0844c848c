// MPT: ALiBi, LayerNorm (without bias), a plain GELU MLP; Wqkv holds q rows, k rows, v rows.
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

Status ReadAttention(const JsonObject& attention, ModelConfig& model) {
  HW_RETURN_IF_ERROR(RequireBool(attention, "alibi", false, true));
  HW_RETURN_IF_ERROR(RequireBool(attention, "qk_ln", false, false));
  HW_RETURN_IF_ERROR(RequireBool(attention, "prefix_lm", false, false));
  HW_RETURN_IF_ERROR(RequireBool(attention, "attn_uses_sequence_id", false, false));
  HW_ASSIGN_OR_RETURN(const std::string type, attention.StringOr("attn_type", "multihead_attention"));
  if (type == "multiquery_attention") {
    model.num_kv_heads = 1;
  } else if (type == "grouped_query_attention") {
    HW_ASSIGN_OR_RETURN(model.num_kv_heads, attention.Int("kv_n_heads"));
  } else if (type != "multihead_attention") {
    return Status::Unsupported(fmt::format("{}: \"attn_type\" \"{}\" is not supported", attention.origin(), type));
  }
  HW_ASSIGN_OR_RETURN(const double max_bias, attention.DoubleOr("alibi_bias_max", 8.0));
  model.alibi_slopes = MptAlibiSlopes(model.num_q_heads, max_bias);
  HW_ASSIGN_OR_RETURN(model.softmax_scale, attention.DoubleOr("softmax_scale", model.softmax_scale));
  if (attention.Has("clip_qkv")) {
    HW_ASSIGN_OR_RETURN(const double clip, attention.Double("clip_qkv"));
    if (clip > 0) model.qkv_clip = clip;
  }
  return Status::Ok();
}

Result<ModelConfig> ReadConfig(const JsonObject& config) {
  ModelConfig model;
  HW_RETURN_IF_ERROR(ReadShape(config, kKeys, /*default_length=*/2048, model));
  HW_ASSIGN_OR_RETURN(const double expansion, config.DoubleOr("expansion_ratio", 4.0));
  model.ffn_dim = static_cast<int64_t>(static_cast<double>(model.model_dim) * expansion);
  HW_ASSIGN_OR_RETURN(model.tied_embeddings, config.BoolOr("tie_word_embeddings", true));
  HW_ASSIGN_OR_RETURN(const bool no_bias, config.BoolOr("no_bias", true));
  model.norm_bias = model.qkv_bias = model.o_bias = model.mlp_bias = !no_bias;
  HW_ASSIGN_OR_RETURN(const std::string norm_type, config.StringOr("norm_type", "low_precision_layernorm"));
  if (norm_type != "low_precision_layernorm" && norm_type != "layernorm") {
    return Status::Unsupported(fmt::format("{}: \"norm_type\" \"{}\" is not supported", config.origin(), norm_type));
  }
  if (config.Has("logit_scale")) {
    return Status::Unsupported(fmt::format("{}: \"logit_scale\" is not supported", config.origin()));
  }
  model.norm = NormKind::kLayer;
  HW_ASSIGN_OR_RETURN(model.norm_eps, config.DoubleOr("layer_norm_epsilon", 1e-5));
  model.mlp = MlpKind::kGelu;
  model.residual = ResidualKind::kSerial;
  model.positions = PositionKind::kAlibi;
  HW_ASSIGN_OR_RETURN(const JsonObject attention, config.Object("attn_config"));
  HW_RETURN_IF_ERROR(ReadAttention(attention, model));
  return model;
}

Result<ModelWeights> ReadWeights(const ModelConfig& config, const WeightSource& source) {
  ModelWeights weights;
  WeightReader reader(config, source, weights);
  const Bias bias = config.qkv_bias ? Bias::kPresent : Bias::kNone;
  const int64_t model_dim = config.model_dim;
  HW_ASSIGN_OR_RETURN(weights.embedding, reader.Matrix("transformer.wte.weight", config.vocab_size, model_dim));
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const std::string at = fmt::format("transformer.blocks.{}.", i);
    LayerWeights layer;
    HW_RETURN_IF_ERROR(reader.Norm(at + "norm_1", bias, layer.norm));
    HW_RETURN_IF_ERROR(reader.FusedQkv(at + "attn.Wqkv", FusedOrder::kBlocks, bias, layer));
    HW_RETURN_IF_ERROR(reader.Linear(at + "attn.out_proj", model_dim, model_dim, bias, layer.o));
    HW_RETURN_IF_ERROR(reader.Norm(at + "norm_2", bias, layer.mlp_norm));
    HW_RETURN_IF_ERROR(reader.Linear(at + "ffn.up_proj", config.ffn_dim, model_dim, bias, layer.up));
    HW_RETURN_IF_ERROR(reader.Linear(at + "ffn.down_proj", model_dim, config.ffn_dim, bias, layer.down));
    weights.layers.push_back(layer);
  }
  HW_RETURN_IF_ERROR(reader.Norm("transformer.norm_f", bias, weights.final_norm));
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
