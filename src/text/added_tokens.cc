#include "text/added_tokens.h"

#include <algorithm>
#include <utility>

#include "text/utf8.h"

namespace headwise {
namespace {

size_t SpacesAtStart(std::string_view text) {
  return text.size() - TrimStart(text).size();
}
size_t SpacesAtEnd(std::string_view text) {
  return text.size() - TrimEnd(text).size();
}

bool IsBetweenWords(std::string_view before, std::string_view after) {
  return (before.empty() || !IsWord(LastCharacter(before).code)) &&
         (after.empty() || !IsWord(FirstCharacter(after).code));
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens, std::vector<std::string> patterns)
    : tokens_(std::move(tokens)), matcher_(patterns) {
  for (const std::string& pattern : patterns) pattern_bytes_.push_back(pattern.size());
}

std::vector<TextSegment> AddedTokenMatcher::Split(std::string_view text, SpecialText special) const {
  std::vector<TextSegment> segments;
  if (matcher_.empty()) {
    if (!text.empty()) segments.push_back({TextSegment::kText, 0, text.size()});
    return segments;
  }
  size_t done = 0;
  // The tokens that begin at block_begin and behind it.
  std::vector<int32_t> block;
  size_t block_begin = 0;
  for (size_t at = 0; at < text.size();) {
    if (at >= block_begin + block.size()) {
      block_begin = at;
      matcher_.FindAll(text, at, std::min(text.size(), at + matcher_.block_bytes()), block);
    }
    const int32_t found = block[at - block_begin];
    if (found == PatternMatcher::kNone) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(found)];
    size_t begin = at;
    size_t end = at + pattern_bytes_[static_cast<size_t>(found)];
    // A match that does not count still covers its text: nothing shorter is looked for inside it.
    at = end;
    if (special == SpecialText::kAsText && token.special) continue;
    if (token.single_word && !IsBetweenWords(text.substr(0, begin), text.substr(end))) continue;
    if (token.left_strip) begin -= SpacesAtEnd(text.substr(done, begin - done));
    if (token.right_strip) end += SpacesAtStart(text.substr(end));
    if (done < begin) segments.push_back({TextSegment::kText, done, begin});
    segments.push_back({token.id, begin, end});
    done = at = end;
  }
  if (done < text.size()) segments.push_back({TextSegment::kText, done, text.size()});
  return segments;
}

}  // namespace headwise
