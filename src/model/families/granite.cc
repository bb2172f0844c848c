// Granite: Llama's block with four multipliers. That of residuals, m, has no place in the layers: with x = m y,
// x + m f(norm(x)) is m (y + f(norm(y))), where the norm of y has epsilon / m^2; so the embedding is divided by m, and
// the last norm undoes it.
#include "model/families/config_reader.h"
#include "model/families/families.h"
#include "model/families/llama_like.h"
#include "model/families/rope_reader.h"

namespace headwise {
namespace {

constexpr ShapeDefaults kDefaults = {.vocab = 32000,
                                     .hidden = 4096,
                                     .ffn = 11008,
                                     .layers = 32,
                                     .q_heads = 32,
                                     .trained_length = 2048,
                                     .bos = 1,
                                     .eos = 2};

Result<double> ReadMultiplier(const JsonObject& config, const char* key) {
  HW_ASSIGN_OR_RETURN(const std::optional<double> value, ReadPositive(config, key, 1.0));
  return value.value_or(1.0);
}

// All but the MLP.
Status ReadCommon(const JsonObject& config, ModelConfig& model) {
  HW_RETURN_IF_ERROR(ReadLlamaLikeConfig(config, {}, kDefaults, model));
  HW_RETURN_IF_ERROR(ReadRope(config, {}, model));
  HW_RETURN_IF_ERROR(SetSlidingWindow(config, std::nullopt, model));
  HW_ASSIGN_OR_RETURN(model.qkv_bias, config.BoolOr("attention_bias", false));
  model.o_bias = model.qkv_bias;
  HW_ASSIGN_OR_RETURN(model.softmax_scale, ReadMultiplier(config, "attention_multiplier"));
  HW_ASSIGN_OR_RETURN(model.embedding_scale, ReadMultiplier(config, "embedding_multiplier"));
  HW_ASSIGN_OR_RETURN(const double logits_divisor, ReadMultiplier(config, "logits_scaling"));
  model.logit_scale = 1.0 / logits_divisor;
  HW_ASSIGN_OR_RETURN(const double residual, ReadMultiplier(config, "residual_multiplier"));
  model.embedding_scale /= residual;
  model.norm_eps /= residual * residual;
  return Status::Ok();
}

Result<ModelConfig> ReadConfig(const JsonObject& config) {
  ModelConfig model;
  HW_RETURN_IF_ERROR(ReadCommon(config, model));
  HW_ASSIGN_OR_RETURN(model.mlp_bias, config.BoolOr("mlp_bias", false));
  return model;
}

Result<ModelConfig> ReadMoeConfig(const JsonObject& config) {
  ModelConfig model;
  HW_RETURN_IF_ERROR(ReadCommon(config, model));
  HW_RETURN_IF_ERROR(ReadExpertsConfig(config,
                                       {.num_experts = "num_local_experts",
                                        .ffn = "intermediate_size",
                                        .default_experts = 8,
                                        .default_chosen = 2,
                                        .default_ffn = kDefaults.ffn},
                                       model));
  return model;
}

Result<ModelWeights> ReadMoeWeights(const ModelConfig& config, const WeightSource& source) {
  const ExpertTensors tensors = {.router = "block_sparse_moe.router.layer",
                                 .experts = "block_sparse_moe.experts",
                                 .fused_gate_up = "block_sparse_moe.input_linear.weight",
                                 .fused_down = "block_sparse_moe.output_linear.weight"};
  return ReadLlamaLikeWeights(config, source, {.experts = tensors});
}

}  // namespace

const ModelFamily kGraniteFamily = {
    .name = "granite",
    .other_names = {},
    .description = "Granite 3, its dense models",
    .read_config = ReadConfig,
    .read_weights = ReadLlamaWeights,
};

const ModelFamily kGraniteMoeFamily = {
    .name = "granitemoe",
    .other_names = {},
    .description = "Granite 3, its mixtures of experts",
    .read_config = ReadMoeConfig,
    .read_weights = ReadMoeWeights,
};

}  // namespace headwise
