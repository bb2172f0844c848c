#include "model/model_config.h"

#include <fmt/format.h>

#include <cmath>

namespace headwise {
namespace {

Status CheckSizes(const ModelConfig& config, const std::string& origin) {
  struct Dimension {
    const char* name;
    int64_t value;
    int64_t limit;
  };
  // Beyond any published model, and low enough that no product of sizes of one tensor leaves int64.
  for (const Dimension& dim : {Dimension{"layers", config.num_layers, 4096},
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

Status CheckPositions(const ModelConfig& config, const std::string& origin) {
  if (config.positions == PositionKind::kAlibi) {
    if (static_cast<int64_t>(config.alibi_slopes.size()) != config.num_q_heads) {
      return Status::InvalidInput(fmt::format("{}: {} ALiBi slopes for {} query heads", origin,
                                              config.alibi_slopes.size(), config.num_q_heads));
    }
    return Status::Ok();
  }
  const RopeConfig& rope = config.rope;
  if (rope.rotary_dims < 2 || rope.rotary_dims % 2 != 0 || rope.rotary_dims > config.head_dim) {
    return Status::InvalidInput(fmt::format("{}: {} rotary dimensions of a head dim of {}, expected an even number",
                                            origin, rope.rotary_dims, config.head_dim));
  }
  if (!(rope.theta > 1.0) || !std::isfinite(rope.theta)) {
    return Status::InvalidInput(fmt::format("{}: rope theta is {}, expected more than 1", origin, rope.theta));
  }
  if (!(rope.factor >= 1.0) || !std::isfinite(rope.factor)) {
    return Status::InvalidInput(fmt::format("{}: rope factor is {}, expected at least 1", origin, rope.factor));
  }
  if (!rope.freq_divisors.empty() && static_cast<int64_t>(rope.freq_divisors.size()) != rope.rotary_dims / 2) {
    return Status::InvalidInput(
        fmt::format("{}: {} divisors of {} rope frequencies", origin, rope.freq_divisors.size(), rope.rotary_dims / 2));
  }
  for (const float divisor : rope.freq_divisors) {
    if (divisor > 0.0f && std::isfinite(divisor)) continue;
    return Status::InvalidInput(
        fmt::format("{}: a rope frequency has the divisor {}, expected more than 0", origin, divisor));
  }
  return Status::Ok();
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

LayerWindows LayerWindowsOf(const ModelConfig& config) {
  LayerWindows windows;
  if (!config.sliding_window) return windows;
  windows.tokens.assign(static_cast<size_t>(config.num_layers), *config.sliding_window);
  return windows;
}

Status ValidateConfig(const ModelConfig& config, const std::string& origin) {
  HW_RETURN_IF_ERROR(CheckSizes(config, origin));
  HW_RETURN_IF_ERROR(CheckPositions(config, origin));
  HW_RETURN_IF_ERROR(CheckTokenIds(config, origin));
  if (config.sliding_window && *config.sliding_window < 1) {
    return Status::InvalidInput(
        fmt::format("{}: sliding window is {}, expected at least 1", origin, *config.sliding_window));
  }
  if (!(config.norm_eps >= 0) || !(config.softmax_scale > 0)) {
    return Status::InvalidInput(fmt::format("{}: norm epsilon {} or softmax scale {} is out of range", origin,
                                            config.norm_eps, config.softmax_scale));
  }
  if (config.zero_sink && config.learned_sinks) {
    return Status::InvalidInput(
        fmt::format("{}: both a zero sink and learned sink logits, expected one of them", origin));
  }
  return Status::Ok();
}

}  // namespace headwise
