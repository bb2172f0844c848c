// Mistral 7B: Llama's block with a sliding window, which is a rule of the model: key j is read if t - j < window,
// whatever the plan says beyond that.
#include "model/families/config_reader.h"
#include "model/families/families.h"
#include "model/families/llama_like.h"

namespace headwise {
namespace {

Result<ModelConfig> ReadConfig(const JsonObject& config) {
  ModelConfig model;
  HW_RETURN_IF_ERROR(ReadLlamaLikeConfig(config, /*default_length=*/131072, model));
  HW_RETURN_IF_ERROR(ReadRope(config, /*default_theta=*/10000.0, /*rotary_share=*/1.0, model));
  if (config.Has("sliding_window")) {
    HW_ASSIGN_OR_RETURN(model.sliding_window, config.Int("sliding_window"));
  }
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
