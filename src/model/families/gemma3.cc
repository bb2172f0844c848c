// Gemma 3, its text part: five layers with a sliding window and a short rope to one that reads all with a long one;
// norms of each head's queries and keys [arXiv 2503.19786 §2]. Folders with a vision part, "gemma3", have the same
// under "text_config"; images are not read.
#include <fmt/format.h>

#include "model/families/families.h"
#include "model/families/gemma_like.h"
#include "model/families/rope_reader.h"

namespace headwise {
namespace {

constexpr ShapeDefaults kDefaults = {.vocab = 262208,
                                     .hidden = 2304,
                                     .ffn = 9216,
                                     .layers = 26,
                                     .q_heads = 8,
                                     .kv_heads = 4,
                                     .head_dim = 256,
                                     .trained_length = 131072,
                                     .bos = 2,
                                     .eos = 1,
                                     .tied_embeddings = true};
constexpr RopeKeys kFullRope = {.default_theta = 1e6};
constexpr RopeKeys kSlidingRope = {.theta = "rope_local_base_freq"};

// The old keys scale the rope of full layers alone; rope_parameters have one object for each type of layer.
Status ReadRopes(const JsonObject& config, const std::vector<LayerType>& types, ModelConfig& model) {
  model.positions = PositionKind::kRope;
  std::optional<JsonObject> full, sliding;
  if (config.Has("rope_parameters")) {
    HW_ASSIGN_OR_RETURN(const JsonObject both, config.Object("rope_parameters"));
    const auto part = [&](const char* type, std::optional<JsonObject>& parameters) -> Status {
      if (!both.Has(type)) return Status::Ok();
      HW_ASSIGN_OR_RETURN(JsonObject found, both.Object(type));
      parameters.emplace(std::move(found));
      return Status::Ok();
    };
    HW_RETURN_IF_ERROR(part("full_attention", full));
    HW_RETURN_IF_ERROR(part("sliding_attention", sliding));
  }
  if (config.Has("rope_scaling")) {
    HW_ASSIGN_OR_RETURN(JsonObject found, config.Object("rope_scaling"));
    full.emplace(std::move(found));
  }
  HW_ASSIGN_OR_RETURN(RopeConfig full_rope, RopeOf(config, full ? &*full : nullptr, kFullRope, model));
  // Without a theta of its own it does not take that of the full layers.
  HW_ASSIGN_OR_RETURN(RopeConfig sliding_rope, RopeOf(config, sliding ? &*sliding : nullptr, kSlidingRope, model));
  const bool has_own_theta = config.Has(kSlidingRope.theta) || (sliding && sliding->Has("rope_theta"));
  if (!has_own_theta) sliding_rope.theta = kSlidingRope.default_theta;
  model.ropes = {std::move(full_rope), std::move(sliding_rope)};
  for (size_t i = 0; i < model.layers.size(); ++i) model.layers[i].rope = types[i] == LayerType::kFull ? 0 : 1;
  return Status::Ok();
}

Result<ModelConfig> ReadText(const JsonObject& config) {
  ModelConfig model;
  HW_RETURN_IF_ERROR(ReadGemmaLikeConfig(config, kDefaults, model));
  model.qk_norm = QkNorm::kHeads;
  HW_ASSIGN_OR_RETURN(model.score_cap, ReadPositive(config, "attn_logit_softcapping", std::nullopt));
  HW_ASSIGN_OR_RETURN(model.logit_cap, ReadPositive(config, "final_logit_softcapping", std::nullopt));
  HW_ASSIGN_OR_RETURN(const int64_t pattern, ReadSize(config, "sliding_window_pattern", 6));
  HW_ASSIGN_OR_RETURN(auto types, ReadLayerTypes(config, model.num_layers));
  if (!types) {
    types.emplace();
    for (int64_t i = 0; i < model.num_layers; ++i) {
      types->push_back((i + 1) % pattern != 0 ? LayerType::kSliding : LayerType::kFull);
    }
  }
  HW_ASSIGN_OR_RETURN(const int64_t window, ReadSize(config, "sliding_window", 4096));
  HW_RETURN_IF_ERROR(SetWindows(config, *types, window, model));
  HW_RETURN_IF_ERROR(ReadRopes(config, *types, model));
  return model;
}

// Token ids and ties stand beside the text's config, and count where that has none.
Result<ModelConfig> ReadConfig(const JsonObject& config) {
  if (!config.Has("text_config")) return ReadText(config);
  Json text = config.At("text_config");
  if (text.is_object()) {
    for (const char* key : {"bos_token_id", "eos_token_id", "tie_word_embeddings"}) {
      if (config.Has(key) && !text.contains(key)) text[key] = config.At(key);
    }
  }
  HW_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(text, config.origin() + ": text_config"));
  return ReadText(object);
}

Result<ModelWeights> ReadWeights(const ModelConfig& config, const WeightSource& source) {
  for (const char* prefix : {"language_model.model.", "model.language_model."}) {
    if (source.Has(fmt::format("{}embed_tokens.weight", prefix))) return ReadGemmaLikeWeights(config, source, prefix);
  }
  return ReadGemmaLikeWeights(config, source, "model.");
}

}  // namespace

const ModelFamily kGemma3Family = {
    .name = "gemma3_text",
    .other_names = {"gemma3"},
    .description = "Gemma 3, its text part",
    .read_config = ReadConfig,
    .read_weights = ReadWeights,
};

}  // namespace headwise
