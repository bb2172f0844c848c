// gpt-oss: Llama's block with a learned sink logit for every query head, a window in every second layer, biases, and
// experts behind a gated activation with limits [arXiv 2508.10925 §2].
#include <fmt/format.h>

#include <utility>

#include "model/families/config_reader.h"
#include "model/families/families.h"
#include "model/families/llama_like.h"
#include "model/families/rope_reader.h"

namespace headwise {
namespace {

constexpr ShapeDefaults kDefaults = {.vocab = 201088,
                                     .hidden = 2880,
                                     .ffn = 2880,
                                     .layers = 36,
                                     .q_heads = 64,
                                     .kv_heads = 8,
                                     .head_dim = 64,
                                     .trained_length = 131072};
constexpr ExpertKeys kExperts = {.num_experts = "num_local_experts",
                                 .ffn = "intermediate_size",
                                 .default_experts = 128,
                                 .default_chosen = 4,
                                 .default_ffn = 2880};

Status ReadWindows(const JsonObject& config, ModelConfig& model) {
  HW_ASSIGN_OR_RETURN(const int64_t window, ReadSize(config, "sliding_window", 128));
  HW_ASSIGN_OR_RETURN(auto types, ReadLayerTypes(config, model.num_layers));
  if (!types) {
    types.emplace();
    for (int64_t i = 0; i < model.num_layers; ++i) {
      types->push_back(i % 2 == 0 ? LayerType::kSliding : LayerType::kFull);
    }
  }
  return SetWindows(config, *types, window, model);
}

Result<ModelConfig> ReadConfig(const JsonObject& config) {
  ModelConfig model;
  HW_RETURN_IF_ERROR(ReadLlamaLikeConfig(config, {}, kDefaults, model));
  HW_ASSIGN_OR_RETURN(model.norm_eps, config.DoubleOr("rms_norm_eps", 1e-5));
  if (!config.Has("rope_scaling") && !config.Has("rope_parameters")) {
    return Status::InvalidInput(fmt::format(
        "{}: neither \"rope_scaling\" nor \"rope_parameters\" is there, expected one of them", config.origin()));
  }
  HW_RETURN_IF_ERROR(ReadRope(config, {.default_theta = 150000.0}, model));
  HW_RETURN_IF_ERROR(ReadWindows(config, model));
  HW_RETURN_IF_ERROR(RequireBool(config, "attention_bias", true, true));
  HW_ASSIGN_OR_RETURN(const double limit, config.DoubleOr("swiglu_limit", kClampedSiluLimit));
  if (limit != kClampedSiluLimit) {
    return Status::Unsupported(
        fmt::format("{}: \"swiglu_limit\" is {}, expected {}", config.origin(), limit, kClampedSiluLimit));
  }
  HW_RETURN_IF_ERROR(ReadExpertsConfig(config, kExperts, model));
  model.experts.router_bias = model.experts.bias = true;
  model.mlp = MlpKind::kGatedSiluClamped;
  model.qkv_bias = model.o_bias = true;
  model.learned_sinks = true;
  return model;
}

// A checkpoint's matrices of all experts are the other way round, [X, E, 2 F] and [X, F, E], and gate and up take turns
// in the first. Those in MXFP4 have the turns alone.
Result<ModelWeights> ReadWeights(const ModelConfig& config, const WeightSource& source) {
  const ExpertTensors tensors = {.router = "mlp.router", .interleaved = true};
  return ReadLlamaLikeWeights(config, source, {.experts = tensors});
}

}  // namespace

const ModelFamily kGptOssFamily = {
    .name = "gpt_oss",
    .other_names = {},
    .description = "gpt-oss, experts in MXFP4 or plain numbers",
    .read_config = ReadConfig,
    .read_weights = ReadWeights,
};

}  // namespace headwise
