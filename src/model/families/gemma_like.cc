#include "model/families/gemma_like.h"

#include <cmath>

namespace headwise {

Status ReadGemmaLikeConfig(const JsonObject& config, const ShapeDefaults& defaults, ModelConfig& model) {
  HW_RETURN_IF_ERROR(ReadShape(config, {}, defaults, model));
  model.norm = NormKind::kRms;
  HW_ASSIGN_OR_RETURN(model.norm_eps, config.DoubleOr("rms_norm_eps", 1e-6));
  HW_ASSIGN_OR_RETURN(model.mlp, ReadActivation(config, "hidden_activation", "gelu_pytorch_tanh", GatedGeluNames()));
  model.norm_places = NormPlaces::kBoth;
  HW_ASSIGN_OR_RETURN(model.qkv_bias, config.BoolOr("attention_bias", false));
  model.o_bias = model.qkv_bias;
  HW_RETURN_IF_ERROR(RequireBool(config, "use_bidirectional_attention", false, false));
  model.embedding_scale = std::sqrt(static_cast<double>(model.model_dim));
  HW_ASSIGN_OR_RETURN(const std::optional<double> scalar, ReadPositive(config, "query_pre_attn_scalar", 256.0));
  model.softmax_scale = 1.0 / std::sqrt(scalar.value_or(256.0));
  return Status::Ok();
}

Result<ModelWeights> ReadGemmaLikeWeights(const ModelConfig& config, const WeightSource& source, const char* prefix) {
  return ReadLlamaLikeWeights(config, source,
                              {.post_norm = "post_attention_layernorm",
                               .mlp_norm = "pre_feedforward_layernorm",
                               .mlp_post_norm = "post_feedforward_layernorm",
                               .norms_lack_one = true,
                               .prefix = prefix});
}

}  // namespace headwise
