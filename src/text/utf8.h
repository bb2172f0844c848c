// UTF-8 and Unicode properties for the tokenizer. Tables come from utf8proc; what is here is the part around them:
// validation that says where, lossy conversion, and the character classes that tokenizer files name.
#ifndef HEADWISE_TEXT_UTF8_H_
#define HEADWISE_TEXT_UTF8_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace headwise {

// U+FFFD, shown in place of bytes that are not UTF-8.
inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

// One step over possibly invalid text.
struct Utf8Step {
  enum class Kind {
    kCharacter,   // `size_bytes` bytes are one character
    kInvalid,     // `size_bytes` bytes are a maximal prefix of no character: one U+FFFD
    kIncomplete,  // the text ends inside what may still become a character
  };
  Kind kind;
  size_t size_bytes;
};
// Requires: text is not empty.
Utf8Step StepUtf8(std::string_view text);

// The offset of the first byte that is not part of a character, or nothing. Surrogates and overlong forms are invalid.
std::optional<size_t> FindInvalidUtf8(std::string_view text);

// The character at the start of `text`, and its length. Requires: text is not empty and valid UTF-8.
struct Utf8Character {
  char32_t code;
  size_t size_bytes;
};
Utf8Character FirstCharacter(std::string_view text);
// The same for the end of `text`.
Utf8Character LastCharacter(std::string_view text);

// Requires: code is a Unicode scalar value.
void AppendUtf8(char32_t code, std::string& out);

// Character classes as Rust's standard library and regex crate define them, because tokenizer files are written for
// those.
bool IsWhitespace(char32_t code);
bool IsNumeric(char32_t code);      // general categories Nd, Nl, No
bool IsPunctuation(char32_t code);  // general categories P*, and all ASCII punctuation
bool IsMark(char32_t code);         // general categories Mn, Mc, Me
bool IsWord(char32_t code);         // what \w matches

// `text` without the white space at its start or end. Requires: text is valid UTF-8.
std::string_view TrimStart(std::string_view text);
std::string_view TrimEnd(std::string_view text);

}  // namespace headwise

#endif  // HEADWISE_TEXT_UTF8_H_
