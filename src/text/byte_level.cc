#include "text/byte_level.h"

#include <array>

#include "text/utf8.h"

namespace headwise {
namespace {

constexpr bool StandsForItself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

// 256 bytes, 188 of which stand for themselves: the other 68 take U+0100 .. U+0143.
constexpr int kLastCode = 0x143;

struct Alphabet {
  std::array<char32_t, 256> of_byte{};
  std::array<int, kLastCode + 1> byte_of{};
};

constexpr Alphabet MakeAlphabet() {
  Alphabet alphabet;
  for (int& byte : alphabet.byte_of) byte = -1;
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const char32_t code = StandsForItself(byte) ? static_cast<char32_t>(byte) : next++;
    alphabet.of_byte[static_cast<size_t>(byte)] = code;
    alphabet.byte_of[code] = byte;
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = MakeAlphabet();

}  // namespace

void AppendByteLevel(std::string_view bytes, std::string& out) {
  for (const char c : bytes) AppendUtf8(kAlphabet.of_byte[static_cast<unsigned char>(c)], out);
}

void AppendFromByteLevel(std::string_view token, std::string& out) {
  const size_t start = out.size();
  for (std::string_view rest = token; !rest.empty();) {
    const Utf8Character character = FirstCharacter(rest);
    const int byte = character.code <= kLastCode ? kAlphabet.byte_of[character.code] : -1;
    if (byte < 0) {
      out.resize(start);
      out.append(token);
      return;
    }
    out.push_back(static_cast<char>(byte));
    rest.remove_prefix(character.size_bytes);
  }
}

}  // namespace headwise
