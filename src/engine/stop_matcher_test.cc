#include "engine/stop_matcher.h"

#include <gtest/gtest.h>

#include <random>

namespace headwise {
namespace {

// What is shown of `text` when it arrives in pieces of `piece_bytes`.
std::string Show(std::vector<std::string> stops, std::string_view text, size_t piece_bytes, bool* stopped = nullptr) {
  StopMatcher matcher(std::move(stops));
  std::string shown;
  for (size_t i = 0; i < text.size() && !matcher.stopped(); i += piece_bytes) {
    shown += matcher.Push(text.substr(i, piece_bytes));
  }
  if (stopped != nullptr) *stopped = matcher.stopped();
  if (!matcher.stopped()) shown += matcher.Flush();
  return shown;
}

TEST(StopMatcher, WithoutStopsEverythingPassesAtOnce) {
  StopMatcher matcher({});
  EXPECT_EQ(matcher.Push("abc"), "abc");
  EXPECT_FALSE(matcher.stopped());
  EXPECT_EQ(matcher.Flush(), "");
}

TEST(StopMatcher, HoldsBackOnlyWhatCouldBeAStop) {
  StopMatcher matcher({"\n\nUser:"});
  EXPECT_EQ(matcher.Push("one\n"), "one");
  EXPECT_EQ(matcher.Push("two\n\nUse"), "\ntwo");
  EXPECT_EQ(matcher.Push("ful\n"), "\n\nUseful");
  EXPECT_EQ(matcher.Flush(), "\n");
  EXPECT_FALSE(matcher.stopped());
}

TEST(StopMatcher, EndsBeforeTheStop) {
  StopMatcher matcher({"END"});
  EXPECT_EQ(matcher.Push("text E"), "text ");
  EXPECT_EQ(matcher.Push("ND more"), "");
  EXPECT_TRUE(matcher.stopped());
  EXPECT_EQ(matcher.Push("more"), "");
  EXPECT_EQ(matcher.Flush(), "");
}

TEST(StopMatcher, TheFirstCompleteStopWinsWhateverThePieces) {
  for (size_t piece_bytes = 1; piece_bytes <= 8; ++piece_bytes) {
    EXPECT_EQ(Show({"bcde", "cd"}, "abcdef", piece_bytes), "ab");  // "cd" is complete before "bcde"
    EXPECT_EQ(Show({"cd", "bcd"}, "abcdef", piece_bytes), "a");    // both at once: the longer
    EXPECT_EQ(Show({"aab"}, "aaaab", piece_bytes), "aa");          // a false start overlaps the real one
  }
}

TEST(StopMatcher, RandomTextsGiveTheSameInAnyPieces) {
  std::mt19937 rng(1);
  for (int round = 0; round < 500; ++round) {
    const auto random_text = [&](size_t length) {
      std::string text;
      while (text.size() < length) text += static_cast<char>('a' + rng() % 2);
      return text;
    };
    const std::vector<std::string> stops = {random_text(1 + rng() % 6), random_text(1 + rng() % 6)};
    const std::string text = random_text(12);
    bool stopped_once = false;
    const std::string once = Show(stops, text, 1, &stopped_once);
    for (size_t piece_bytes = 2; piece_bytes <= text.size(); ++piece_bytes) {
      bool stopped = false;
      EXPECT_EQ(Show(stops, text, piece_bytes, &stopped), once);
      EXPECT_EQ(stopped, stopped_once);
    }
    if (!stopped_once) {
      EXPECT_EQ(once, text);
    }
  }
}

// By every byte held against all that came before it this would take a day.
TEST(StopMatcher, PeriodicTextsTakeNoLonger) {
  const std::string stop = std::string(kMaxStopBytes / 2, 'a') + "b";
  const std::string text(size_t{1} << 20, 'a');
  EXPECT_EQ(Show({stop}, text, 1), text);
  EXPECT_EQ(Show({stop}, text + "b", 1), text.substr(stop.size() - 1));
}

TEST(ValidateStops, RefusesTooManyAndTooLongOnes) {
  EXPECT_TRUE(ValidateStops(std::vector<std::string>(kMaxStops, "a")).ok());
  EXPECT_EQ(ValidateStops(std::vector<std::string>(kMaxStops + 1, "a")).message(),
            "stop strings: 257 are given, expected at most 256");
  EXPECT_TRUE(ValidateStops({std::string(kMaxStopBytes, 'a')}).ok());
  EXPECT_EQ(ValidateStops({"b", std::string(kMaxStopBytes, 'a')}).message(),
            "stop strings: 65537 bytes together, expected at most 65536");
}

TEST(ValidateStops, RefusesAnEmptyOne) {
  EXPECT_TRUE(ValidateStops({}).ok());
  EXPECT_TRUE(ValidateStops({"a"}).ok());
  EXPECT_FALSE(ValidateStops({"a", ""}).ok());
}

}  // namespace
}  // namespace headwise
