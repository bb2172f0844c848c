// Numbers as a reader wants them: digits that carry something, one number of decimals per column where that loses
// nothing, and never "nan".
#ifndef HEADWISE_REPORT_METRIC_FORMAT_H_
#define HEADWISE_REPORT_METRIC_FORMAT_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "eval/run_data.h"
#include "eval/statistics.h"

namespace headwise {

// In place of a number that does not exist.
inline constexpr const char* kDash = "–";

// `digits` significant ones, thousands apart, powers of ten where plain digits would be mostly zeros:
// "1,234", "0.01235", "3.1×10⁻⁶". A dash where the value is not finite.
std::string FormatNumber(double value, int digits = 4);
// Tokens: "32K" for multiples of 1,024, "3,600" otherwise.
std::string FormatLength(int64_t tokens);
// Of ticks, which are round: "1,500", "50 MB".
std::string FormatTick(double value, int decimals);
std::string FormatBytesTick(double bytes);
// "0.25" as "25 %".
std::string FormatRatio(double ratio);
// "0.034", "<0.001".
std::string FormatPValue(double p_value);

// How the values of one metric are written; rates as percentages.
class MetricFormat {
 public:
  // `means` are the metric's values in one report: they decide how many decimals all of them get.
  MetricFormat(const MetricInfo& metric, std::span<const double> means);

  // The metric for people, with its unit: "right answers, %". What values leave out.
  const std::string& title() const { return title_; }
  // What values are multiplied by for axes: 100 for rates.
  double factor() const { return factor_; }

  std::string Value(double value) const;
  // With its sign, in percentage points for rates.
  std::string Difference(double difference) const;
  std::string Range(const Interval& interval) const;            // "78.1 to 90.0"
  std::string DifferenceRange(const Interval& interval) const;  // "−3.1 to +0.2"

 private:
  std::string Digits(double value) const;

  std::string title_;
  double factor_ = 1;
  bool is_bytes_ = false;
  std::optional<int> decimals_;  // none: significant digits
};

}  // namespace headwise

#endif  // HEADWISE_REPORT_METRIC_FORMAT_H_
