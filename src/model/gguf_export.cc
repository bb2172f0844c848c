#include "model/gguf_export.h"

#include <fmt/format.h>

#include <cmath>

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
  if (type == nullptr) return;
  keys.String("rope.scaling.type", type);
  keys.Number("rope.scaling.factor", rope.factor);
  if (rope.scaling == RopeConfig::Scaling::kYarn) SetYarn(rope, keys);
}

// The family's config keeps it; slopes are made from it in ways that differ.
double MaxAlibiBias(const ModelConfig& config, const Json& checkpoint) {
  constexpr double kUsual = 8.0;
  if (config.family != "mpt" || !checkpoint.contains("attn_config")) return kUsual;
  const Json& attention = checkpoint["attn_config"];
  return attention.is_object() && attention.contains("alibi_bias_max") && attention["alibi_bias_max"].is_number()
             ? attention["alibi_bias_max"].get<double>()
             : kUsual;
}

}  // namespace

Result<GgufMetadata> GgufMetadataOf(const ModelConfig& config, const Json& checkpoint) {
  const GgufArchitecture* architecture = FindGgufArchitecture(config.family);
  if (architecture == nullptr) {
    return Status::Unsupported(fmt::format("family {} has no architecture in GGUF files", config.family));
  }
  const std::optional<LayerConfig> layer = config.CommonLayer();
  if (!layer || layer->rope.has_value() != (config.positions == PositionKind::kRope)) {
    return Status::Unsupported(
        fmt::format("family {}: windows or positions differ from layer to layer, for which architecture {} has no keys",
                    config.family, architecture->name));
  }
  for (const RopeConfig& rope : config.ropes) {
    if (rope.scaling != RopeConfig::Scaling::kYarn || rope.rounds_range) continue;
    return Status::Unsupported(
        fmt::format("family {}: YaRN with \"truncate\" false, for which architecture {} has no key", config.family,
                    architecture->name));
  }
  GgufMetadata metadata;
  metadata.SetString("general.architecture", std::string(architecture->name));
  metadata.SetString("general.type", "model");
  metadata.SetU32("general.quantization_version", 2);
  if (architecture->name != config.family) metadata.SetString(kGgufFamilyKey, config.family);
  if (config.zero_sink) metadata.SetBool(kGgufZeroSinkKey, true);
  KeyWriter keys(metadata, architecture->name);
  keys.Size("vocab_size", config.vocab_size);
  keys.Size("context_length", config.trained_length);
  keys.Size("block_count", config.num_layers);
  keys.Size("embedding_length", config.model_dim);
  keys.Size("feed_forward_length", config.ffn_dim);
  keys.Size("attention.head_count", config.num_q_heads);
  keys.Size("attention.head_count_kv", config.num_kv_heads);
  keys.Size("attention.key_length", config.head_dim);
  keys.Size("attention.value_length", config.head_dim);
  keys.Number(config.norm == NormKind::kRms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon",
              config.norm_eps);
  if (layer->rope) {
    SetRope(config.ropes[static_cast<size_t>(*layer->rope)], keys);
  } else {
    keys.Number("attention.max_alibi_bias", MaxAlibiBias(config, checkpoint));
  }
  if (layer->window) keys.Size("attention.sliding_window", *layer->window);
  if (config.qkv_clip) keys.Number("attention.clamp_kqv", *config.qkv_clip);
  if (config.family == "gpt_neox") keys.Bool("use_parallel_residual", config.residual != ResidualKind::kSerial);
  const double usual_scale = 1.0 / std::sqrt(static_cast<double>(config.head_dim));
  if (config.family == "mpt" && config.softmax_scale != usual_scale) {
    keys.Number("attention.scale", config.softmax_scale);
  }
  return metadata;
}

std::vector<float> GgufRopeDivisors(const ModelConfig& config) {
  // Models with several have no place in the format: GgufMetadataOf.
  if (config.ropes.size() != 1) return {};
  const RopeConfig& rope = config.ropes.front();
  if (!rope.freq_divisors.empty()) return rope.freq_divisors;
  if (rope.scaling != RopeConfig::Scaling::kLlama3) return {};
  RopeConfig unscaled = rope;
  unscaled.scaling = RopeConfig::Scaling::kNone;
  const std::vector<double> before = RopeFrequencies(unscaled, {.trained = config.trained_length});
  const std::vector<double> after = RopeFrequencies(rope, {.trained = config.trained_length});
  std::vector<float> divisors;
  for (size_t i = 0; i < before.size(); ++i) divisors.push_back(static_cast<float>(before[i] / after[i]));
  return divisors;
}

}  // namespace headwise
