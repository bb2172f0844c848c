#include "base/format_bytes.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <iterator>
#include <optional>

namespace headwise {

namespace {

// What stands behind the number: 1 for nothing or "B".
std::optional<int64_t> FactorOf(std::string_view unit) {
  static constexpr std::string_view kPrefixes = "KMGT";
  std::string capitals;
  for (const char c : unit) capitals += c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  std::string_view rest = capitals;
  int64_t factor = 1;
  const size_t power = rest.empty() ? std::string_view::npos : kPrefixes.find(rest.front());
  if (power != std::string_view::npos) {
    rest.remove_prefix(1);
    const bool is_binary = rest.starts_with('I');
    if (is_binary) rest.remove_prefix(1);
    for (size_t i = 0; i <= power; ++i) factor *= is_binary ? 1024 : 1000;
  }
  if (rest.empty() || rest == "B") return factor;
  return std::nullopt;
}

}  // namespace

std::string FormatBytes(int64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB"};
  if (bytes < 1000) return fmt::format("{} B", bytes);
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 999.5 && unit + 1 < std::size(kUnits)) {
    value /= 1000;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0, kUnits[unit]);
}

Result<int64_t> ParseBytes(std::string_view text) {
  const auto refused = [&] {
    return Status::InvalidInput(fmt::format(
        "found \"{}\", expected a number of bytes: 1500000, 1.5M (of 10^6) or 1.5MiB (of 2^20), below 2^63", text));
  };
  const size_t num_digits = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::string_view digits = text.substr(0, num_digits);
  std::string_view unit = text.substr(num_digits);
  if (unit.size() > 1 && unit.front() == ' ') unit.remove_prefix(1);
  const std::optional<int64_t> factor = FactorOf(unit);
  if (!factor || digits.empty()) return refused();
  int64_t whole = 0;
  const char* const end = digits.data() + digits.size();
  auto parsed = std::from_chars(digits.data(), end, whole);
  if (parsed.ec == std::errc() && parsed.ptr == end) {
    int64_t bytes = 0;
    if (__builtin_mul_overflow(whole, *factor, &bytes)) return refused();
    return bytes;
  }
  double number = 0;
  const auto [stop, error] = std::from_chars(digits.data(), end, number);
  const double bytes = std::round(number * static_cast<double>(*factor));
  // A part of a byte is a mistake: "1.5" was to have a unit.
  if (error != std::errc() || stop != end || !(bytes < 0x1p63) || *factor == 1) return refused();
  return static_cast<int64_t>(bytes);
}

}  // namespace headwise
