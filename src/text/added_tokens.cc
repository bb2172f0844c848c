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
  has_special_ = std::any_of(tokens_.begin(), tokens_.end(), [](const AddedToken& token) { return token.special; });
}

void AddedTokenMatcher::FindIn(std::string_view text, ByteRange range, ByteRange bounds, Counts counts,
                               std::vector<TextSegment>& found) const {
  const std::string_view looked_at = text.substr(0, range.end);
  size_t done = bounds.begin;
  // The tokens that begin at block_begin and behind it.
  std::vector<int32_t> block;
  size_t block_begin = 0;
  for (size_t at = range.begin; at < range.end;) {
    if (at >= block_begin + block.size()) {
      block_begin = at;
      matcher_.FindAll(looked_at, at, std::min(range.end, at + matcher_.block_bytes()), block);
    }
    const int32_t match = block[at - block_begin];
    if (match == PatternMatcher::kNone) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(match)];
    size_t begin = at;
    size_t end = at + pattern_bytes_[static_cast<size_t>(match)];
    // A match that does not count still covers its text: nothing shorter is looked for inside it.
    at = end;
    if (counts == Counts::kNoSpecial && token.special) continue;
    if (token.single_word && !IsBetweenWords(text.substr(0, begin), text.substr(end))) continue;
    if (token.left_strip && done < begin) begin -= SpacesAtEnd(text.substr(done, begin - done));
    // What the last token swallowed is not this one's too.
    if (token.left_strip) begin = std::max(begin, done);
    // White space that is swallowed behind a token is still looked through: it may be one of the tokens itself.
    if (token.right_strip) end += SpacesAtStart(text.substr(end, bounds.end - end));
    found.push_back({token.id, begin, end, token.special});
    done = end;
  }
}

std::vector<TextSegment> AddedTokenMatcher::FindSpecial(std::string_view text,
                                                        std::span<const ByteRange> ordinary) const {
  std::vector<TextSegment> special;
  std::vector<TextSegment> found;
  size_t at = 0;
  const auto look_until = [&](size_t end) {
    if (at >= end) return;
    found.clear();
    // With the others, among which the leftmost and longest counts: one of them may begin with a special token's text.
    FindIn(text, {at, end}, {special.empty() ? 0 : special.back().end, text.size()}, Counts::kAll, found);
    for (const TextSegment& each : found) {
      if (each.special) special.push_back(each);
    }
  };
  for (const ByteRange& range : ordinary) {
    look_until(range.begin);
    at = std::max(range.end, special.empty() ? 0 : special.back().end);
  }
  look_until(text.size());
  return special;
}

std::vector<TextSegment> AddedTokenMatcher::Split(std::string_view text, std::span<const ByteRange> ordinary) const {
  std::vector<TextSegment> tokens;
  if (matcher_.empty()) {
    // Nothing to find.
  } else if (ordinary.empty()) {
    FindIn(text, {0, text.size()}, {0, text.size()}, Counts::kAll, tokens);
  } else {
    size_t done = 0;
    const auto look_until = [&](size_t end) { FindIn(text, {done, end}, {done, end}, Counts::kNoSpecial, tokens); };
    for (const TextSegment& special : FindSpecial(text, ordinary)) {
      look_until(special.begin);
      tokens.push_back(special);
      done = special.end;
    }
    look_until(text.size());
  }
  std::vector<TextSegment> segments;
  size_t done = 0;
  for (const TextSegment& token : tokens) {
    if (done < token.begin) segments.push_back({TextSegment::kText, done, token.begin});
    segments.push_back(token);
    done = token.end;
  }
  if (done < text.size()) segments.push_back({TextSegment::kText, done, text.size()});
  return segments;
}

}  // namespace headwise
