// Cohere's Command-R: attention and MLP in parallel on one LayerNorm without bias, elements rotated in pairs, logits
// scaled; Command-R+ norms every head's queries and keys with weights of its own.
#include "model/families/config_reader.h"
#include "model/families/families.h"
#include "model/families/llama_like.h"
#include "model/families/rope_reader.h"

namespace headwise {
namespace {

constexpr ShapeDefaults kDefaults = {.vocab = 256000,
                                     .hidden = 8192,
                                     .ffn = 22528,
                                     .layers = 40,
                                     .q_heads = 64,
                                     .trained_length = 8192,
                                     .bos = 5,
                                     .eos = 255001,
                                     .tied_embeddings = true};

Result<ModelConfig> ReadConfig(const JsonObject& config) {
  ModelConfig model;
  HW_RETURN_IF_ERROR(ReadShape(config, {}, kDefaults, model));
  HW_RETURN_IF_ERROR(ReadRope(config, {.default_theta = 500000.0}, model));
  HW_RETURN_IF_ERROR(SetSlidingWindow(config, std::nullopt, model));
  model.norm = NormKind::kLayer;
  HW_ASSIGN_OR_RETURN(model.norm_eps, config.DoubleOr("layer_norm_eps", 1e-5));
  HW_ASSIGN_OR_RETURN(model.mlp, ReadActivation(config, "hidden_act", "silu", GatedNames()));
  HW_ASSIGN_OR_RETURN(model.qkv_bias, config.BoolOr("attention_bias", false));
  model.o_bias = model.qkv_bias;
  model.residual = ResidualKind::kParallelSharedNorm;
  HW_ASSIGN_OR_RETURN(const bool has_qk_norm, config.BoolOr("use_qk_norm", false));
  if (has_qk_norm) model.qk_norm = QkNorm::kHeads;
  HW_ASSIGN_OR_RETURN(const std::optional<double> logit_scale, ReadPositive(config, "logit_scale", 0.0625));
  model.logit_scale = logit_scale.value_or(1.0);
  return model;
}

Result<ModelWeights> ReadWeights(const ModelConfig& config, const WeightSource& source) {
  return ReadLlamaLikeWeights(config, source,
                              {.mlp_norm = nullptr,
                               .norms_by_head = LlamaLikeTensors::NormsByHead::kOneTensor,
                               .rotary_order = RotaryOrder::kPairs});
}

}  // namespace

const ModelFamily kCohereFamily = {
    .name = "cohere",
    .other_names = {},
    .description = "Command-R and Aya",
    .read_config = ReadConfig,
    .read_weights = ReadWeights,
};

}  // namespace headwise
