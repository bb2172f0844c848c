// OLMo 2: norms behind attention and MLP, none before them, and one over all heads' queries, and over all keys, of a
// token [arXiv 2501.00656 §2].
#include "model/families/config_reader.h"
#include "model/families/families.h"
#include "model/families/llama_like.h"
#include "model/families/rope_reader.h"

namespace headwise {
namespace {

constexpr ShapeDefaults kDefaults = {
    .vocab = 50304, .hidden = 4096, .ffn = 11008, .layers = 32, .q_heads = 32, .trained_length = 2048, .eos = 50279};

Result<ModelConfig> ReadConfig(const JsonObject& config) {
  ModelConfig model;
  HW_RETURN_IF_ERROR(ReadLlamaLikeConfig(config, {}, kDefaults, model));
  HW_ASSIGN_OR_RETURN(model.norm_eps, config.DoubleOr("rms_norm_eps", 1e-5));
  HW_RETURN_IF_ERROR(ReadRope(config, {}, model));
  HW_RETURN_IF_ERROR(SetSlidingWindow(config, std::nullopt, model));
  HW_ASSIGN_OR_RETURN(model.qkv_bias, config.BoolOr("attention_bias", false));
  model.o_bias = model.qkv_bias;
  model.norm_places = NormPlaces::kAfter;
  model.qk_norm = QkNorm::kRows;
  return model;
}

Result<ModelWeights> ReadWeights(const ModelConfig& config, const WeightSource& source) {
  return ReadLlamaLikeWeights(config, source,
                              {.norm = nullptr,
                               .post_norm = "post_attention_layernorm",
                               .mlp_norm = nullptr,
                               .mlp_post_norm = "post_feedforward_layernorm"});
}

}  // namespace

const ModelFamily kOlmo2Family = {
    .name = "olmo2",
    .other_names = {},
    .description = "OLMo 2",
    .read_config = ReadConfig,
    .read_weights = ReadWeights,
};

}  // namespace headwise
