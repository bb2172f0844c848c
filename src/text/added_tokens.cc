#include "text/added_tokens.h"

#include <algorithm>

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

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens, std::vector<std::string> patterns) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (patterns[i].empty()) continue;
    auto& bucket = patterns_[static_cast<unsigned char>(patterns[i][0])];
    bucket.push_back({std::move(patterns[i]), std::move(tokens[i])});
  }
  for (auto& bucket : patterns_) {
    std::stable_sort(bucket.begin(), bucket.end(),
                     [](const Pattern& a, const Pattern& b) { return a.text.size() > b.text.size(); });
  }
}

const AddedTokenMatcher::Pattern* AddedTokenMatcher::MatchAt(std::string_view rest) const {
  for (const Pattern& pattern : patterns_[static_cast<unsigned char>(rest[0])]) {
    if (rest.starts_with(pattern.text)) return &pattern;
  }
  return nullptr;
}

std::vector<TextSegment> AddedTokenMatcher::Split(std::string_view text, SpecialText special) const {
  std::vector<TextSegment> segments;
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    const Pattern* pattern = MatchAt(text.substr(at));
    if (pattern == nullptr) {
      ++at;
      continue;
    }
    const AddedToken& token = pattern->token;
    size_t begin = at;
    size_t end = at + pattern->text.size();
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
