#include "base/progress.h"

#include <gtest/gtest.h>

namespace headwise {
namespace {

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

TEST(FormatProgress, NothingToDoIsDone) {
  EXPECT_EQ(FormatProgress("x", 0, 0, 1, 17), "x  0/0  0:00 left");
}

}  // namespace
}  // namespace headwise
