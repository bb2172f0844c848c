#include "model/model_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

namespace headwise {
namespace {

Status CheckSizes(const ModelConfig& config, const std::string& origin) {
  struct Dimension {
    const char* name;
    int64_t value;
    int64_t limit;
  };
  // Beyond any published model, and low enough that no product of sizes of one tensor leaves int64.
  for (const Dimension& dim : {Dimension{"layers", config.num_layers, kMaxLayers},
                               {"model dim", config.model_dim, 1 << 20},
                               {"ffn dim", config.ffn_dim, 1 << 22},
                               {"query heads", config.num_q_heads, 4096},
                               {"KV heads", config.num_kv_heads, 4096},
                               {"head dim", config.head_dim, 1024},
                               {"vocabulary", config.vocab_size, 1 << 24},
                               {"trained length", config.trained_length, int64_t{1} << 31}}) {
    if (dim.value < 1 || dim.value > dim.limit) {
      return Status::InvalidInput(
          fmt::format("{}: {} is {}, expected 1 to {}", origin, dim.name, dim.value, dim.limit));
    }
  }
  if (config.num_q_heads % config.num_kv_heads != 0) {
    return Status::InvalidInput(fmt::format("{}: {} query heads are not a multiple of {} KV heads", origin,
                                            config.num_q_heads, config.num_kv_heads));
  }
  return Status::Ok();
}

// Ranges are wider than any model's, and narrow enough that the f32 that is computed with is neither 0 nor infinite.
struct Number {
  const char* name;
  double value;
  double least;
  double most;
};

Status CheckNumbers(const std::vector<Number>& numbers, const std::string& origin) {
  for (const Number& number : numbers) {
    if (number.value >= number.least && number.value <= number.most) continue;
    return Status::InvalidInput(
        fmt::format("{}: {} is {}, expected {} to {}", origin, number.name, number.value, number.least, number.most));
  }
  return Status::Ok();
}

Status CheckDivisors(const std::vector<float>& divisors, int64_t num_frequencies, const std::string& origin) {
  if (!divisors.empty() && static_cast<int64_t>(divisors.size()) != num_frequencies) {
    return Status::InvalidInput(
        fmt::format("{}: {} divisors of {} rope frequencies", origin, divisors.size(), num_frequencies));
  }
  for (const float divisor : divisors) {
    if (divisor > 0.0f && std::isfinite(divisor)) continue;
    return Status::InvalidInput(
        fmt::format("{}: a rope frequency has the divisor {}, expected more than 0", origin, divisor));
  }
  return Status::Ok();
}

Status CheckRope(const ModelConfig& config, const RopeConfig& rope, const std::string& origin) {
  if (rope.rotary_dims < 2 || rope.rotary_dims % 2 != 0 || rope.rotary_dims > config.head_dim) {
    return Status::InvalidInput(fmt::format("{}: {} rotary dimensions of a head dim of {}, expected an even number",
                                            origin, rope.rotary_dims, config.head_dim));
  }
  constexpr double kMostTheta = 1e18;
  if (!(rope.theta > 1.0 && rope.theta <= kMostTheta)) {
    return Status::InvalidInput(
        fmt::format("{}: rope theta is {}, expected more than 1 and up to {}", origin, rope.theta, kMostTheta));
  }
  constexpr double kMostFactor = 1e9;
  HW_RETURN_IF_ERROR(CheckNumbers({{"rope factor", rope.factor, 1, kMostFactor},
                                   {"rope amplitude", rope.amplitude, 1e-3, 1e3},
                                   {"rope beta_fast", rope.beta_fast, 1e-6, kMostFactor},
                                   {"rope beta_slow", rope.beta_slow, 1e-6, kMostFactor},
                                   {"rope low_freq_factor", rope.low_freq_factor, 0, kMostFactor},
                                   {"rope high_freq_factor", rope.high_freq_factor, 0, kMostFactor}},
                                  origin));
  const bool needs_length =
      rope.scaling == RopeConfig::Scaling::kYarn || rope.scaling == RopeConfig::Scaling::kLongRope;
  if (needs_length && rope.original_max_position < 1) {
    return Status::InvalidInput(
        fmt::format("{}: rope has an original length of {}, expected at least 1", origin, rope.original_max_position));
  }
  for (const std::vector<float>* divisors : {&rope.freq_divisors, &rope.long_divisors}) {
    HW_RETURN_IF_ERROR(CheckDivisors(*divisors, rope.rotary_dims / 2, origin));
  }
  return Status::Ok();
}

Status CheckPositions(const ModelConfig& config, const std::string& origin) {
  if ((config.positions == PositionKind::kLearned) != (config.num_positions > 0)) {
    return Status::InvalidInput(fmt::format("{}: {} learned positions", origin, config.num_positions));
  }
  if (config.positions == PositionKind::kLearned) return Status::Ok();
  if (config.positions == PositionKind::kRope) {
    for (const RopeConfig& rope : config.ropes) HW_RETURN_IF_ERROR(CheckRope(config, rope, origin));
    return Status::Ok();
  }
  if (static_cast<int64_t>(config.alibi_slopes.size()) != config.num_q_heads) {
    return Status::InvalidInput(
        fmt::format("{}: {} ALiBi slopes for {} query heads", origin, config.alibi_slopes.size(), config.num_q_heads));
  }
  if (!config.ropes.empty()) {
    return Status::InvalidInput(fmt::format("{}: both ALiBi and a rotary embedding, expected one of them", origin));
  }
  return Status::Ok();
}

Status CheckLayers(const ModelConfig& config, const std::string& origin) {
  if (static_cast<int64_t>(config.layers.size()) != config.num_layers) {
    return Status::InvalidInput(fmt::format("{}: windows and positions of {} layers, expected {}", origin,
                                            config.layers.size(), config.num_layers));
  }
  for (int64_t layer_idx = 0; layer_idx < config.num_layers; ++layer_idx) {
    const LayerConfig& layer = config.layer(layer_idx);
    if (layer.window && *layer.window < 1) {
      return Status::InvalidInput(
          fmt::format("{}: layer {}: sliding window is {}, expected at least 1", origin, layer_idx, *layer.window));
    }
    const auto num_ropes = static_cast<int64_t>(config.ropes.size());
    if (layer.rope && (*layer.rope < 0 || *layer.rope >= num_ropes)) {
      return Status::InvalidInput(
          fmt::format("{}: layer {}: rotary embedding {} of {}", origin, layer_idx, *layer.rope, num_ropes));
    }
  }
  return Status::Ok();
}

Status CheckExperts(const ModelConfig& config, const std::string& origin) {
  const ExpertsConfig& experts = config.experts;
  const bool any_layer = std::ranges::any_of(config.layers, [](const LayerConfig& each) { return each.has_experts; });
  if (!config.AnyExperts()) {
    if (!any_layer) return Status::Ok();
    return Status::InvalidInput(fmt::format("{}: layers with experts in a model that has none", origin));
  }
  if (!IsGated(config.mlp)) {
    return Status::InvalidInput(fmt::format("{}: experts with an activation without a gate", origin));
  }
  constexpr int64_t kMostExperts = 1 << 16;
  constexpr int64_t kMostDim = 1 << 22;
  const std::tuple<const char*, int64_t, int64_t, int64_t> sizes[] = {
      {"number of experts", experts.num_experts, 1, kMostExperts},
      {"number of experts per token", experts.num_chosen, 1, experts.num_experts},
      {"ffn dim of experts", experts.ffn_dim, 1, kMostDim},
      {"ffn dim of the shared expert", experts.shared_ffn_dim, 0, kMostDim}};
  for (const auto& [name, value, least, most] : sizes) {
    if (value >= least && value <= most) continue;
    return Status::InvalidInput(fmt::format("{}: {} is {}, expected {} to {}", origin, name, value, least, most));
  }
  return CheckNumbers({{"scale of experts", experts.scale, 1e-6, 1e6}}, origin);
}

Status CheckScales(const ModelConfig& config, const std::string& origin) {
  std::vector<Number> numbers = {{"norm epsilon", config.norm_eps, 0, 1},
                                 {"embedding scale", config.embedding_scale, 1e-6, 1e6},
                                 {"logit scale", config.logit_scale, 1e-6, 1e6},
                                 {"softmax scale", config.softmax_scale, 1e-6, 1e3}};
  if (config.score_cap) numbers.push_back({"cap of scores", *config.score_cap, 1e-3, 1e6});
  if (config.logit_cap) numbers.push_back({"cap of logits", *config.logit_cap, 1e-3, 1e6});
  if (config.qkv_clip) numbers.push_back({"limit of queries, keys and values", *config.qkv_clip, 1e-6, 1e30});
  for (const float slope : config.alibi_slopes) numbers.push_back({"ALiBi slope", slope, 0, 1e3});
  return CheckNumbers(numbers, origin);
}

Status CheckTokenIds(const ModelConfig& config, const std::string& origin) {
  const auto check = [&](const char* what, int32_t id) {
    if (id >= 0 && id < config.vocab_size) return Status::Ok();
    return Status::InvalidInput(fmt::format("{}: {} id {} of a vocabulary of {}", origin, what, id, config.vocab_size));
  };
  if (config.bos_id) HW_RETURN_IF_ERROR(check("bos", *config.bos_id));
  for (const int32_t id : config.eos_ids) HW_RETURN_IF_ERROR(check("eos", id));
  return Status::Ok();
}

}  // namespace

bool IsGated(MlpKind kind) {
  return kind != MlpKind::kGelu && kind != MlpKind::kGeluTanh;
}

void ModelConfig::SetLayersAlike(std::optional<RopeConfig> rope, std::optional<int64_t> window) {
  LayerConfig layer{.window = window, .rope = {}, .has_experts = AnyExperts()};
  ropes.clear();
  if (rope) {
    ropes.push_back(*std::move(rope));
    layer.rope = 0;
  }
  layers.assign(static_cast<size_t>(num_layers), layer);
}

std::optional<LayerConfig> ModelConfig::CommonLayer() const {
  if (layers.empty() || !std::ranges::all_of(layers, [&](const LayerConfig& each) { return each == layers[0]; })) {
    return std::nullopt;
  }
  return layers[0];
}

LayerWindows LayerWindowsOf(const ModelConfig& config) {
  LayerWindows windows;
  for (const LayerConfig& layer : config.layers) windows.tokens.push_back(layer.window.value_or(kNoLimit));
  return windows;
}

Status ValidateConfig(const ModelConfig& config, const std::string& origin) {
  HW_RETURN_IF_ERROR(CheckSizes(config, origin));
  HW_RETURN_IF_ERROR(CheckPositions(config, origin));
  HW_RETURN_IF_ERROR(CheckTokenIds(config, origin));
  HW_RETURN_IF_ERROR(CheckLayers(config, origin));
  HW_RETURN_IF_ERROR(CheckExperts(config, origin));
  HW_RETURN_IF_ERROR(CheckScales(config, origin));
  if (config.zero_sink && config.learned_sinks) {
    return Status::InvalidInput(
        fmt::format("{}: both a zero sink and learned sink logits, expected one of them", origin));
  }
  return Status::Ok();
}

}  // namespace headwise
