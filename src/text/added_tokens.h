// The "added_tokens" of a tokenizer.json: texts that become one id as a whole, before words are looked at. Special ones
// (turn markers, start of text) are among them.
#ifndef HEADWISE_TEXT_ADDED_TOKENS_H_
#define HEADWISE_TEXT_ADDED_TOKENS_H_

#include <headwise/byte_range.h>

#include <cstdint>
#include <span>
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
  bool special = false;
};

// Finds added tokens in text: leftmost first, longest among those that begin at the same place.
class AddedTokenMatcher {
 public:
  AddedTokenMatcher() = default;
  // `patterns[i]` is the text to look for in place of tokens[i].content.
  AddedTokenMatcher(std::vector<AddedToken> tokens, std::vector<std::string> patterns);

  // Cuts text into segments, none of them empty. Special tokens are looked for outside `ordinary` alone and before all
  // else, so that what stands inside can neither be one nor hide one. Requires: text is valid UTF-8; `ordinary` is
  // sorted and lies inside it.
  std::vector<TextSegment> Split(std::string_view text, std::span<const ByteRange> ordinary) const;

  bool has_special() const { return has_special_; }

 private:
  // Which matches count.
  enum class Counts { kAll, kNoSpecial };
  // Appends the tokens inside `range` of text. White space that one swallows may lie outside of `range`, as far as
  // `bounds` and the token before it.
  void FindIn(std::string_view text, ByteRange range, ByteRange bounds, Counts counts,
              std::vector<TextSegment>& found) const;
  // The special tokens outside `ordinary`.
  std::vector<TextSegment> FindSpecial(std::string_view text, std::span<const ByteRange> ordinary) const;

  std::vector<AddedToken> tokens_;
  std::vector<size_t> pattern_bytes_;  // of each
  PatternMatcher matcher_;
  bool has_special_ = false;
};

}  // namespace headwise

#endif  // HEADWISE_TEXT_ADDED_TOKENS_H_
