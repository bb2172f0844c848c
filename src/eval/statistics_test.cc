#include "eval/statistics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/rng.h"

namespace headwise {
namespace {

double Mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

std::vector<double> DrawUniform(size_t count) {
  Rng rng(3);
  std::vector<double> values(count);
  std::ranges::generate(values, [&] { return rng.Uniform(); });
  return values;
}

// `higher` pairs (1, 0), `lower` pairs (0, 1), `equal` pairs (1, 1): McNemar's table.
PairedComparison CompareCounts(size_t higher, size_t lower, size_t equal) {
  std::vector<double> a(higher, 1);
  std::vector<double> b(higher, 0);
  a.insert(a.end(), lower, 0);
  b.insert(b.end(), lower, 1);
  a.insert(a.end(), equal, 1);
  b.insert(b.end(), equal, 1);
  return ComparePaired(a, b);
}

// (p + z^2 / 2n +- z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n), z^2 = 3.841459.
TEST(WilsonInterval, HandWorked) {
  // p = 0: [0, z^2 / (n + z^2)] = 3.841459 / 13.841459.
  EXPECT_EQ(WilsonInterval(0, 10).low, 0);
  EXPECT_NEAR(WilsonInterval(0, 10).high, 0.277533, 1e-6);
  // 8 of 10: (0.8 + 0.192073 +- 1.959964 sqrt(0.016 + 0.009604)) / 1.384146 = (0.992073 +- 0.313614) / 1.384146.
  EXPECT_NEAR(WilsonInterval(8, 10).low, 0.490162, 1e-6);
  EXPECT_NEAR(WilsonInterval(8, 10).high, 0.943318, 1e-6);
  // 50 of 50: [50 / 53.841459, 1].
  EXPECT_NEAR(WilsonInterval(50, 50).low, 0.928652, 1e-6);
  EXPECT_EQ(WilsonInterval(50, 50).high, 1);
  // 1 of 2: 0.5 +- 1.959964 sqrt(0.125 + 0.240091) / 2.920729.
  EXPECT_NEAR(WilsonInterval(1, 2).low, 0.094531, 1e-6);
  EXPECT_NEAR(WilsonInterval(1, 2).high, 0.905469, 1e-6);
}

TEST(WilsonInterval, HoldsTheRateAndIsSymmetric) {
  for (const int64_t total : {1, 2, 3, 7, 10, 49, 100, 333}) {
    for (int64_t successes = 0; successes <= total; ++successes) {
      const Interval interval = WilsonInterval(successes, total);
      const double rate = static_cast<double>(successes) / static_cast<double>(total);
      EXPECT_GE(interval.low, 0);
      EXPECT_LE(interval.low, rate) << successes << " of " << total;
      EXPECT_GE(interval.high, rate) << successes << " of " << total;
      EXPECT_LE(interval.high, 1);
      EXPECT_NEAR(interval.low, 1 - WilsonInterval(total - successes, total).high, 1e-14);
    }
  }
}

TEST(WilsonInterval, NarrowsToTheNormalIntervalOfManyCases) {
  // z sqrt(0.3 * 0.7 / 10^12) = 8.9817e-7
  const Interval interval = WilsonInterval(300'000'000'000, 1'000'000'000'000);
  EXPECT_NEAR(interval.low, 0.3 - 8.9817e-7, 1e-10);
  EXPECT_NEAR(interval.high, 0.3 + 8.9817e-7, 1e-10);
}

TEST(BootstrapMeanInterval, OfEqualValuesIsThatValue) {
  for (const size_t count : {1, 3, 10, 1000}) {
    const Interval interval = BootstrapMeanInterval(std::vector<double>(count, 0.1));
    EXPECT_EQ(interval.low, 0.1);
    EXPECT_EQ(interval.high, 0.1);
  }
}

TEST(BootstrapMeanInterval, IsTheSameAtEveryCall) {
  const std::vector<double> values = DrawUniform(37);
  const Interval first = BootstrapMeanInterval(values);
  const Interval second = BootstrapMeanInterval(values);
  EXPECT_EQ(first.low, second.low);
  EXPECT_EQ(first.high, second.high);
}

// Of resampled zeros and ones the mean is binomial, and its percentiles are known.
TEST(BootstrapMeanInterval, PercentilesOfFewValues) {
  // Four values, p = 1/4: no one is drawn in 31.6 % of resamples, three or more in 5.1 %, all four in 0.4 %.
  const Interval four = BootstrapMeanInterval(std::vector<double>{1, 0, 0, 0});
  EXPECT_EQ(four.low, 0);
  EXPECT_EQ(four.high, 0.75);
  // Ten values, p = 1/2: at most one in 1.1 % of resamples, at most two in 5.5 %; the same from above.
  const Interval ten = BootstrapMeanInterval(std::vector<double>{1, 1, 1, 1, 1, 0, 0, 0, 0, 0});
  EXPECT_EQ(ten.low, 0.2);
  EXPECT_EQ(ten.high, 0.8);
}

TEST(BootstrapMeanInterval, IsNearTheNormalIntervalOf200Values) {
  const std::vector<double> values = DrawUniform(200);
  const double mean = Mean(values);
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  const double standard_error = std::sqrt(squares / 200 / 200);
  const Interval interval = BootstrapMeanInterval(values);
  EXPECT_LT(interval.low, mean);
  EXPECT_GT(interval.high, mean);
  // An end found by 2,000 resamples is off by 0.06 standard errors; three of these.
  EXPECT_NEAR(interval.low, mean - 1.96 * standard_error, 0.18 * standard_error);
  EXPECT_NEAR(interval.high, mean + 1.96 * standard_error, 0.18 * standard_error);
}

// p = 2 sum_{i <= rarer} C(n, i) / 2^n over the n pairs that differ, at most 1.
TEST(ComparePaired, SignTestByHand) {
  EXPECT_NEAR(CompareCounts(8, 1, 0).p_value, 2.0 * (1 + 9) / 512, 1e-12);
  EXPECT_NEAR(CompareCounts(1, 8, 0).p_value, 2.0 * (1 + 9) / 512, 1e-12);
  EXPECT_NEAR(CompareCounts(8, 1, 20).p_value, 2.0 * (1 + 9) / 512, 1e-12);  // equal pairs say nothing
  EXPECT_NEAR(CompareCounts(5, 0, 0).p_value, 2.0 / 32, 1e-12);
  EXPECT_NEAR(CompareCounts(7, 3, 0).p_value, 2.0 * (1 + 10 + 45 + 120) / 1024, 1e-12);
  EXPECT_EQ(CompareCounts(4, 4, 0).p_value, 1);  // 2 * 163 / 256 would be above 1
  EXPECT_EQ(CompareCounts(1, 0, 0).p_value, 1);
  EXPECT_EQ(CompareCounts(0, 0, 6).p_value, 1);
}

TEST(ComparePaired, ManyPairs) {
  // 2^10000 is above the largest double, and its inverse below the smallest.
  EXPECT_EQ(CompareCounts(10000, 0, 0).p_value, 0);
  EXPECT_EQ(CompareCounts(5000, 5000, 0).p_value, 1);
  // Two standard deviations of 50 above 5,000, less the correction of a half: erfc((99.5 / 50) / sqrt(2)).
  EXPECT_NEAR(CompareCounts(5100, 4900, 0).p_value, std::erfc(1.99 / std::sqrt(2.0)), 1e-5);
}

TEST(ComparePaired, CountsAndDifferences) {
  const std::vector<double> a = {0.5, 2, 3, 4, 1};
  const std::vector<double> b = {1.5, 2, 1, 1, 0};
  const PairedComparison result = ComparePaired(a, b);
  EXPECT_EQ(result.num_pairs, 5);
  EXPECT_EQ(result.num_higher, 3);
  EXPECT_EQ(result.num_lower, 1);
  EXPECT_DOUBLE_EQ(result.mean_difference, 1);
  EXPECT_NEAR(result.p_value, 2.0 * (1 + 4) / 16, 1e-12);
  // Pairs are drawn, not values of each side: the interval is the one of the differences.
  const Interval expected = BootstrapMeanInterval(std::vector<double>{-1, 0, 2, 3, 1});
  EXPECT_EQ(result.interval.low, expected.low);
  EXPECT_EQ(result.interval.high, expected.high);
}

TEST(ComparePaired, SwappedSidesMirror) {
  const std::vector<double> a = DrawUniform(30);
  const std::vector<double> b(a.rbegin(), a.rend());
  const std::vector<double> c(30, 0.4);
  for (const std::vector<double>& other : {b, c}) {
    const PairedComparison forth = ComparePaired(a, other);
    const PairedComparison back = ComparePaired(other, a);
    EXPECT_EQ(forth.num_higher, back.num_lower);
    EXPECT_EQ(forth.p_value, back.p_value);
    EXPECT_DOUBLE_EQ(forth.mean_difference, -back.mean_difference);
    EXPECT_DOUBLE_EQ(forth.interval.low, -back.interval.high);
  }
}

TEST(ComparePaired, EqualSidesDoNotDiffer) {
  const std::vector<double> values = DrawUniform(25);
  const PairedComparison result = ComparePaired(values, values);
  EXPECT_EQ(result.num_higher, 0);
  EXPECT_EQ(result.num_lower, 0);
  EXPECT_EQ(result.mean_difference, 0);
  EXPECT_EQ(result.interval.low, 0);
  EXPECT_EQ(result.interval.high, 0);
  EXPECT_EQ(result.p_value, 1);
}

}  // namespace
}  // namespace headwise
