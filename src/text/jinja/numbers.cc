#include "text/jinja/numbers.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/jinja/strings.h"

namespace headwise::jinja {
namespace {

int DigitOf(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'z') return c - 'a' + 10;
  if (c >= 'A' && c <= 'Z') return c - 'A' + 10;
  return 99;
}

// "0x" and the like, where the base is that or to be found out.
void TakePrefix(std::string_view& text, int& base) {
  const char letter = text.size() > 2 && text[0] == '0' ? static_cast<char>(text[1] | 0x20) : '\0';
  const int announced = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
  if (announced && (base == 0 || base == announced)) {
    base = announced;
    text.remove_prefix(2);
    if (text[0] == '_') text.remove_prefix(1);
  }
}

}  // namespace

std::string FloatRepr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[64];
  const auto written = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific);
  std::string_view text(buffer, static_cast<size_t>(written.ptr - buffer));
  std::string out;
  if (text[0] == '-') {
    out = "-";
    text.remove_prefix(1);
  }
  const size_t e = text.find('e');
  int exponent = 0;
  const std::string_view power = text.substr(e + 1 + (text[e + 1] == '+'));
  std::from_chars(power.data(), power.data() + power.size(), exponent);
  std::string digits(1, text[0]);
  if (e > 2) digits += text.substr(2, e - 2);
  const int num_digits = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (num_digits > 1) out += "." + digits.substr(1);
    return out + fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0) return out + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  if (num_digits <= exponent + 1)
    return out + digits + std::string(static_cast<size_t>(exponent + 1 - num_digits), '0') + ".0";
  return out + digits.substr(0, static_cast<size_t>(exponent) + 1) + "." +
         digits.substr(static_cast<size_t>(exponent) + 1);
}

std::string FloatFixed(double value, int num_digits) {
  if (!std::isfinite(value)) return FloatRepr(value);
  return fmt::format("{:.{}f}", value, num_digits);
}

ParsedInt ParseInt(std::string_view text, int base) {
  text = Strip(text, std::nullopt, StripSide::kBoth);
  const bool is_negative = !text.empty() && text[0] == '-';
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.remove_prefix(1);
  TakePrefix(text, base);
  if (base == 0) {
    base = 10;
    if (text.size() > 1 && text[0] == '0' && text.find_first_not_of("0_") != std::string_view::npos) return {};
  }
  if (text.empty()) return {};
  ParsedInt parsed;
  int64_t value = 0;
  bool after_digit = false;
  for (const char c : text) {
    if (c == '_') {
      if (!after_digit) return {};
      after_digit = false;
      continue;
    }
    const int digit = DigitOf(c);
    if (digit >= base) return {};
    after_digit = true;
    // Negative, because there is one more of those.
    if (__builtin_mul_overflow(value, static_cast<int64_t>(base), &value) ||
        __builtin_sub_overflow(value, static_cast<int64_t>(digit), &value)) {
      parsed.overflows = true;
      value = 0;
    }
  }
  if (!after_digit) return {};
  if (!is_negative && value == INT64_MIN) parsed.overflows = true;
  if (!parsed.overflows) parsed.value = is_negative ? value : -value;
  return parsed;
}

std::optional<double> ParseFloat(std::string_view text) {
  text = Strip(text, std::nullopt, StripSide::kBoth);
  bool is_negative = false;
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) {
    is_negative = text[0] == '-';
    text.remove_prefix(1);
  }
  std::string plain;
  char before = '\0';
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool is_digit = c >= '0' && c <= '9';
    if (c == '_') {
      const bool digit_follows = i + 1 < text.size() && text[i + 1] >= '0' && text[i + 1] <= '9';
      if (before < '0' || before > '9' || !digit_follows) return std::nullopt;
    } else {
      plain += c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c;
    }
    before = c;
    // from_chars would read hexadecimal "nan(...)" forms, too.
    if (!is_digit && c != '_' && c != '.' && c != '+' && c != '-' &&
        std::string_view("einfatyEINFATY").find(c) == std::string_view::npos) {
      return std::nullopt;
    }
  }
  if (plain.empty() || plain[0] == '-' || plain[0] == '+') return std::nullopt;
  double value = 0;
  const auto read = std::from_chars(plain.data(), plain.data() + plain.size(), value);
  if (read.ptr != plain.data() + plain.size()) return std::nullopt;
  if (read.ec == std::errc::result_out_of_range) {
    // Too great or too small: the sign of the exponent tells.
    const size_t e = plain.find('e');
    const bool is_small = e != std::string::npos ? plain[e + 1] == '-' : plain[0] == '0' || plain[0] == '.';
    value = is_small ? 0.0 : HUGE_VAL;
  } else if (read.ec != std::errc()) {
    return std::nullopt;
  }
  return is_negative ? -value : value;
}

}  // namespace headwise::jinja
