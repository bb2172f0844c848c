#include "eval/perplexity.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace headwise {
namespace {

TEST(NegativeLogLikelihood, ClosedForms) {
  EXPECT_NEAR(NegativeLogLikelihood(std::vector<float>(8, 3.0F), 5), std::log(8.0), 1e-12);
  const std::vector<float> logits = {0, static_cast<float>(std::log(3.0))};
  EXPECT_NEAR(NegativeLogLikelihood(logits, 0), std::log(4.0), 1e-7);
  EXPECT_NEAR(NegativeLogLikelihood(logits, 1), std::log(4.0 / 3), 1e-7);
}

TEST(NegativeLogLikelihood, FarLogitsNeitherOverflowNorVanish) {
  const std::vector<float> logits = {1000, -1000};
  EXPECT_NEAR(NegativeLogLikelihood(logits, 0), 0, 1e-12);
  EXPECT_NEAR(NegativeLogLikelihood(logits, 1), 2000, 1e-9);
}

TEST(NegativeLogLikelihood, KeepsWhatFloatWouldLose) {
  // 2^20 equal logits: a float sum would still be exact, the small surplus of one would not.
  std::vector<float> logits(1 << 20, 0.0F);
  logits[7] = 1e-3F;
  const double expected = std::log((1 << 20) - 1 + std::exp(static_cast<double>(1e-3F)));
  EXPECT_NEAR(NegativeLogLikelihood(logits, 0), expected, 1e-9);
}

}  // namespace
}  // namespace headwise
