#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <optional>

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

// The index, of the frequencies as a continuous range, of the one that turns `turns` times within the original length.
double YarnIndex(const RopeConfig& rope, double turns) {
  const double wavelength = static_cast<double>(rope.original_max_position) / turns;
  return static_cast<double>(rope.rotary_dims) * std::log(wavelength / (2.0 * M_PI)) / (2.0 * std::log(rope.theta));
}

// The share of frequency i that is divided by `factor`: none of those that turn often within the original length, all
// of those that do not turn once, and a ramp between them.
class YarnRamp {
 public:
  explicit YarnRamp(const RopeConfig& rope)
      : low_(YarnIndex(rope, rope.beta_fast)), high_(YarnIndex(rope, rope.beta_slow)) {
    if (rope.rounds_range) {
      low_ = std::floor(low_);
      high_ = std::ceil(high_);
    }
    low_ = std::max(low_, 0.0);
    high_ = std::min(high_, static_cast<double>(rope.rotary_dims - 1));
    // As published: a ramp without length is a step.
    if (low_ == high_) high_ += 0.001;
  }
  double At(int64_t i) const { return std::clamp((static_cast<double>(i) - low_) / (high_ - low_), 0.0, 1.0); }

 private:
  double low_, high_;
};

const std::vector<float>& DivisorsFor(const RopeConfig& rope, const RopeLengths& lengths) {
  const bool is_long = rope.scaling == RopeConfig::Scaling::kLongRope &&
                       std::max(lengths.prompt, lengths.most) > rope.original_max_position;
  return is_long ? rope.long_divisors : rope.freq_divisors;
}

}  // namespace

double YarnAmplitude(double factor) {
  return factor <= 1.0 ? 1.0 : 0.1 * std::log(factor) + 1.0;
}

std::vector<double> RopeFrequencies(const RopeConfig& rope, const RopeLengths& lengths) {
  const auto dims = static_cast<double>(rope.rotary_dims);
  double theta = rope.theta;
  if (rope.scaling == RopeConfig::Scaling::kDynamicNtk && dims > 2) {
    const auto trained = static_cast<double>(lengths.trained);
    const double length = std::max(trained, static_cast<double>(lengths.prompt));
    theta *= std::pow(rope.factor * length / trained - (rope.factor - 1.0), dims / (dims - 2.0));
  }
  std::optional<YarnRamp> ramp;
  if (rope.scaling == RopeConfig::Scaling::kYarn) ramp.emplace(rope);
  const std::vector<float>& divisors = DivisorsFor(rope, lengths);
  std::vector<double> frequencies;
  for (int64_t i = 0; i < rope.rotary_dims / 2; ++i) {
    double frequency = std::pow(theta, -2.0 * static_cast<double>(i) / dims);
    if (rope.scaling == RopeConfig::Scaling::kLinear) frequency /= rope.factor;
    if (rope.scaling == RopeConfig::Scaling::kLlama3) frequency = ScaleLlama3(rope, frequency);
    if (ramp) frequency *= 1.0 - ramp->At(i) * (1.0 - 1.0 / rope.factor);
    if (!divisors.empty()) frequency /= divisors[static_cast<size_t>(i)];
    frequencies.push_back(frequency);
  }
  return frequencies;
}

SequenceFrequencies RopeFrequencies(const ModelConfig& config, int64_t prompt_tokens, int64_t max_tokens) {
  const RopeLengths lengths{.trained = config.trained_length, .prompt = prompt_tokens, .most = max_tokens};
  SequenceFrequencies frequencies;
  for (const RopeConfig& rope : config.ropes) {
    frequencies.push_back(RopeFrequencies(rope, lengths));
  }
  return frequencies;
}

void AppendRopeAngles(const std::vector<double>& inverse_frequencies, double amplitude, int64_t pos,
                      std::vector<float>& angles) {
  for (const double frequency : inverse_frequencies) {
    const double angle = static_cast<double>(pos) * frequency;
    angles.push_back(static_cast<float>(amplitude * std::cos(angle)));
    angles.push_back(static_cast<float>(amplitude * std::sin(angle)));
  }
}

}  // namespace headwise
