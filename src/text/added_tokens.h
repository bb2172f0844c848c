// The "added_tokens" of a tokenizer.json: texts that become one id as a whole, before words are looked at. Special ones
// (turn markers, start of text) are among them.
#ifndef HEADWISE_TEXT_ADDED_TOKENS_H_
#define HEADWISE_TEXT_ADDED_TOKENS_H_

#include <headwise/tokenizer.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/pattern_matcher.h"

namespace headwise {

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool special = false;
  bool normalized = false;   // looked for after normalization instead of before
  bool left_strip = false;   // swallows the white space before it
  bool right_strip = false;  // and behind it
  bool single_word = false;  // only between characters that are not part of words
};

// A stretch of text, or one added token.
struct TextSegment {
  static constexpr int32_t kText = -1;
  int32_t id;  // kText, or the token's
  size_t begin;
  size_t end;
};

// Finds added tokens in text: leftmost first, longest among those that begin at the same place.
class AddedTokenMatcher {
 public:
  AddedTokenMatcher() = default;
  // `patterns[i]` is the text to look for in place of tokens[i].content.
  AddedTokenMatcher(std::vector<AddedToken> tokens, std::vector<std::string> patterns);

  // Cuts text into segments, none of them empty. Requires: text is valid UTF-8.
  std::vector<TextSegment> Split(std::string_view text, SpecialText special) const;

 private:
  std::vector<AddedToken> tokens_;
  std::vector<size_t> pattern_bytes_;  // of each
  PatternMatcher matcher_;
};

}  // namespace headwise

#endif  // HEADWISE_TEXT_ADDED_TOKENS_H_
