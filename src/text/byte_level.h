// The GPT-2 alphabet: a bijection between the 256 bytes and 256 printable characters, so that BPE over any bytes can be
// written as text. Printable Latin-1 stands for itself, the other bytes for U+0100 and up, in order.
#ifndef HEADWISE_TEXT_BYTE_LEVEL_H_
#define HEADWISE_TEXT_BYTE_LEVEL_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace headwise {

// Appends one character per byte of `bytes`.
void AppendByteLevel(std::string_view bytes, std::string& out);

// Appends the bytes that `token` stands for; a token with any character outside the alphabet stands for its own UTF-8.
// Requires: token is valid UTF-8.
void AppendFromByteLevel(std::string_view token, std::string& out);

}  // namespace headwise

#endif  // HEADWISE_TEXT_BYTE_LEVEL_H_
