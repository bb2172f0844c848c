#include "model/rope.h"

#include <algorithm>
#include <cmath>

namespace headwise {
namespace {

// Frequencies whose wavelength is long against the original context are divided by `factor`, short ones stay, and
// those between are blended (Llama 3.1's "rope_type": "llama3").
double ScaleLlama3(const RopeConfig& rope, double frequency) {
  const double original = static_cast<double>(rope.original_max_position);
  const double wavelength = 2.0 * M_PI / frequency;
  if (wavelength < original / rope.high_freq_factor) return frequency;
  if (wavelength > original / rope.low_freq_factor) return frequency / rope.factor;
  const double smooth = (original / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return (1.0 - smooth) * frequency / rope.factor + smooth * frequency;
}

}  // namespace

std::vector<double> RopeFrequencies(const RopeConfig& rope, int64_t trained_length, int64_t prompt_tokens) {
  const auto dims = static_cast<double>(rope.rotary_dims);
  double theta = rope.theta;
  if (rope.scaling == RopeConfig::Scaling::kDynamicNtk && dims > 2) {
    const auto trained = static_cast<double>(trained_length);
    const double length = std::max(trained, static_cast<double>(prompt_tokens));
    theta *= std::pow(rope.factor * length / trained - (rope.factor - 1.0), dims / (dims - 2.0));
  }
  std::vector<double> frequencies;
  for (int64_t i = 0; i < rope.rotary_dims / 2; ++i) {
    double frequency = std::pow(theta, -2.0 * static_cast<double>(i) / dims);
    if (rope.scaling == RopeConfig::Scaling::kLinear) frequency /= rope.factor;
    if (rope.scaling == RopeConfig::Scaling::kLlama3) frequency = ScaleLlama3(rope, frequency);
    if (!rope.freq_divisors.empty()) frequency /= rope.freq_divisors[static_cast<size_t>(i)];
    frequencies.push_back(frequency);
  }
  return frequencies;
}

SequenceFrequencies RopeFrequencies(const ModelConfig& config, int64_t prompt_tokens) {
  SequenceFrequencies frequencies;
  for (const RopeConfig& rope : config.ropes) {
    frequencies.push_back(RopeFrequencies(rope, config.trained_length, prompt_tokens));
  }
  return frequencies;
}

void AppendRopeAngles(const std::vector<double>& inverse_frequencies, int64_t pos, std::vector<float>& angles) {
  for (const double frequency : inverse_frequencies) {
    const double angle = static_cast<double>(pos) * frequency;
    angles.push_back(static_cast<float>(std::cos(angle)));
    angles.push_back(static_cast<float>(std::sin(angle)));
  }
}

}  // namespace headwise
