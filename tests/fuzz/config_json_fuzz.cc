// Any text as a config.json: an error, or a config that holds what the decoder relies on.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "model/load_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto config = headwise::ParseModelConfig(text, "fuzz");
  if (!config.ok()) {
    HW_CHECK(config.status().message().starts_with("fuzz"), "{}", config.status().message());
    return 0;
  }
  HW_CHECK(config->num_q_heads % config->num_kv_heads == 0, "{} {}", config->num_q_heads, config->num_kv_heads);
  HW_CHECK(config->softmax_scale > 0 && config->trained_length > 0, "{} {}", config->softmax_scale,
           config->trained_length);
  const bool alibi = config->positions == headwise::PositionKind::kAlibi;
  HW_CHECK(!alibi || static_cast<int64_t>(config->alibi_slopes.size()) == config->num_q_heads, "{}",
           config->alibi_slopes.size());
  for (const headwise::RopeConfig& rope : config->ropes) {
    HW_CHECK(!alibi && rope.rotary_dims <= config->head_dim, "{}", rope.rotary_dims);
  }
  HW_CHECK(static_cast<int64_t>(config->layers.size()) == config->num_layers, "{}", config->layers.size());
  return 0;
}
