#include "base/base64.h"

#include <cstddef>
#include <cstdint>

namespace headwise {
namespace {

constexpr uint32_t kNoDigit = 64;

uint32_t DigitOf(char c) {
  if (c >= 'A' && c <= 'Z') return static_cast<uint32_t>(c - 'A');
  if (c >= 'a' && c <= 'z') return static_cast<uint32_t>(c - 'a') + 26;
  if (c >= '0' && c <= '9') return static_cast<uint32_t>(c - '0') + 52;
  return c == '+' ? 62 : c == '/' ? 63 : kNoDigit;
}

}  // namespace

std::optional<std::string> DecodeBase64(std::string_view text) {
  constexpr size_t kDigits = 4;  // stand for three bytes
  if (text.size() % kDigits != 0) return std::nullopt;
  std::string bytes;
  bytes.reserve(text.size() / kDigits * 3);
  for (size_t at = 0; at < text.size(); at += kDigits) {
    std::string_view group = text.substr(at, kDigits);
    if (at + kDigits == text.size()) group = group.substr(0, group.ends_with("==") ? 2 : group.ends_with('=') ? 3 : 4);
    uint32_t bits = 0;
    for (const char c : group) {
      const uint32_t digit = DigitOf(c);
      if (digit == kNoDigit) return std::nullopt;
      bits = bits << 6 | digit;
    }
    const size_t num_bytes = group.size() - 1;
    const size_t unused = 6 * group.size() - 8 * num_bytes;
    if ((bits & ((1u << unused) - 1)) != 0) return std::nullopt;
    bits >>= unused;
    for (size_t i = num_bytes; i-- > 0;) bytes.push_back(static_cast<char>(bits >> (8 * i) & 0xFF));
  }
  return bytes;
}

}  // namespace headwise
