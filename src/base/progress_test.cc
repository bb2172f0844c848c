#include "base/progress.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace headwise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(FormatProgress, ShowsShareCountAndTimeLeft) {
  EXPECT_EQ(FormatProgress("lines", 5, 10, 12, 36), "lines  [#####.....]  5/10  0:12 left");
  EXPECT_EQ(FormatProgress("x", 1, 4, 3600, 20), "x  1/4  3:00:00 left");
  EXPECT_EQ(FormatProgress("x", 0, 4, 9, 14), "x  [....]  0/4");
}

TEST(FormatProgress, NeverWiderThanAsked) {
  for (int width = 0; width < 100; ++width) {
    for (const int64_t done : {0, 3, 10, 12}) {
      EXPECT_LE(FormatProgress("a label", done, 10, 100000, width).size(), static_cast<size_t>(width));
    }
  }
}

class RecordedLine final : public ProgressLine {
 public:
  int Columns() override { return 40; }
  void Draw(std::string_view text) override { drawn.emplace_back(text); }
  void Wipe() override { drawn.emplace_back("wiped"); }
  void Count(std::string_view label, int64_t done, int64_t total) override {
    counted.push_back(fmt::format("{} {}/{}", label, done, total));
  }

  std::vector<std::string> drawn;
  std::vector<std::string> counted;
};

// Of a program that draws it otherwise.
class UnseenLine final : public ProgressLine {
 public:
  int Columns() override { return 0; }
  void Draw(std::string_view) override { ADD_FAILURE() << "nobody looks"; }
  void Wipe() override { ADD_FAILURE() << "nothing was drawn"; }
  void Count(std::string_view, int64_t done, int64_t) override { counted.push_back(done); }

  std::vector<int64_t> counted;
};

TEST(ProgressBar, IsDrawnOnTheLineItIsGivenAndWipedAtItsEnd) {
  RecordedLine line;
  {
    ProgressBar bar(&line, "lines", 10);
    bar.Update(5);
    bar.Update(6);  // too soon to draw again
  }
  EXPECT_THAT(line.drawn, ElementsAre(HasSubstr("5/10"), "wiped"));
  EXPECT_THAT(line.counted, ElementsAre("lines 5/10"));
}

TEST(ProgressBar, CountsWhereNobodyLooks) {
  UnseenLine line;
  {
    ProgressBar bar(&line, "lines", 10);
    bar.Update(5);
    bar.Update(6);
  }
  EXPECT_THAT(line.counted, ElementsAre(5));
}

TEST(ProgressBar, WithoutALineNothingIsShown) {
  ProgressBar bar(nullptr, "lines", 10);
  bar.Update(5);
}

TEST(FormatProgress, NothingToDoIsDone) {
  EXPECT_EQ(FormatProgress("x", 0, 0, 1, 17), "x  0/0  0:00 left");
}

}  // namespace
}  // namespace headwise
