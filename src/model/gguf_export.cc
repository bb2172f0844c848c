#include "model/gguf_export.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <utility>

#include "model/gguf_keys.h"
#include "model/gguf_names.h"
#include "model/rope.h"

namespace headwise {
namespace {

// Sets the keys of one architecture by what stands behind its name.
class KeyWriter {
 public:
  KeyWriter(GgufMetadata& metadata, std::string_view architecture) : metadata_(metadata), architecture_(architecture) {}

  void Size(std::string_view key, int64_t value) { metadata_.SetU32(Full(key), value); }
  void Number(std::string_view key, double value) { metadata_.SetF32(Full(key), value); }
  void Bool(std::string_view key, bool value) { metadata_.SetBool(Full(key), value); }
  void String(std::string_view key, std::string value) { metadata_.SetString(Full(key), std::move(value)); }
  void Bools(std::string_view key, const std::vector<bool>& values) {
    metadata_.Set(Full(key), {GgufType::kBool, std::vector<int64_t>(values.begin(), values.end())});
  }

 private:
  std::string Full(std::string_view key) const { return fmt::format("{}.{}", architecture_, key); }

  GgufMetadata& metadata_;
  std::string architecture_;
};

// Readers of the format round YaRN's range, and multiply what the factor makes of its amplitude by attn_factor.
void SetYarn(const RopeConfig& rope, KeyWriter& keys) {
  keys.Size("rope.scaling.original_context_length", rope.original_max_position);
  keys.Number("rope.scaling.attn_factor", rope.amplitude / YarnAmplitude(rope.factor));
  keys.Number("rope.scaling.yarn_beta_fast", rope.beta_fast);
  keys.Number("rope.scaling.yarn_beta_slow", rope.beta_slow);
}

void SetRope(const RopeConfig& rope, KeyWriter& keys) {
  keys.Size("rope.dimension_count", rope.rotary_dims);
  keys.Number("rope.freq_base", rope.theta);
  const char* type = nullptr;
  if (rope.scaling == RopeConfig::Scaling::kLinear) type = "linear";
  if (rope.scaling == RopeConfig::Scaling::kDynamicNtk) type = "dynamic";
  if (rope.scaling == RopeConfig::Scaling::kYarn) type = "yarn";
  if (rope.scaling == RopeConfig::Scaling::kLongRope) type = "longrope";
  if (type == nullptr) return;
  keys.String("rope.scaling.type", type);
  if (rope.scaling == RopeConfig::Scaling::kLongRope) {
    keys.Size("rope.scaling.original_context_length", rope.original_max_position);
    keys.Number("rope.scaling.attn_factor", rope.amplitude);
    return;
  }
  keys.Number("rope.scaling.factor", rope.factor);
  if (rope.scaling == RopeConfig::Scaling::kYarn) SetYarn(rope, keys);
}

// A number of the checkpoint's config.json.
double NumberOr(const Json& object, const char* key, double otherwise) {
  return object.is_object() && object.contains(key) && object[key].is_number() ? object[key].get<double>() : otherwise;
}

// The family's config keeps it; slopes are made from it in ways that differ.
double MaxAlibiBias(const ModelConfig& config, const Json& checkpoint) {
  constexpr double kUsual = 8.0;
  if (config.family != "mpt" || !checkpoint.contains("attn_config")) return kUsual;
  return NumberOr(checkpoint["attn_config"], "alibi_bias_max", kUsual);
}

class Exporter {
 public:
  Exporter(const ModelConfig& config, const Json& checkpoint, const GgufArchitecture& architecture)
      : config_(config), checkpoint_(checkpoint), architecture_(architecture), keys_(metadata_, architecture.name) {}

  Result<GgufMetadata> Run() {
    metadata_.SetString("general.architecture", std::string(architecture_.name));
    metadata_.SetString("general.type", "model");
    metadata_.SetU32("general.quantization_version", 2);
    if (architecture_.name != config_.family) metadata_.SetString(kGgufFamilyKey, config_.family);
    if (config_.zero_sink) metadata_.SetBool(kGgufZeroSinkKey, true);
    SetSizes();
    HW_RETURN_IF_ERROR(SetExperts());
    HW_RETURN_IF_ERROR(SetPositions());
    HW_RETURN_IF_ERROR(SetWindows());
    HW_RETURN_IF_ERROR(SetScoreScale());
    HW_RETURN_IF_ERROR(CheckActivation());
    SetNorms();
    SetLogits();
    return std::move(metadata_);
  }

 private:
  Status NoPlaceFor(std::string_view what) const {
    return Status::Unsupported(
        fmt::format("family {}: {}, for which architecture {} has no key", config_.family, what, architecture_.name));
  }

