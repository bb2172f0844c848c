#include "text/pattern_matcher.h"

#include <gtest/gtest.h>

#include <random>

#include "text/added_tokens.h"

namespace headwise {
namespace {

// One place after the other, one pattern after the other.
std::vector<int32_t> LongestAtEach(const std::vector<std::string>& patterns, std::string_view text) {
  std::vector<int32_t> longest(text.size(), PatternMatcher::kNone);
  for (size_t at = 0; at < text.size(); ++at) {
    size_t bytes = 0;
    for (size_t i = 0; i < patterns.size(); ++i) {
      if (patterns[i].size() <= bytes || !text.substr(at).starts_with(patterns[i])) continue;
      bytes = patterns[i].size();
      longest[at] = static_cast<int32_t>(i);
    }
  }
  return longest;
}

std::string RandomText(std::mt19937_64& rng, size_t max_bytes) {
  std::string text(rng() % (max_bytes + 1), 'a');
  for (char& c : text) c = "ab\xC3"[rng() % 3];
  return text;
}

TEST(PatternMatcher, FindsWhatComparingFinds) {
  std::mt19937_64 rng(3);
  for (int i = 0; i < 300; ++i) {
    std::vector<std::string> patterns(rng() % 12);
    for (std::string& pattern : patterns) pattern = RandomText(rng, 6);
    const PatternMatcher matcher(patterns);
    const std::string text = RandomText(rng, 60);
    if (matcher.empty()) continue;
    const std::vector<int32_t> expected = LongestAtEach(patterns, text);
    std::vector<int32_t> found;
    matcher.FindAll(text, 0, text.size(), found);
    EXPECT_EQ(found, expected) << text;
    // Any part of it, with patterns that reach beyond.
    const size_t begin = rng() % (text.size() + 1);
    const size_t end = begin + rng() % (text.size() - begin + 1);
    matcher.FindAll(text, begin, end, found);
    EXPECT_EQ(found, std::vector<int32_t>(expected.begin() + static_cast<std::ptrdiff_t>(begin),
                                          expected.begin() + static_cast<std::ptrdiff_t>(end)));
  }
  EXPECT_TRUE(PatternMatcher().empty());
  EXPECT_TRUE(PatternMatcher({"", ""}).empty());
}

// A token each for 100,000 texts that begin alike, over a text of 100,000 such beginnings: to compare each with each
// takes most of a minute.
TEST(AddedTokens, ManyThatBeginAlikeCostNoMore) {
  std::vector<AddedToken> tokens;
  std::vector<std::string> patterns;
  for (int32_t i = 0; i < 100'000; ++i) {
    patterns.push_back("<" + std::string(12, '<') + std::to_string(i) + ">");
    tokens.push_back({.content = patterns.back(), .id = i});
  }
  const std::string last = patterns.back();
  const AddedTokenMatcher matcher(std::move(tokens), std::move(patterns));
  const std::string text = std::string(100'000, '<') + last + "x";
  const std::vector<TextSegment> segments = matcher.Split(text, {});
  ASSERT_EQ(segments.size(), 3u);
  EXPECT_EQ(segments[1].id, 99'999);
  EXPECT_EQ(segments[1].end, text.size() - 1);
}

// One that is half as long as the text, and nearly there at every place.
TEST(AddedTokens, ALongOneCostsNoMore) {
  const std::string pattern = std::string(200'000, 'a') + "b";
  const AddedTokenMatcher matcher({{.content = pattern, .id = 1}}, {pattern});
  EXPECT_EQ(matcher.Split(std::string(400'000, 'a'), {}).size(), 1u);
  const std::vector<TextSegment> segments = matcher.Split(std::string(400'000, 'a') + "b", {});
  ASSERT_EQ(segments.size(), 2u);
  EXPECT_EQ(segments[1].begin, 200'000u);
}

}  // namespace
}  // namespace headwise
