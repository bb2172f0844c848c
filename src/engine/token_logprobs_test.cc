#include "engine/token_logprobs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace headwise {
namespace {

TEST(LogprobsOf, AreThoseOfKnownProbabilities) {
  std::vector<float> logits;
  for (const double p : {0.125, 0.5, 0.25, 0.125}) logits.push_back(static_cast<float>(std::log(p)) + 30);
  const TokenLogprobs found = LogprobsOf(logits, 2, 3);
  EXPECT_EQ(found.chosen.id, 2);
  EXPECT_NEAR(found.chosen.logprob, std::log(0.25), 1e-5);
  ASSERT_EQ(found.top.size(), 3U);
  EXPECT_EQ(found.top[0].id, 1);
  EXPECT_NEAR(found.top[0].logprob, std::log(0.5), 1e-5);
  EXPECT_EQ(found.top[1].id, 2);
  EXPECT_FLOAT_EQ(found.top[1].logprob, found.chosen.logprob);
  EXPECT_EQ(found.top[2].id, 0);  // of equal ones the lowest id
  EXPECT_TRUE(LogprobsOf(logits, 2, 0).top.empty());
  EXPECT_EQ(LogprobsOf(logits, 2, 100).top.size(), 4U);
}

TEST(LogprobsOf, DoNotOverflow) {
  EXPECT_FLOAT_EQ(LogprobsOf(std::vector<float>{3e38F, -3e38F}, 0, 1).chosen.logprob, 0);
  EXPECT_FLOAT_EQ(LogprobsOf(std::vector<float>{-1e30F, -1e30F}, 1, 1).chosen.logprob, std::log(0.5F));
  EXPECT_FLOAT_EQ(LogprobsOf(std::vector<float>{7}, 0, 1).chosen.logprob, 0);
}

TEST(LogprobsOf, TopIsWhatSortingGives) {
  std::mt19937 rng(1);
  for (const size_t num_top : {1, 2, 5, 20, 256}) {
    std::vector<float> logits(1000);
    for (float& logit : logits) logit = static_cast<float>(rng() % 50);  // many are equal
    std::vector<int32_t> ids(logits.size());
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
    std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
      return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
    });
    const TokenLogprobs found = LogprobsOf(logits, 0, static_cast<int64_t>(num_top));
    ASSERT_EQ(found.top.size(), num_top);
    for (size_t i = 0; i < num_top; ++i) EXPECT_EQ(found.top[i].id, ids[i]) << num_top << " place " << i;
  }
}

}  // namespace
}  // namespace headwise
