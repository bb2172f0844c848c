#include "eval/judge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace headwise {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

bool IsAnything(std::string_view) {
  return true;
}

double NumberRecall(std::string_view answer, std::vector<std::string> expected) {
  return Recall(answer, expected, IsNumber);
}

TEST(Judge, WordsAreWhole) {
  EXPECT_THAT(SplitWords("The <123> is (quiet-river), 12,345 or 1.5."),
              ElementsAre("The", "123", "is", "quiet-river", "12,345", "or", "1.5"));
  EXPECT_THAT(SplitWords("..., - !"), IsEmpty());
  EXPECT_THAT(SplitWords("end-"), ElementsAre("end"));
}

TEST(Judge, AnEmptyAnswerIsWrong) {
  EXPECT_EQ(NumberRecall("", {"123"}), 0);
  EXPECT_EQ(NumberRecall(" \n", {"123"}), 0);
}

TEST(Judge, ANumberInsideAnotherIsWrong) {
  EXPECT_EQ(NumberRecall("41234", {"123"}), 0);
  EXPECT_EQ(NumberRecall("1234", {"123"}), 0);
  EXPECT_EQ(NumberRecall("123.5", {"123"}), 0);
  EXPECT_EQ(NumberRecall("12,123", {"123"}), 0);
  EXPECT_EQ(NumberRecall("x123", {"123"}), 0);
  EXPECT_EQ(NumberRecall("<123>.", {"123"}), 1);
}

// Only the first counts: a list of everything in the text holds the answer too.
TEST(Judge, NamingEverythingIsWrong) {
  EXPECT_EQ(NumberRecall("1 2 3 4 5", {"3"}), 0);
  EXPECT_EQ(NumberRecall("1 2 3 4 5", {"5", "2"}), 0.5);
}

TEST(Judge, RepeatingTheRightAnswerIsRight) {
  EXPECT_EQ(NumberRecall("123 123 123 7", {"123"}), 1);
  EXPECT_EQ(NumberRecall("1 1 1 2", {"1", "2"}), 1);
  EXPECT_EQ(NumberRecall("7 123 123", {"123"}), 0);
}

TEST(Judge, OrderDoesNotMatterAndPartsCount) {
  EXPECT_EQ(NumberRecall("The numbers are 2, 1 and 9", {"1", "2", "3"}), 2.0 / 3);
}

TEST(Judge, CaseAndKindMatter) {
  const std::vector<std::string> name = {"XQZTA"};
  EXPECT_EQ(Recall("XQZTA", name, IsAnything), 1);
  EXPECT_EQ(Recall("xqzta", name, IsAnything), 0);
  EXPECT_EQ(Recall("VAR XQZTA", name, IsAnything), 0);
  EXPECT_EQ(Recall("VAR XQZTA", name, [](std::string_view word) { return word.size() == 5; }), 1);
}

}  // namespace
}  // namespace headwise
