// Bytes written as text, as RFC 4648 §4 has it.
#ifndef HEADWISE_BASE_BASE64_H_
#define HEADWISE_BASE_BASE64_H_

#include <optional>
#include <string>
#include <string_view>

namespace headwise {

// Nothing for what no encoder writes: another alphabet, missing padding, bits behind the last byte.
std::optional<std::string> DecodeBase64(std::string_view text);

}  // namespace headwise

#endif  // HEADWISE_BASE_BASE64_H_
