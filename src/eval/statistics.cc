#include "eval/statistics.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "base/rng.h"

namespace headwise {
namespace {

constexpr double kZ = 1.959963984540054;  // 97.5 % of the standard normal distribution lies below

// The ends of the interval are known to 0.06 standard errors: sqrt(0.025 * 0.975 / 2000) over the normal density at kZ.
// More resamples would refine what a report rounds off.
constexpr size_t kResamples = 2000;
// 2.5 % of them lie outside at either end.
constexpr size_t kOutsideEachEnd = kResamples / 40;
// Any will do, as long as it stays: two reports of one run must agree.
constexpr uint64_t kSeed = 20230817;

// Differences from the first value are summed, so that the mean of equal values is that value to the last bit.
template <typename ValueAt>
double MeanOf(size_t count, const ValueAt& value_at) {
  const double first = value_at(0);
  double sum = 0;
  for (size_t i = 1; i < count; ++i) sum += value_at(i) - first;
  return first + sum / static_cast<double>(count);
}

// Two-sided: twice the probability of at most `rarer` heads among `total` throws of a fair coin, or 1 if that is more.
// Logarithms, because C(n, i) and 2^n leave the range of double from n = 1,024 on.
double SignTest(int64_t rarer, int64_t total) {
  double log_term = -static_cast<double>(total) * std::log(2.0);  // of C(total, i) / 2^total
  double sum = std::exp(log_term);
  for (int64_t i = 1; i <= rarer; ++i) {
    log_term += std::log(static_cast<double>(total - i + 1) / static_cast<double>(i));
    sum += std::exp(log_term);
  }
  return std::min(1.0, 2 * sum);
}

// `statistic` of so many indices drawn with replacement, again and again.
template <typename Statistic>
Interval Bootstrap(size_t count, const Statistic& statistic) {
  Rng rng(kSeed);
  std::vector<double> values(kResamples);
  std::vector<size_t> drawn(count);
  for (double& value : values) {
    for (size_t& i : drawn) i = rng.Below(count);
    value = statistic(drawn);
  }
  std::ranges::sort(values);
  return {.low = values[kOutsideEachEnd], .high = values[kResamples - 1 - kOutsideEachEnd]};
}

// All of a comparison that only asks which of two is larger.
PairedComparison CountPairs(std::span<const double> a, std::span<const double> b) {
  HW_CHECK(a.size() == b.size() && !a.empty(), "{} and {} values", a.size(), b.size());
  PairedComparison result;
  result.num_pairs = static_cast<int64_t>(a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] > b[i]) ++result.num_higher;
    if (a[i] < b[i]) ++result.num_lower;
  }
  result.p_value = SignTest(std::min(result.num_higher, result.num_lower), result.num_higher + result.num_lower);
  return result;
}

std::vector<double> LogsOf(std::span<const double> values) {
  HW_CHECK(!values.empty() && std::ranges::all_of(values, [](double value) { return value > 0; }));
  std::vector<double> logs;
  for (const double value : values) logs.push_back(std::log(value));
  return logs;
}

}  // namespace

Interval WilsonInterval(int64_t successes, int64_t total) {
  HW_CHECK(total >= 1 && successes >= 0 && successes <= total, "{} of {}", successes, total);
  const auto s = static_cast<double>(successes);
  const auto n = static_cast<double>(total);
  const double denominator = n + kZ * kZ;
  const double centre = (s + kZ * kZ / 2) / denominator;
  const double half_width = kZ * std::sqrt(s * (n - s) / n + kZ * kZ / 4) / denominator;
  // At 0 and `total` the formula gives 0 and 1 but for rounding, which must not leave the rate itself outside.
  return {.low = successes == 0 ? 0 : centre - half_width, .high = successes == total ? 1 : centre + half_width};
}

Interval BootstrapMeanInterval(std::span<const double> values) {
  HW_CHECK(!values.empty() && std::ranges::all_of(values, [](double value) { return std::isfinite(value); }));
  return Bootstrap(values.size(), [&](std::span<const size_t> drawn) {
    return MeanOf(drawn.size(), [&](size_t i) { return values[drawn[i]]; });
  });
}

PairedComparison ComparePaired(std::span<const double> a, std::span<const double> b) {
  PairedComparison result = CountPairs(a, b);
  std::vector<double> differences;
  for (size_t i = 0; i < a.size(); ++i) differences.push_back(a[i] - b[i]);
  result.mean_difference = MeanOf(differences.size(), [&](size_t i) { return differences[i]; });
  result.interval = BootstrapMeanInterval(differences);
  return result;
}

double GeometricMean(std::span<const double> values) {
  const std::vector<double> logs = LogsOf(values);
  return std::exp(MeanOf(logs.size(), [&](size_t i) { return logs[i]; }));
}

Interval BootstrapGeometricMeanInterval(std::span<const double> values) {
  const Interval of_logs = BootstrapMeanInterval(LogsOf(values));
  return {.low = std::exp(of_logs.low), .high = std::exp(of_logs.high)};
}

PairedComparison ComparePairedGeometrically(std::span<const double> a, std::span<const double> b) {
  PairedComparison result = CountPairs(a, b);
  const std::vector<double> log_a = LogsOf(a);
  const std::vector<double> log_b = LogsOf(b);
  result.mean_difference = GeometricMean(a) - GeometricMean(b);
  result.interval = Bootstrap(a.size(), [&](std::span<const size_t> drawn) {
    return std::exp(MeanOf(drawn.size(), [&](size_t i) { return log_a[drawn[i]]; })) -
           std::exp(MeanOf(drawn.size(), [&](size_t i) { return log_b[drawn[i]]; }));
  });
  return result;
}

}  // namespace headwise
