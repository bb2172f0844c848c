// A model's config as text.
#ifndef HEADWISE_TESTS_SUPPORT_DESCRIBE_CONFIG_H_
#define HEADWISE_TESTS_SUPPORT_DESCRIBE_CONFIG_H_

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>

#include "model/model_config.h"

namespace headwise {

// Every field, so that two configs can be compared and a difference read.
inline std::string Describe(const ModelConfig& c) {
  std::string text = fmt::format("{} L{} E{} F{} Hq{} Hkv{} D{} V{} length {} ", c.family, c.num_layers, c.model_dim,
                                 c.ffn_dim, c.num_q_heads, c.num_kv_heads, c.head_dim, c.vocab_size, c.trained_length);
  text += fmt::format("norm {} {} mlp {} residual {} tied {} bias {} {} {} {} ", static_cast<int>(c.norm), c.norm_eps,
                      static_cast<int>(c.mlp), static_cast<int>(c.residual), c.tied_embeddings, c.norm_bias, c.qkv_bias,
                      c.o_bias, c.mlp_bias);
  text += fmt::format("positions {} rope {} {} {} {} {} {} {} divisors [{:.6}] slopes [{}] ",
                      static_cast<int>(c.positions), c.rope.rotary_dims, c.rope.theta, static_cast<int>(c.rope.scaling),
                      c.rope.factor, c.rope.low_freq_factor, c.rope.high_freq_factor, c.rope.original_max_position,
                      fmt::join(c.rope.freq_divisors, ", "), fmt::join(c.alibi_slopes, ", "));
  text += fmt::format("scale {:.6} clip {} window {} sinks {} {} bos {} eos [{}]", c.softmax_scale,
                      c.qkv_clip.value_or(-1), c.sliding_window.value_or(-1), c.zero_sink, c.learned_sinks,
                      c.bos_id.value_or(-1), fmt::join(c.eos_ids, ", "));
  return text;
}

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_DESCRIBE_CONFIG_H_