  void SetSizes() {
    keys_.Size("vocab_size", config_.vocab_size);
    keys_.Size("context_length", config_.trained_length);
    keys_.Size("block_count", config_.num_layers);
    keys_.Size("embedding_length", config_.model_dim);
    keys_.Size("feed_forward_length", config_.ffn_dim);
    keys_.Size("attention.head_count", config_.num_q_heads);
    keys_.Size("attention.head_count_kv", config_.num_kv_heads);
    keys_.Size("attention.key_length", config_.head_dim);
    keys_.Size("attention.value_length", config_.head_dim);
    if (config_.qkv_clip) keys_.Number("attention.clamp_kqv", *config_.qkv_clip);
    if (config_.family == "gpt_neox" || config_.family == "stablelm") {
      keys_.Bool("use_parallel_residual", config_.residual != ResidualKind::kSerial);
    }
  }

  // Mixtral's and Granite's weights are normalised, whoever reads them.
  Status SetExperts() {
    const ExpertsConfig& experts = config_.experts;
    if (!config_.AnyExperts()) return Status::Ok();
    const std::string_view family = config_.family;
    const bool is_qwen = family == "qwen2_moe" || family == "qwen3_moe";
    keys_.Size("expert_count", experts.num_experts);
    keys_.Size("expert_used_count", experts.num_chosen);
    if (is_qwen || family == "olmoe") keys_.Bool("expert_weights_norm", experts.normalised);
    if (is_qwen || family == "gpt_oss") keys_.Size("expert_feed_forward_length", experts.ffn_dim);
    if (experts.shared_ffn_dim > 0) keys_.Size("expert_shared_feed_forward_length", experts.shared_ffn_dim);
    const auto first = std::ranges::find(config_.layers, true, &LayerConfig::has_experts);
    const auto num_dense = first - config_.layers.begin();
    if (num_dense > 0) keys_.Size("leading_dense_block_count", num_dense);
    const bool is_rest =
        std::all_of(first, config_.layers.end(), [](const LayerConfig& each) { return each.has_experts; });
    return is_rest ? Status::Ok() : NoPlaceFor("layers without experts behind some with");
  }

  void SetNorms() {
    const double residual = ResidualScale();
    keys_.Number(config_.norm == NormKind::kRms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon",
                 config_.norm_eps * residual * residual);
  }

  bool IsGranite() const { return config_.family == "granite" || config_.family == "granitemoe"; }

  // Granite's, which its family file puts elsewhere.
  double ResidualScale() const { return IsGranite() ? NumberOr(checkpoint_, "residual_multiplier", 1.0) : 1.0; }

  void SetLogits() {
    if (config_.family == "cohere") keys_.Number("logit_scale", config_.logit_scale);
    if (IsGranite()) {
      keys_.Number("logit_scale", 1.0 / config_.logit_scale);
      keys_.Number("residual_scale", ResidualScale());
      keys_.Number("embedding_scale", config_.embedding_scale * ResidualScale());
    }
    // Where Gemma 2's are absent they have usual values.
    const bool has_usual = config_.family == "gemma2";
    if (config_.score_cap || has_usual) keys_.Number("attn_logit_softcapping", config_.score_cap.value_or(0.0));
    if (config_.logit_cap || has_usual) keys_.Number("final_logit_softcapping", config_.logit_cap.value_or(0.0));
  }

  Status SetPositions() {
    if (config_.positions == PositionKind::kAlibi) {
      keys_.Number("attention.max_alibi_bias", MaxAlibiBias(config_, checkpoint_));
    }
    if (config_.positions == PositionKind::kRope) {
      const bool has_local = config_.family == "gemma3_text";
      if (config_.ropes.size() != (has_local ? 2 : 1)) return NoPlaceFor("several rotary embeddings");
      HW_RETURN_IF_ERROR(CheckRope(config_.ropes.front()));
      SetRope(config_.ropes.front(), keys_);
      if (has_local) HW_RETURN_IF_ERROR(SetLocalRope(config_.ropes.front(), config_.ropes.back()));
    }
    return SetRotatedLayers();
  }

  Status CheckRope(const RopeConfig& rope) const {
    const bool rounds = config_.family != "gpt_oss";
    if (rope.scaling == RopeConfig::Scaling::kYarn && rope.rounds_range != rounds) {
      return NoPlaceFor(rounds ? "YaRN with \"truncate\" false" : "YaRN with \"truncate\" true");
    }
    const bool needs_tensors =
        rope.scaling == RopeConfig::Scaling::kLlama3 || rope.scaling == RopeConfig::Scaling::kLongRope;
    if (config_.ropes.size() > 1 && needs_tensors) return NoPlaceFor("rotary factors of some layers");
    return Status::Ok();
  }

  Status SetLocalRope(const RopeConfig& full, const RopeConfig& local) {
    if (local.scaling != RopeConfig::Scaling::kNone || local.rotary_dims != full.rotary_dims) {
      return NoPlaceFor("a scaled rotary embedding of layers with a window");
    }
    keys_.Number("rope.freq_base_swa", local.theta);
    return Status::Ok();
  }

