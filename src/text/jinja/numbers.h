// Numbers as Python prints and reads them.
#ifndef HEADWISE_TEXT_JINJA_NUMBERS_H_
#define HEADWISE_TEXT_JINJA_NUMBERS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace headwise::jinja {

// The shortest digits that read back as the same number: 0.1, 1e+22, 5.0, inf, nan.
std::string FloatRepr(double value);
// To so many digits behind the point, the exact value rounded.
std::string FloatFixed(double value, int num_digits);

// int(text, base): white space around it, a sign, digits with single _ between them. Base 0 goes by the prefix. Nothing
// if it is no such number; `overflows` if it is one of more than 64 bits.
struct ParsedInt {
  std::optional<int64_t> value;
  bool overflows = false;
};
ParsedInt ParseInt(std::string_view text, int base);
// float(text).
std::optional<double> ParseFloat(std::string_view text);

}  // namespace headwise::jinja

#endif  // HEADWISE_TEXT_JINJA_NUMBERS_H_
