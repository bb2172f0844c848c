// A model's config as text.
#ifndef HEADWISE_TESTS_SUPPORT_DESCRIBE_CONFIG_H_
#define HEADWISE_TESTS_SUPPORT_DESCRIBE_CONFIG_H_

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <optional>
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
  text +=
      fmt::format("norms {} {} caps {} {} scales {} {} ", static_cast<int>(c.norm_places), static_cast<int>(c.qk_norm),
                  c.score_cap.value_or(0), c.logit_cap.value_or(0), c.embedding_scale, c.logit_scale);
  text += fmt::format("positions {} {} ", static_cast<int>(c.positions), c.num_positions);
  for (const RopeConfig& rope : c.ropes) {
    text += fmt::format("rope {} {} {} {} {} {} {} divisors [{:.6}] [{:.6}] betas {} {} {} amplitude {:.6} ",
                        rope.rotary_dims, rope.theta, static_cast<int>(rope.scaling), rope.factor, rope.low_freq_factor,
                        rope.high_freq_factor, rope.original_max_position, fmt::join(rope.freq_divisors, ", "),
                        fmt::join(rope.long_divisors, ", "), rope.beta_fast, rope.beta_slow, rope.rounds_range,
                        rope.amplitude);
  }
  text += fmt::format("slopes [{}] scale {:.6} clip {} ", fmt::join(c.alibi_slopes, ", "), c.softmax_scale,
                      c.qkv_clip.value_or(-1));
  // Once where all layers are alike.
  for (size_t i = 0; i < (c.CommonLayer() ? 1 : c.layers.size()); ++i) {
    text += fmt::format("rope {} window {} ", c.layers[i].rope.value_or(-1), c.layers[i].window.value_or(-1));
    if (c.layers[i].has_experts) text += "experts ";
  }
  if (const ExpertsConfig& e = c.experts; c.AnyExperts()) {
    text += fmt::format("X{} of {} F{} shared {} {} scores {} {} {} scale {} bias {} {} ", e.num_chosen, e.num_experts,
                        e.ffn_dim, e.shared_ffn_dim, e.has_shared_gate, static_cast<int>(e.scores),
                        e.has_selection_bias, e.normalised, e.scale, e.router_bias, e.bias);
  }
  text += fmt::format("sinks {} {} bos {} eos [{}]", c.zero_sink, c.learned_sinks, c.bos_id.value_or(-1),
                      fmt::join(c.eos_ids, ", "));
  return text;
}

// The window of a model whose layers are alike; -2 where they differ.
inline std::optional<int64_t> WindowOfAll(const ModelConfig& config) {
  const std::optional<LayerConfig> layer = config.CommonLayer();
  return layer ? layer->window : -2;
}

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_DESCRIBE_CONFIG_H_
