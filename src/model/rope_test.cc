#include "model/rope.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/load_config.h"
#include "model/step_angles.h"
#include "support/gguf_samples.h"
#include "support/golden.h"

namespace headwise {
namespace {

ModelConfig Golden(const std::string& name) {
  const auto config = ReadModelConfig(SourcePath("tests/golden/tiny/" + name));
  EXPECT_TRUE(config.ok()) << config.status().message();
  return config.ok() ? *config : ModelConfig{};
}

// Llama 3's scaling as a list of divisors is the same as by its formula, in all three of its zones.
TEST(RopeFrequencies, Llama3ScalingAsDivisors) {
  const ModelConfig by_formula = Golden("llama-rope-llama3");
  ModelConfig by_divisors = by_formula;
  by_divisors.ropes[0].scaling = RopeConfig::Scaling::kNone;
  by_divisors.ropes[0].freq_divisors = Llama3Divisors(by_formula);
  EXPECT_EQ(by_divisors.ropes[0].freq_divisors.front(), 1.0f);
  EXPECT_EQ(by_divisors.ropes[0].freq_divisors.back(), 8.0f);
  const std::vector<double> expected = RopeFrequencies(by_formula, 1, 1)[0];
  const std::vector<double> found = RopeFrequencies(by_divisors, 1, 1)[0];
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-7 * expected[i]) << i;
}

TEST(RopeFrequencies, DivisorsComeAfterScaling) {
  ModelConfig config = Golden("llama-rope-linear");
  const std::vector<double> linear = RopeFrequencies(config, 1, 1)[0];
  config.ropes[0].freq_divisors.assign(linear.size(), 4.0f);
  for (size_t i = 0; i < linear.size(); ++i) EXPECT_DOUBLE_EQ(RopeFrequencies(config, 1, 1)[0][i], linear[i] / 4) << i;
}

// Settled by what the sequence may become, not by what it begins with.
TEST(RopeFrequencies, LongRopeGoesByTheMostTokens) {
  const ModelConfig config = Golden("phi3");
  const RopeConfig& rope = config.ropes[0];
  ASSERT_EQ(rope.original_max_position, 32);
  const std::vector<double> brief = RopeFrequencies(config, 8, 32)[0];
  const std::vector<double> extended = RopeFrequencies(config, 8, 33)[0];
  for (size_t i = 0; i < brief.size(); ++i) {
    EXPECT_NEAR(brief[i] / extended[i], rope.long_divisors[i] / rope.freq_divisors[i], 1e-6) << i;
  }
  EXPECT_NE(brief, extended);
}

TEST(RopeFrequencies, DivisorsThatCannotBeAreRefused) {
  ModelConfig config = Golden("llama-mha");
  const auto size = static_cast<size_t>(config.ropes[0].rotary_dims / 2);
  config.ropes[0].freq_divisors.assign(size, 1.0f);
  EXPECT_TRUE(ValidateConfig(config, "c").ok());
  config.ropes[0].freq_divisors.back() = 0.0f;
  EXPECT_EQ(ValidateConfig(config, "c").message(), "c: a rope frequency has the divisor 0, expected more than 0");
  config.ropes[0].freq_divisors.pop_back();
  EXPECT_EQ(ValidateConfig(config, "c").message(), "c: 7 divisors of 8 rope frequencies");
}

// As sines of the whole angle give them, at any distance.
TEST(AngleTable, IsWhatSinesSay) {
  const std::vector<double> frequencies = RopeFrequencies(Golden("llama-rope-llama3"), 1, 1)[0];
  AngleTable table(frequencies);
  for (const int64_t pos : {0, 1, 255, 256, 257, 511, 4095, 131071, 1000003, 987654321}) {
    std::vector<float> expected, found;
    AppendRopeAngles(frequencies, 1.5, pos, expected);
    table.Append(pos, 1.5, found);
    ASSERT_EQ(found.size(), expected.size());
    // One unit in the last place of a float, and what a double can say of an angle so large.
    const double tolerance = 1.2e-7 + 1.5e-15 * static_cast<double>(pos);
    for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], tolerance) << pos << " " << i;
  }
}

}  // namespace
}  // namespace headwise
