#include "data/words.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

namespace headwise {
namespace {

using testing::UnorderedElementsAre;

TEST(DrawDistinct, AllDifferentAndAllInReach) {
  Rng rng(1);
  EXPECT_THAT(DrawDistinct(rng, 4, 4), UnorderedElementsAre(0, 1, 2, 3));
  EXPECT_TRUE(DrawDistinct(rng, 0, 0).empty());
  const std::vector<uint64_t> drawn = DrawDistinct(rng, 50, 1000);
  EXPECT_EQ(std::set<uint64_t>(drawn.begin(), drawn.end()).size(), 50U);
  EXPECT_LT(*std::max_element(drawn.begin(), drawn.end()), 1000U);
}

TEST(Shuffle, EveryOrderEquallyOften) {
  Rng rng(2);
  std::map<std::vector<int>, int> times;
  for (int i = 0; i < 6000; ++i) {
    std::vector<int> items = {1, 2, 3};
    Shuffle(rng, items);
    ++times[items];
  }
  ASSERT_EQ(times.size(), 6U);
  for (const auto& [order, count] : times) EXPECT_NEAR(count, 1000, 150);  // five standard deviations
  std::vector<int> none;
  Shuffle(rng, none);
}

TEST(PlainNouns, AreDifferentWordsOfLowerCase) {
  const std::set<std::string_view> different(PlainNouns().begin(), PlainNouns().end());
  EXPECT_EQ(different.size(), PlainNouns().size());
  EXPECT_GT(different.size(), 600U);
  for (const std::string_view noun : different) {
    EXPECT_EQ(noun.find_first_not_of("abcdefghijklmnopqrstuvwxyz"), std::string_view::npos) << noun;
    EXPECT_GE(noun.size(), 3U);
  }
}

TEST(DrawMadeUpWords, DifferentWordsOfOneLength) {
  Rng rng(3);
  const std::vector<std::string> words = DrawMadeUpWords(rng, 5000);
  EXPECT_EQ(std::set<std::string>(words.begin(), words.end()).size(), 5000U);
  for (const std::string& word : words) EXPECT_EQ(word.size(), 6U);
  EXPECT_EQ(kMaxMadeUpWords, 512'000);
}

}  // namespace
}  // namespace headwise
