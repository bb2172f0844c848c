#include "base/rng.h"

#include <gtest/gtest.h>

#include <array>

namespace headwise {
namespace {

TEST(Rng, IsTheSameEverywhere) {
  // The standard fixes mt19937_64's first word for seed 5489: 14514284786278117030.
  EXPECT_EQ(Rng(5489).Uniform(), static_cast<double>(14514284786278117030ULL >> 11) * 0x1p-53);
  EXPECT_EQ(Rng(5489).Below(1000), 30U);
}

TEST(Rng, BelowIsEven) {
  Rng rng(1);
  std::array<int, 7> counts{};
  for (int i = 0; i < 70000; ++i) ++counts[rng.Below(7)];
  for (const int count : counts) EXPECT_NEAR(count, 10000, 400);
  EXPECT_EQ(rng.Below(1), 0U);
}

}  // namespace
}  // namespace headwise
