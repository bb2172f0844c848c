// Mistral 7B: Llama's block with a sliding window, which is a rule of the model: key j is read if t - j < window,
// whatever the plan says beyond that.
#include "model/families/config_reader.h"
#include "model/families/families.h"
#include "model/families/llama_like.h"
#include "model/families/rope_reader.h"

namespace headwise {
namespace {

constexpr ShapeDefaults kDefaults = {.vocab = 32000,
                                     .hidden = 4096,
                                     .ffn = 14336,
                                     .layers = 32,
                                     .q_heads = 32,
                                     .kv_heads = 8,
                                     .trained_length = 131072,
                                     .bos = 1,
                                     .eos = 2};

Result<ModelConfig> ReadConfig(const JsonObject& config) {
  ModelConfig model;
  HW_RETURN_IF_ERROR(ReadLlamaLikeConfig(config, {}, kDefaults, model));
  HW_RETURN_IF_ERROR(ReadRope(config, {}, model));
  HW_RETURN_IF_ERROR(RequireBool(config, "attention_bias", false, false));
  HW_RETURN_IF_ERROR(RequireBool(config, "mlp_bias", false, false));
  // Absent, it has the default of the first 7B; null, in all later ones, is none.
  std::optional<int64_t> window;
  if (!config.Names("sliding_window")) window = 4096;
  if (config.Has("sliding_window")) {
    HW_ASSIGN_OR_RETURN(window, ReadSize(config, "sliding_window", 0));
  }
  HW_RETURN_IF_ERROR(SetSlidingWindow(config, window, model));
  return model;
}

}  // namespace

const ModelFamily kMistralFamily = {
    .name = "mistral",
    .other_names = {},
    .description = "Mistral, with or without its sliding window",
    .read_config = ReadConfig,
    .read_weights = ReadLlamaWeights,
};

}  // namespace headwise