  // Gemma 3's layers with a window have the second rope, all others the first.
  Status SetRotatedLayers() {
    std::vector<bool> rotates;
    bool is_usual = true;
    for (int64_t i = 0; i < config_.num_layers; ++i) {
      const LayerConfig& layer = config_.layer(i);
      const int64_t wanted = config_.ropes.size() > 1 && layer.window ? 1 : 0;
      const bool may_rest = config_.positions != PositionKind::kRope || architecture_.unrotated_period > 0;
      if (layer.rope ? *layer.rope != wanted : !may_rest)
        return NoPlaceFor("positions that differ from layer to layer");
      rotates.push_back(layer.rope.has_value());
      is_usual = is_usual && rotates.back() == architecture_.RotatesWithoutPattern(i);
    }
    if (config_.positions == PositionKind::kRope && !is_usual) keys_.Bools("attention.rope_pattern", rotates);
    return Status::Ok();
  }

  Status SetWindows() {
    std::optional<int64_t> window;
    std::vector<bool> slides;
    bool is_usual = true;
    for (int64_t i = 0; i < config_.num_layers; ++i) {
      const LayerConfig& layer = config_.layer(i);
      if (layer.window && window.value_or(*layer.window) != *layer.window)
        return NoPlaceFor("windows of several lengths");
      if (layer.window) window = layer.window;
      slides.push_back(layer.window.has_value());
      is_usual = is_usual && slides.back() == architecture_.SlidesWithoutPattern(i);
    }
    if (!window) {
      // Where layers differ a window is usual, and Gemma 2's has a value in files that give none.
      if (architecture_.window_period.value_or(0) > 0) keys_.Size("attention.sliding_window", 0);
      return Status::Ok();
    }
    if (!architecture_.window_period) return NoPlaceFor("a window");
    keys_.Size("attention.sliding_window", *window);
    if (!is_usual) keys_.Bools("attention.sliding_window_pattern", slides);
    return Status::Ok();
  }

  Status SetScoreScale() {
    const std::string_view family = config_.family;
    double usual = 1.0 / std::sqrt(static_cast<double>(config_.head_dim));
    const bool is_gemma = family == "gemma2" || family == "gemma3_text";
    if (is_gemma) {
      usual = 1.0 / std::sqrt(UsualGemmaScalar(
                        family, config_.num_layers,
                        {config_.model_dim, config_.num_q_heads, config_.num_kv_heads, config_.head_dim}));
    }
    if (config_.softmax_scale == usual) return Status::Ok();
    if (!is_gemma && family != "mpt" && !IsGranite()) return NoPlaceFor("an unusual scale of scores");
    keys_.Number("attention.scale", config_.softmax_scale);
    return Status::Ok();
  }

  // Of those that config.json may name, readers know the usual one.
  Status CheckActivation() const {
    const std::pair<std::string_view, MlpKind> usual[] = {{"gpt_neox", MlpKind::kGelu},
                                                          {"falcon", MlpKind::kGelu},
                                                          {"mpt", MlpKind::kGelu},
                                                          {"phi", MlpKind::kGeluTanh},
                                                          {"starcoder2", MlpKind::kGeluTanh},
                                                          {"gpt2", MlpKind::kGeluTanh},
                                                          {"gemma2", MlpKind::kGatedGeluTanh},
                                                          {"gemma3_text", MlpKind::kGatedGeluTanh},
                                                          {"gpt_oss", MlpKind::kGatedSiluClamped}};
    const auto* row = std::ranges::find_if(usual, [&](const auto& each) { return each.first == config_.family; });
    const MlpKind wanted = row != std::end(usual) ? row->second : MlpKind::kGatedSilu;
    return config_.mlp == wanted ? Status::Ok() : NoPlaceFor("an unusual activation of the MLP");
  }

  const ModelConfig& config_;
  const Json& checkpoint_;
  const GgufArchitecture& architecture_;
  GgufMetadata metadata_;
  KeyWriter keys_;
};

}  // namespace

Result<GgufMetadata> GgufMetadataOf(const ModelConfig& config, const Json& checkpoint) {
  const GgufArchitecture* architecture = FindGgufArchitecture(config.family);
  if (architecture == nullptr) {
    return Status::Unsupported(fmt::format("family {} has no architecture in GGUF files", config.family));
  }
  return Exporter(config, checkpoint, *architecture).Run();
}

std::vector<GgufRopeTensor> GgufRopeTensors(const ModelConfig& config) {
  if (config.ropes.size() != 1) return {};
  const RopeConfig& rope = config.ropes.front();
  if (rope.scaling == RopeConfig::Scaling::kLongRope) {
    return {{kGgufRopeShort, rope.freq_divisors}, {kGgufRopeLong, rope.long_divisors}};
  }
  if (!rope.freq_divisors.empty()) return {{kGgufRopeFreqs, rope.freq_divisors}};
  if (rope.scaling != RopeConfig::Scaling::kLlama3) return {};
  RopeConfig unscaled = rope;
  unscaled.scaling = RopeConfig::Scaling::kNone;
  const std::vector<double> before = RopeFrequencies(unscaled, {.trained = config.trained_length});
  const std::vector<double> after = RopeFrequencies(rope, {.trained = config.trained_length});
  std::vector<float> divisors;
  for (size_t i = 0; i < before.size(); ++i) divisors.push_back(static_cast<float>(before[i] / after[i]));
  return {{kGgufRopeFreqs, std::move(divisors)}};
}

}  // namespace headwise
