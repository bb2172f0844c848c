#include "data/frequent_words.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <sstream>

#include "base/sha256.h"

namespace headwise {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAreArray;

CommonWords DrawCommon(const CommonWordOptions& options, uint64_t seed = 1) {
  Rng rng(seed);
  return DrawCommonWords(rng, options);
}

FrequentWords DrawFrequent(const FrequentWordOptions& options, uint64_t seed = 1) {
  Rng rng(seed);
  return DrawFrequentWords(rng, options);
}

// Words after the context's first paragraph, without the numbers of a list.
std::vector<std::string> WordsOf(const AskedText& text) {
  std::istringstream stream(text.context.substr(text.context.find("\n\n")));
  std::vector<std::string> words;
  for (std::string word; stream >> word;) {
    if (!word.ends_with(".")) words.push_back(word);
  }
  return words;
}

std::map<std::string, int64_t> CountsOf(const std::vector<std::string>& words) {
  std::map<std::string, int64_t> counts;
  for (const std::string& word : words) ++counts[word];
  return counts;
}

TEST(MakeCommonWords, ListsAndAsks) {
  const CommonWords drawn = {
      .words = {"boat", "pear", "lake"}, .num_common = 1, .common_repeats = 2, .uncommon_repeats = 1, .order_seed = 0};
  const AskedText one = MakeCommonWords(drawn, 1);
  EXPECT_EQ(one.context,
            "Below is a numbered list of words. Some words stand in it more often than the others.\n\n1. boat\n2. "
            "boat");
  ASSERT_EQ(one.questions.size(), 1U);
  EXPECT_EQ(one.questions[0].text,
            "\n\nWhat is the most common word in the list above? The most common word in the list above is");
  EXPECT_THAT(one.questions[0].expected, ElementsAre("boat"));
  EXPECT_EQ(WordsOf(MakeCommonWords(drawn, 3)).size(), 4U);
}

TEST(MakeCommonWords, RepeatsAsOftenAsTold) {
  for (const WordKind kind : {WordKind::kNouns, WordKind::kMadeUp}) {
    const CommonWords drawn = DrawCommon({.num_words = 100, .kind = kind});
    for (const int64_t num_words : {10, 57, 100}) {
      const AskedText text = MakeCommonWords(drawn, num_words);
      const std::vector<std::string> words = WordsOf(text);
      const std::map<std::string, int64_t> counts = CountsOf(words);
      EXPECT_EQ(static_cast<int64_t>(counts.size()), num_words);
      std::vector<std::string> common;
      for (const auto& [word, count] : counts) {
        EXPECT_TRUE(count == 30 || count == 3) << word << " " << count;
        if (count == 30) common.push_back(word);
      }
      ASSERT_EQ(common.size(), 10U);
      EXPECT_THAT(text.questions[0].expected, UnorderedElementsAreArray(common));
      EXPECT_THAT(text.questions[0].text, HasSubstr("The 10 most common words in the list above are"));
      EXPECT_THAT(text.context, HasSubstr("\n" + std::to_string(words.size()) + ". " + words.back()));
    }
  }
}

TEST(MakeCommonWords, IsShuffled) {
  const AskedText text = MakeCommonWords(DrawCommon({}), 100);
  const std::vector<std::string> words = WordsOf(text);
  const std::vector<std::string>& common = text.questions[0].expected;
  // Of 570 words 300 are common ones, in every part of the list.
  for (size_t begin = 0; begin < 570; begin += 57) {
    const auto is_common = [&](const std::string& word) { return std::ranges::count(common, word) > 0; };
    const auto part = words.begin() + static_cast<std::ptrdiff_t>(begin);
    EXPECT_NEAR(static_cast<double>(std::count_if(part, part + 57, is_common)), 30.0, 19.0);
  }
}

TEST(DrawCommonWords, SeedFixesThem) {
  const auto context = [](uint64_t seed) { return MakeCommonWords(DrawCommon({}, seed), 50).context; };
  EXPECT_EQ(context(4), context(4));
  EXPECT_NE(context(4), context(5));
  EXPECT_EQ(Sha256Hex(context(4)), "820de1fc8566369e3f78409e59bb9347fe0805d9dda68503269cd25cd09b9288");
}

TEST(DrawCommonWords, UsesEveryNounWhenAskedTo) {
  const int64_t most = MaxCommonWords(WordKind::kNouns);
  const CommonWords drawn = DrawCommon({.num_words = most});
  EXPECT_EQ(std::set<std::string>(drawn.words.begin(), drawn.words.end()).size(), static_cast<size_t>(most));
}

TEST(ValidateCommonWordOptions, NamesWhatIsOutOfRange) {
  const auto message = [](const CommonWordOptions& options) { return ValidateCommonWordOptions(options).message(); };
  EXPECT_TRUE(ValidateCommonWordOptions({}).ok());
  EXPECT_TRUE(ValidateCommonWordOptions({.num_words = 100'000, .kind = WordKind::kMadeUp}).ok());
  EXPECT_THAT(message({.num_words = 100'000}), HasSubstr("number of words is 100000, expected 1 to 6"));
  EXPECT_THAT(message({.num_words = 9}), HasSubstr("number of common words is 10, expected 1 to 9"));
  EXPECT_THAT(message({.num_common = 0}), HasSubstr("number of common words is 0"));
  EXPECT_THAT(message({.common_repeats = 3}), HasSubstr("repeats of uncommon words is 3, expected 1 to 2"));
  EXPECT_THAT(message({.common_repeats = 1}), HasSubstr("repeats of common words is 1, expected 2 to 1000"));
  EXPECT_THAT(message({.uncommon_repeats = 0}), HasSubstr("repeats of uncommon words is 0"));
  EXPECT_THAT(
      message({.num_words = 100'000, .common_repeats = 1000, .uncommon_repeats = 999, .kind = WordKind::kMadeUp}),
      HasSubstr("length of the list is 99900010, expected 1 to 10000000"));
}

TEST(MakeFrequentWords, ListsAndAsks) {
  FrequentWords drawn = {.vocabulary = {"babaka", "bobota", "bububu", "lololo"}, .text = {}};
  for (uint32_t i = 0; i < 100; ++i) drawn.text.push_back(i < 50 ? 2 : i < 80 ? 1 : i < 98 ? 3 : 0);
  const AskedText text = MakeFrequentWords(drawn, 100);
  EXPECT_TRUE(text.context.starts_with(
      "Below is a text in a secret language. Keep in mind how often each word stands in it.\n\nbububu bububu "));
  EXPECT_TRUE(text.context.ends_with("lololo babaka babaka"));
  ASSERT_EQ(text.questions.size(), 1U);
  EXPECT_EQ(text.questions[0].text,
            "\n\nWhat are the three most frequent words in the text above? The three most frequent words in the text "
            "above are");
  EXPECT_THAT(text.questions[0].expected, ElementsAre("bububu", "bobota", "lololo"));
}

TEST(MakeFrequentWords, EndsBeforeATie) {
  FrequentWords drawn = {.vocabulary = {"babaka", "bobota", "bububu", "lololo"}, .text = {}};
  for (uint32_t i = 0; i < 120; ++i) drawn.text.push_back(i < 60 ? 0 : i < 100 ? 1 : i < 110 ? 2 : 3);
  const AskedText text = MakeFrequentWords(drawn, 120);
  EXPECT_EQ(WordsOf(text).size(), 119U);
  EXPECT_THAT(text.questions[0].expected, ElementsAre("babaka", "bobota", "bububu"));
}

TEST(MakeFrequentWords, ExpectsTheThreeThatAreCounted) {
  for (const double alpha : {1.0, 1.5, 2.0, 4.0}) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const FrequentWords drawn = DrawFrequent({.num_words = 3000, .alpha = alpha}, seed);
      for (const int64_t num_words : {int64_t{100}, int64_t{101}, int64_t{777}, int64_t{3000}}) {
        const AskedText text = MakeFrequentWords(drawn, num_words);
        const std::vector<std::string> words = WordsOf(text);
        EXPECT_LE(static_cast<int64_t>(words.size()), num_words);
        EXPECT_GE(words.size(), 100U);
        std::map<std::string, int64_t> counts = CountsOf(words);
        ASSERT_EQ(text.questions[0].expected.size(), 3U);
        int64_t last = std::numeric_limits<int64_t>::max();
        for (const std::string& word : text.questions[0].expected) {
          EXPECT_LE(counts[word], last);
          last = counts[word];
          counts.erase(word);
        }
        for (const auto& [word, count] : counts) EXPECT_LT(count, last) << word;
      }
    }
  }
}

// The share of the k-th word is k^-alpha over the sum of all.
TEST(DrawFrequentWords, FollowsZipf) {
  const FrequentWords drawn = DrawFrequent({.num_words = 1'000'000, .vocabulary = 4, .alpha = 2.0});
  const double sum = 1.0 + 1.0 / 4 + 1.0 / 9 + 1.0 / 16;
  for (uint32_t k = 0; k < 4; ++k) {
    const auto count = static_cast<double>(std::ranges::count(drawn.text, k));
    EXPECT_NEAR(count / 1e6, 1.0 / ((k + 1) * (k + 1)) / sum, 0.0025);  // five standard deviations
  }
}

TEST(DrawFrequentWords, SeedFixesThem) {
  const auto context = [](uint64_t seed) { return MakeFrequentWords(DrawFrequent({}, seed), 1000).context; };
  EXPECT_EQ(context(4), context(4));
  EXPECT_NE(context(4), context(5));
  EXPECT_EQ(Sha256Hex(context(4)), "f2cd439666e7fd02827e43115680f32578dd658ebf1ea7b8ab0804b759fe38be");
}

TEST(ValidateFrequentWordOptions, NamesWhatIsOutOfRange) {
  const auto message = [](const FrequentWordOptions& options) {
    return ValidateFrequentWordOptions(options).message();
  };
  EXPECT_TRUE(ValidateFrequentWordOptions({}).ok());
  EXPECT_THAT(message({.num_words = 99}), HasSubstr("number of words is 99, expected 100 to 10000000"));
  EXPECT_THAT(message({.vocabulary = 3}), HasSubstr("size of the vocabulary is 3, expected 4 to 10000"));
  EXPECT_THAT(message({.alpha = 0.5}), HasSubstr("alpha is 0.5, expected 1 to 4"));
  EXPECT_THAT(message({.alpha = std::numeric_limits<double>::quiet_NaN()}), HasSubstr("alpha is nan"));
}

}  // namespace
}  // namespace headwise
