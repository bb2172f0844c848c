#include "eval/divergence.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace headwise {
namespace {

TEST(Divergence, HandWorked) {
  // p = (3/4, 1/4), q = (1/2, 1/2): 3/4 log(3/2) + 1/4 log(1/2).
  const std::vector<float> p = {std::log(3.0f), 0};
  const std::vector<float> q = {5, 5};
  EXPECT_NEAR(KlDivergence(p, q), 0.75 * std::log(1.5) + 0.25 * std::log(0.5), 1e-7);
  EXPECT_NEAR(KlDivergence(q, p), 0.5 * std::log(2.0 / 3) + 0.5 * std::log(2.0), 1e-7);
}

TEST(Divergence, EqualLogitsDivergeByExactlyNothing) {
  const std::vector<float> p = {1.25f, -3.5f, 80, 0.1f};
  EXPECT_EQ(KlDivergence(p, p), 0);
}

// A shift of all logits is the same distribution; large logits do not overflow.
TEST(Divergence, ShiftsAndLargeLogits) {
  const std::vector<float> p = {1000, 999, -1000};
  const std::vector<float> q = {0, -1, -2000};
  EXPECT_NEAR(KlDivergence(p, q), 0, 1e-12);
  EXPECT_NEAR(LogSumExp(p), 1000 + std::log1p(std::exp(-1.0)), 1e-9);
}

TEST(Divergence, NotANumberShows) {
  const std::vector<float> p = {0, std::numeric_limits<float>::quiet_NaN()};
  const std::vector<float> q = {0, 0};
  EXPECT_TRUE(std::isnan(KlDivergence(p, q)));
}

TEST(ArgMax, TheFirstOfEquals) {
  const std::vector<float> values = {1, 3, 3, 2};
  EXPECT_EQ(ArgMax(values), 1U);
}

}  // namespace
}  // namespace headwise
