// What Python's methods of str do, on UTF-8. Positions and lengths that a template sees count characters.
//
// Not exact: case goes character by character (utf8proc), so that a letter whose other case is several (the German
// sharp s apart) or depends on its neighbours stays as it is.
#ifndef HEADWISE_TEXT_JINJA_STRINGS_H_
#define HEADWISE_TEXT_JINJA_STRINGS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "text/jinja/marked_string.h"

namespace headwise::jinja {

// All functions require valid UTF-8.

int64_t CountCharacters(std::string_view text);
// The byte where the character begins; the end for the number of characters and more.
size_t ByteOfCharacter(std::string_view text, int64_t character);
// The bytes of each character, in order.
std::vector<std::string_view> Characters(std::string_view text);

// As Python's str.isspace and \s.
bool IsSpace(char32_t code);

enum class StripSide { kLeft, kRight, kBoth };
// Without `chars`, white space.
std::string_view Strip(std::string_view text, std::optional<std::string_view> chars, StripSide side);

// At runs of white space if there is no separator. At most `max_splits` cuts, if that is not negative.
std::vector<std::string_view> Split(std::string_view text, std::optional<std::string_view> separator,
                                    int64_t max_splits);
std::vector<std::string_view> SplitFromRight(std::string_view text, std::optional<std::string_view> separator,
                                             int64_t max_splits);
std::vector<std::string_view> SplitLines(std::string_view text, bool keep_ends);

// How often `part` is in the text, without overlaps. Of an empty one: characters and one.
int64_t CountPart(std::string_view text, std::string_view part);
// At most `max_count` times, if that is not negative.
MarkedBuffer Replace(const MarkedString& text, std::string_view from, const MarkedString& to, int64_t max_count);

enum class Case { kUpper, kLower, kSwap, kCapitalize, kTitle };
MarkedBuffer MapCase(const MarkedString& text, Case to);
// The filter `title` of jinja2, whose words begin after white space and - ( { [ <.
MarkedBuffer TitleOfWords(const MarkedString& text);

enum class CharacterClass {
  kAlnum,
  kAlpha,
  kDecimal,
  kDigit,
  kNumeric,
  kSpace,
  kUpper,
  kLower,
  kTitle,
  kAscii,
  kPrintable
};
// str.isalnum and the like.
bool AreAll(std::string_view text, CharacterClass of);
bool IsPrintable(char32_t code);

// < > & " ' as entities.
MarkedBuffer EscapeHtml(const MarkedString& text);

}  // namespace headwise::jinja

#endif  // HEADWISE_TEXT_JINJA_STRINGS_H_
