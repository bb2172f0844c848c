// Gemma 2: a sliding window in every other layer, from the first on; caps of scores and logits [arXiv 2408.00118 §2].
#include "model/families/families.h"
#include "model/families/gemma_like.h"
#include "model/families/rope_reader.h"

namespace headwise {
namespace {

constexpr ShapeDefaults kDefaults = {.vocab = 256000,
                                     .hidden = 2304,
                                     .ffn = 9216,
                                     .layers = 26,
                                     .q_heads = 8,
                                     .kv_heads = 4,
                                     .head_dim = 256,
                                     .trained_length = 8192,
                                     .bos = 2,
                                     .eos = 1,
                                     .tied_embeddings = true};

Result<ModelConfig> ReadConfig(const JsonObject& config) {
  ModelConfig model;
  HW_RETURN_IF_ERROR(ReadGemmaLikeConfig(config, kDefaults, model));
  HW_RETURN_IF_ERROR(ReadRope(config, {}, model));
  HW_ASSIGN_OR_RETURN(model.score_cap, ReadPositive(config, "attn_logit_softcapping", 50.0));
  HW_ASSIGN_OR_RETURN(model.logit_cap, ReadPositive(config, "final_logit_softcapping", 30.0));
  HW_ASSIGN_OR_RETURN(auto types, ReadLayerTypes(config, model.num_layers));
  if (!types) {
    types.emplace();
    for (int64_t i = 0; i < model.num_layers; ++i)
      types->push_back(i % 2 == 0 ? LayerType::kSliding : LayerType::kFull);
  }
  HW_ASSIGN_OR_RETURN(const int64_t window, ReadSize(config, "sliding_window", 4096));
  HW_RETURN_IF_ERROR(SetWindows(config, *types, window, model));
  return model;
}

Result<ModelWeights> ReadWeights(const ModelConfig& config, const WeightSource& source) {
  return ReadGemmaLikeWeights(config, source, "model.");
}

}  // namespace

const ModelFamily kGemma2Family = {
    .name = "gemma2",
    .other_names = {},
    .description = "Gemma 2",
    .read_config = ReadConfig,
    .read_weights = ReadWeights,
};

}  // namespace headwise
