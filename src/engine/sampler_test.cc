#include "engine/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <vector>

namespace headwise {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// Frequencies of `num_draws` draws from the same logits.
std::map<int32_t, double> Frequencies(const SamplingOptions& options, const std::vector<float>& logits,
                                      int num_draws = 20000) {
  Sampler sampler(options);
  std::map<int32_t, double> counts;
  for (int i = 0; i < num_draws; ++i) {
    std::vector<float> scratch = logits;
    counts[sampler.Sample(scratch, {})] += 1.0 / num_draws;
  }
  return counts;
}

// Logits whose softmax is exactly these probabilities.
std::vector<float> Logits(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

TEST(Sampler, GreedyTakesTheLowestIdOfEqualOnes) {
  Sampler sampler({});
  std::vector<float> logits = {1, 3, 2, 3};
  EXPECT_EQ(sampler.Sample(logits, {}), 1);
}

// Whatever the size, the first of the highest, as one comparison after the other finds it.
TEST(Sampler, GreedyTakesTheFirstOfTheHighest) {
  std::mt19937 rng(1);
  for (const size_t size : {1, 2, 15, 16, 17, 511, 512, 513, 1024, 5000}) {
    for (int round = 0; round < 50; ++round) {
      std::vector<float> logits(size);
      // Few values, so that there are ties in other lanes and blocks.
      for (float& logit : logits) logit = static_cast<float>(rng() % (round % 2 == 0 ? 5 : 100000)) - 3;
      if (round % 7 == 0) logits[rng() % size] = std::nanf("");
      if (round % 11 == 0) std::fill(logits.begin(), logits.end(), -INFINITY);
      int32_t expected = 0;
      float highest = -INFINITY;
      for (size_t id = 0; id < size; ++id) {
        if (!(logits[id] > highest)) continue;
        highest = logits[id];
        expected = static_cast<int32_t>(id);
      }
      ASSERT_EQ(Sampler({}).Sample(logits, {}), expected) << size << " round " << round;
    }
  }
}

TEST(Sampler, GreedyPassesOverNan) {
  Sampler sampler({});
  std::vector<float> logits = {std::nanf(""), -2, -1};
  EXPECT_EQ(sampler.Sample(logits, {}), 2);
  std::vector<float> infinite = {-kInf, kInf, 5};
  EXPECT_EQ(Sampler({.temperature = 1}).Sample(infinite, {}), 1);
}

TEST(Sampler, PenaltyDividesPositiveMultipliesNegativeEachIdOnce) {
  Sampler sampler({.repetition_penalty = 2});
  TokenSet seen;
  seen.Add(std::vector<int32_t>{0, 0, 0, 1});
  std::vector<float> logits = {4, -1, 1.9F, -1.5F};
  EXPECT_EQ(sampler.Sample(logits, seen), 0);  // 4 / 2 = 2 > 1.9; three times would be 0.5
  EXPECT_FLOAT_EQ(logits[0], 2);
  EXPECT_FLOAT_EQ(logits[1], -2);
  EXPECT_FLOAT_EQ(logits[3], -1.5F);
}

TEST(Sampler, PenaltyFollowsAGrowingText) {
  Sampler sampler({.repetition_penalty = 4});
  TokenSet seen;
  seen.Add(2);
  for (const int32_t expected : {0, 1, 0}) {  // each winner falls behind once it is part of the text
    std::vector<float> logits = {4, 3, 2};
    EXPECT_EQ(sampler.Sample(logits, seen), expected);
    seen.Add(expected);
  }
}

TEST(Sampler, TemperatureShapesTheDistribution) {
  const auto logits = Logits({0.5, 0.3, 0.2});
  const auto at_one = Frequencies({.temperature = 1, .seed = 1}, logits);
  EXPECT_NEAR(at_one.at(0), 0.5, 0.02);
  EXPECT_NEAR(at_one.at(1), 0.3, 0.02);
  EXPECT_NEAR(at_one.at(2), 0.2, 0.02);
  const auto at_half = Frequencies({.temperature = 0.5F, .seed = 1}, logits);  // probabilities squared: 25 : 9 : 4
  EXPECT_NEAR(at_half.at(0), 25.0 / 38, 0.02);
  EXPECT_NEAR(at_half.at(2), 4.0 / 38, 0.02);
}

TEST(Sampler, TopKKeepsExactlyKLowestIdsFirst) {
  const auto counts = Frequencies({.temperature = 1, .top_k = 2, .seed = 3}, {1, 5, 5, 5});
  EXPECT_EQ(counts.size(), 2U);
  EXPECT_NEAR(counts.at(1), 0.5, 0.02);
  EXPECT_NEAR(counts.at(2), 0.5, 0.02);
}

TEST(Sampler, TopPKeepsTheSmallestSetThatReachesIt) {
  const auto logits = Logits({0.1, 0.4, 0.2, 0.3});
  const auto two = Frequencies({.temperature = 1, .top_p = 0.65F, .seed = 3}, logits);  // 0.4 + 0.3
  EXPECT_EQ(two.size(), 2U);
  EXPECT_NEAR(two.at(1), 4.0 / 7, 0.02);
  EXPECT_NEAR(two.at(3), 3.0 / 7, 0.02);
  const auto one = Frequencies({.temperature = 1, .top_p = 0.001F, .seed = 3}, logits);
  EXPECT_EQ(one.size(), 1U);  // never nothing
  EXPECT_EQ(one.count(1), 1U);
}

TEST(Sampler, TopPCountsWhatTopKLeft) {
  // After top-k 2 the probabilities are 4/7 and 3/7, so 0.5 is reached by one token; before, it would take two.
  const auto counts =
      Frequencies({.temperature = 1, .top_k = 2, .top_p = 0.5F, .seed = 3}, Logits({0.1, 0.4, 0.2, 0.3}));
  EXPECT_EQ(counts.size(), 1U);
}

TEST(Sampler, MinPIsRelativeToTheBest) {
  const auto counts = Frequencies({.temperature = 1, .min_p = 0.45F, .seed = 5}, Logits({0.4, 0.15, 0.25, 0.2}));
  EXPECT_EQ(counts.size(), 3U);  // 0.15 < 0.45 * 0.4
  EXPECT_EQ(counts.count(1), 0U);
}

TEST(Sampler, TemperatureComesBeforeTopP) {
  // At temperature 0.5 the first has 25 / 38 = 0.66 of the weight and alone reaches 0.6; at 1 it takes two.
  const auto logits = Logits({0.5, 0.3, 0.2});
  EXPECT_EQ(Frequencies({.temperature = 0.5F, .top_p = 0.6F}, logits).size(), 1U);
  EXPECT_EQ(Frequencies({.temperature = 1, .top_p = 0.6F}, logits).size(), 2U);
}

TEST(Sampler, SeedFixesTheDraws) {
  const std::vector<float> logits(100, 0.0F);
  const auto draw = [&](uint64_t seed) {
    Sampler sampler({.temperature = 1, .seed = seed});
    std::vector<int32_t> ids;
    for (int i = 0; i < 8; ++i) {
      std::vector<float> scratch = logits;
      ids.push_back(sampler.Sample(scratch, {}));
    }
    return ids;
  };
  EXPECT_EQ(draw(7), draw(7));
  EXPECT_NE(draw(7), draw(8));
  // The first 53-bit uniform of mt19937_64 with seed 5489 is 14514284786278117030 / 2^64 = 0.7868...
  EXPECT_EQ(draw(5489)[0], 78);
}

// What the sampler chose before counts, and nothing else: not what the text has.
TEST(Sampler, PenaltiesCountWhatWasGenerated) {
  Sampler sampler({.frequency_penalty = 0.5F, .presence_penalty = 1});
  TokenSet seen;
  seen.Add(std::vector<int32_t>{0, 1, 2});
  const std::vector<std::vector<float>> expected = {
      {4, 3, 2.1F},        // 0
      {2.5F, 3, 2.1F},     // 4 - 1 - 0.5; now 1
      {2.5F, 1.5F, 2.1F},  // 0 again, which loses 0.5 more
      {2, 1.5F, 2.1F},     // 2
      {2, 1.5F, 0.6F},
  };
  const std::vector<int32_t> chosen = {0, 1, 0, 2, 0};
  for (size_t i = 0; i < chosen.size(); ++i) {
    std::vector<float> logits = {4, 3, 2.1F};
    EXPECT_EQ(sampler.Sample(logits, seen), chosen[i]) << i;
    for (size_t id = 0; id < logits.size(); ++id) EXPECT_FLOAT_EQ(logits[id], expected[i][id]) << i << " id " << id;
  }
}

TEST(Sampler, NegativePenaltiesFavour) {
  Sampler sampler({.presence_penalty = -2});
  std::vector<float> logits = {4, 3};
  EXPECT_EQ(sampler.Sample(logits, {}), 0);
  logits = {3, 4};
  EXPECT_EQ(sampler.Sample(logits, {}), 0);
  EXPECT_FLOAT_EQ(logits[0], 5);
}

TEST(Sampler, DrawsCountForPenaltiesToo) {
  // At 2 apart every draw of one makes the other e^2 times as likely as it was.
  Sampler sampler({.temperature = 1, .frequency_penalty = 2, .seed = 4});
  int num_first = 0;
  for (int i = 0; i < 200; ++i) {
    std::vector<float> logits = {0, 0};
    num_first += sampler.Sample(logits, {}) == 0 ? 1 : 0;
  }
  EXPECT_NEAR(num_first, 100, 4);
}

TEST(Sampler, BiasesShiftForbidAndForce) {
  // log 3 makes one three times as likely against the others: 0.5 : 0.9 : 0.2.
  const auto shifted =
      Frequencies({.temperature = 1, .logit_bias = {{1, std::log(3.0F)}}, .seed = 1}, Logits({0.5, 0.3, 0.2}));
  EXPECT_NEAR(shifted.at(0), 0.5 / 1.6, 0.02);
  EXPECT_NEAR(shifted.at(1), 0.9 / 1.6, 0.02);
  const auto without = Frequencies({.temperature = 1, .logit_bias = {{0, -kInf}}, .seed = 1}, Logits({0.5, 0.3, 0.2}));
  EXPECT_EQ(without.count(0), 0U);
  EXPECT_NEAR(without.at(1), 0.6, 0.02);
  const auto forced =
      Frequencies({.temperature = 1, .logit_bias = {{2, kInf}, {1, kInf}}}, Logits({0.5, 0.3, 0.2}), 50);
  EXPECT_EQ(forced.size(), 1U);
  EXPECT_EQ(forced.count(1), 1U);
  std::vector<float> logits = {-3, -1, -2};
  EXPECT_EQ(Sampler({.repetition_penalty = 2, .logit_bias = {{1, -kInf}}}).Sample(logits, {}), 2);
}

// A bias comes before the repetition penalty, which divides what it left.
TEST(Sampler, BiasesComeBeforePenalties) {
  TokenSet seen;
  seen.Add(0);
  std::vector<float> logits = {-1, 0};
  Sampler sampler({.repetition_penalty = 2, .frequency_penalty = 0.25F, .logit_bias = {{0, 5}}});
  EXPECT_EQ(sampler.Sample(logits, seen), 0);
  EXPECT_FLOAT_EQ(logits[0], 2);  // (-1 + 5) / 2
  logits = {-1, 0};
  EXPECT_EQ(sampler.Sample(logits, seen), 0);
  EXPECT_FLOAT_EQ(logits[0], 1.75F);
}

TEST(ValidateSampling, NamesWhatIsOutOfRange) {
  EXPECT_TRUE(ValidateSampling({}, 10).ok());
  EXPECT_TRUE(ValidateSampling({.temperature = 2, .top_k = 5, .top_p = 0.5F, .min_p = 1}, 10).ok());
  EXPECT_TRUE(
      ValidateSampling({.frequency_penalty = -2, .presence_penalty = 2, .logit_bias = {{9, kInf}, {0, -kInf}}}, 10)
          .ok());
  const auto message = [](const SamplingOptions& options) { return ValidateSampling(options, 10).message(); };
  EXPECT_THAT(message({.temperature = -1}), testing::HasSubstr("temperature"));
  EXPECT_THAT(message({.temperature = kInf}), testing::HasSubstr("temperature"));
  EXPECT_THAT(message({.top_k = -1}), testing::HasSubstr("top_k"));
  EXPECT_THAT(message({.top_p = 0}), testing::HasSubstr("top_p"));
  EXPECT_THAT(message({.top_p = std::nanf("")}), testing::HasSubstr("top_p"));
  EXPECT_THAT(message({.min_p = 1.5F}), testing::HasSubstr("min_p"));
  EXPECT_THAT(message({.repetition_penalty = 0}), testing::HasSubstr("repetition_penalty"));
  EXPECT_THAT(message({.frequency_penalty = 2.01F}),
              testing::HasSubstr("frequency_penalty is 2.01, expected a number"));
  EXPECT_THAT(message({.frequency_penalty = std::nanf("")}), testing::HasSubstr("frequency_penalty"));
  EXPECT_THAT(message({.presence_penalty = -kInf}), testing::HasSubstr("presence_penalty"));
  EXPECT_THAT(message({.logit_bias = {{10, 1}}}), testing::HasSubstr("logit_bias: token id 10, expected 0 to 9"));
  EXPECT_THAT(message({.logit_bias = {{-1, 1}}}), testing::HasSubstr("logit_bias: token id -1"));
  EXPECT_THAT(message({.logit_bias = {{3, std::nanf("")}}}), testing::HasSubstr("logit_bias of token 3 is nan"));
  EXPECT_THAT(message({.logit_bias = {{3, 1}, {4, 1}, {3, 2}}}), testing::HasSubstr("token 3 is given twice"));
  SamplingOptions nothing_left;
  for (int32_t id = 0; id < 10; ++id) nothing_left.logit_bias.push_back({id, -kInf});
  EXPECT_THAT(message(nothing_left), testing::HasSubstr("logit_bias forbids all 10 tokens"));
}

}  // namespace
}  // namespace headwise
