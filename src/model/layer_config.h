// What may differ from layer to layer of one model: how far its attention reads, how it knows positions, and whether
// it has experts.
#ifndef HEADWISE_MODEL_LAYER_CONFIG_H_
#define HEADWISE_MODEL_LAYER_CONFIG_H_

#include <cstdint>
#include <optional>
#include <vector>

namespace headwise {

// Rotary embedding. Frequency i of rotary_dims / 2 is theta^(-2i / rotary_dims), then scaled as `scaling` says, then
// divided by freq_divisors[i].
struct RopeConfig {
  enum class Scaling {
    kNone,
    kLinear,
    kLlama3,
    kDynamicNtk,
    kYarn,      // [YaRN, arXiv 2309.00071 §3.2]
    kLongRope,  // [LongRoPE, arXiv 2402.13753]
  };
  int64_t rotary_dims = 0;  // the first rotary_dims of head_dim are rotated, in halves (Hugging Face order)
  double theta = 10000.0;
  Scaling scaling = Scaling::kNone;
  double factor = 1.0;
  double low_freq_factor = 1.0;           // kLlama3
  double high_freq_factor = 4.0;          // kLlama3
  double beta_fast = 32.0;                // kYarn: turns within the original length above which a frequency stays
  double beta_slow = 1.0;                 // kYarn: turns below which it is divided by factor
  bool rounds_range = true;               // kYarn: the two as whole dimensions
  int64_t original_max_position = 0;      // kLlama3, kYarn, kLongRope
  std::vector<float> freq_divisors = {};  // [rotary_dims / 2], or empty: all 1
  std::vector<float> long_divisors = {};  // kLongRope, in place of freq_divisors: of sequences that may become longer
                                          // than original_max_position
  double amplitude = 1.0;                 // of cosines and sines: what kYarn and kLongRope make of scores
  // What depends on the length is settled once, at admission, and stays: kDynamicNtk's base by max(trained length,
  // prompt tokens), kLongRope's divisors by the most tokens that the sequence may come to have.
};

// More than any published model has.
inline constexpr int64_t kMaxLayers = 4096;

struct LayerConfig {
  std::optional<int64_t> window;  // key j is read if t - j < window [mistral]; none: every key
  // Index into ModelConfig::ropes; none: nothing is rotated, as under ALiBi or in a layer without positions (NoPE).
  std::optional<int64_t> rope;
  bool has_experts = false;  // ModelConfig::experts in place of the MLP

  friend bool operator==(const LayerConfig&, const LayerConfig&) = default;
};

}  // namespace headwise

#endif  // HEADWISE_MODEL_LAYER_CONFIG_H_
