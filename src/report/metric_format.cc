#include "report/metric_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/format_bytes.h"

namespace headwise {
namespace {

constexpr const char* kMinus = "−";
// Digits of a mean that are worth reading: the interval beside it seldom leaves more.
constexpr int kDigits = 4;

// A fixed-point number with the thousands apart and a true minus sign.
std::string Grouped(double value, int decimals) {
  std::string text = fmt::format("{:.{}f}", std::abs(value), decimals);
  const bool is_zero = text.find_first_of("123456789") == std::string::npos;
  const size_t point = std::min(text.find('.'), text.size());
  for (size_t at = point; at > 3;) {
    at -= 3;
    text.insert(at, ",");
  }
  return value < 0 && !is_zero ? kMinus + text : text;
}

std::string Superscript(int exponent) {
  static constexpr const char* kDigitSigns[] = {"⁰", "¹", "²", "³", "⁴", "⁵", "⁶", "⁷", "⁸", "⁹"};
  std::string text = exponent < 0 ? "⁻" : "";
  for (const char digit : std::to_string(std::abs(exponent))) text += kDigitSigns[digit - '0'];
  return text;
}

int Magnitude(double value) {
  return static_cast<int>(std::floor(std::log10(std::abs(value))));
}

// Bytes fit a whole number up to 2^63; what is beyond is no size.
std::string Bytes(double value) {
  const double size = std::abs(value);
  if (!(size < 9e18)) return kDash;
  return (value < 0 ? kMinus : "") + FormatBytes(static_cast<int64_t>(std::llround(size)));
}

}  // namespace

std::string FormatNumber(double value, int digits) {
  if (!std::isfinite(value)) return kDash;
  if (value == 0) return "0";
  const int magnitude = Magnitude(value);
  if (magnitude < -4 || magnitude > 8) {
    return Grouped(value / std::pow(10.0, magnitude), digits - 1) + "×10" + Superscript(magnitude);
  }
  return Grouped(value, std::max(0, digits - 1 - magnitude));
}

std::string FormatLength(int64_t tokens) {
  if (tokens >= 1024 && tokens % 1024 == 0) return Grouped(static_cast<double>(tokens / 1024), 0) + "K";
  return Grouped(static_cast<double>(tokens), 0);
}

std::string FormatTick(double value, int decimals) {
  return std::isfinite(value) ? Grouped(value, decimals) : kDash;
}

std::string FormatBytesTick(double bytes) {
  std::string text = Bytes(bytes);
  const size_t point = text.find('.');
  const size_t unit = text.find(' ');
  if (point == std::string::npos || unit == std::string::npos) return text;
  size_t end = unit;
  while (text[end - 1] == '0') --end;
  if (end - 1 == point) --end;
  return text.erase(end, unit - end);
}

std::string FormatRatio(double ratio) {
  const double percent = ratio * 100;
  return std::isfinite(percent) ? fmt::format("{:.3g} %", percent) : kDash;
}

std::string FormatPValue(double p_value) {
  if (!std::isfinite(p_value)) return kDash;
  return p_value < 0.001 ? "<0.001" : fmt::format("{:.3f}", p_value);
}

MetricFormat::MetricFormat(const MetricInfo& metric, std::span<const double> means) {
  title_ = metric.label.empty() ? metric.name : metric.label;
  is_bytes_ = metric.unit == "bytes";
  if (is_bytes_) return;
  if (metric.kind == MetricInfo::Kind::kRate) {
    factor_ = 100;
    title_ += ", %";
    decimals_ = 1;
    return;
  }
  if (!metric.unit.empty()) title_ += ", " + metric.unit;
  double most = 0;
  double least = 0;
  for (const double mean : means) {
    const double size = std::abs(mean);
    if (!std::isfinite(size) || size == 0) continue;
    most = std::max(most, size);
    least = least == 0 ? size : std::min(least, size);
  }
  // Common decimals only while the smallest value keeps two digits; 10^3 between values is where it no longer does.
  if (most > 0 && Magnitude(least) > Magnitude(most) - kDigits + 1 && Magnitude(most) < 6 && Magnitude(most) > -3) {
    decimals_ = std::clamp(kDigits - 1 - Magnitude(most), 0, 6);
  }
}

std::string MetricFormat::Digits(double value) const {
  if (!std::isfinite(value)) return kDash;
  if (is_bytes_) return Bytes(value);
  return decimals_ ? Grouped(value * factor_, *decimals_) : FormatNumber(value * factor_, kDigits);
}

std::string MetricFormat::Value(double value) const {
  return Digits(value);
}

std::string MetricFormat::Difference(double difference) const {
  const std::string digits = Digits(difference);
  const bool is_nothing = digits.find_first_of("123456789") == std::string::npos;
  return difference > 0 && !is_nothing ? "+" + digits : digits;
}

std::string MetricFormat::Range(const Interval& interval) const {
  return Value(interval.low) + " to " + Value(interval.high);
}

std::string MetricFormat::DifferenceRange(const Interval& interval) const {
  return Difference(interval.low) + " to " + Difference(interval.high);
}

}  // namespace headwise
