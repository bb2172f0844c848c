#include "engine/output_estimate.h"

#include <gtest/gtest.h>

namespace headwise {
namespace {

TEST(OutputEstimate, FollowsTheLengthsOfAnswers) {
  OutputEstimate estimate;
  EXPECT_EQ(estimate.More(0, 128), 256) << "nothing is known";
  for (int i = 0; i < 200; ++i) estimate.Learn(40);
  EXPECT_EQ(estimate.More(0, 16), 40);
  EXPECT_EQ(estimate.More(30, 16), 16) << "never less than that";
  EXPECT_EQ(estimate.More(1000, 16), 16);
  for (int i = 0; i < 200; ++i) estimate.Learn(i % 2 == 0 ? 900 : 1100);
  EXPECT_NEAR(static_cast<double>(estimate.More(0, 16)), 1100, 20);
  EXPECT_NEAR(static_cast<double>(estimate.More(600, 16)), 500, 20);
}

}  // namespace
}  // namespace headwise
