#include "backend/step_checker.h"

#include <gtest/gtest.h>

#include <array>
#include <utility>
#include <vector>

namespace headwise {
namespace {

// Sequences of one head each, with one page each that is there at first.
class StepCheckerTest : public testing::Test {
 protected:
  StepCheckerTest() { heads_[1].table = 1; }
  // Steps share what they are made of: the last one that was made stands.
  KvStep StepOf(std::vector<StepRows> sequences) {
    sequences_ = std::move(sequences);
    return {.num_layers = 1,
            .num_kv_heads = 1,
            .sequences = sequences_,
            .heads = heads_,
            .selections = selections_,
            .pages = pages_,
            .spaces = spaces_};
  }
  KvStep StepAt(int64_t pos, int64_t num_rows = 1) { return StepOf({{.num_rows = num_rows, .first_pos = pos}}); }
  void LoseThePage(size_t idx = 0) { pages_[idx] = kNoPage; }

  std::vector<StepRows> sequences_;
  std::array<StepHead, 2> heads_;
  std::array<KvSelection, 1> selections_ = {KvSelection{.scores = KvSelection::Scores::kKeyNorm}};
  std::array<uint32_t, 2> pages_ = {0, 1};
  std::array<PageSpace, 1> spaces_ = {PageSpace{.layout = {.head_dim = 64, .page_tokens = 32}, .page_bytes = 1 << 14}};
};

TEST_F(StepCheckerTest, WhatOnlyGoesOnIsNotLookedAtAgain) {
  StepChecker checker;
  checker.Check(StepAt(5));
  LoseThePage();
  checker.Check(StepAt(6));
  checker.Check(StepAt(7));
}

TEST_F(StepCheckerTest, APageThatBeginsIs) {
  LoseThePage(1);
  StepChecker checker;
  checker.Check(StepAt(30));
  EXPECT_DEATH(StepChecker().Check(StepAt(32)), "no page 1");  // of a checker that has seen none
  checker.Check(StepAt(31));
  EXPECT_DEATH(checker.Check(StepAt(32)), "no page 1");  // which begins there
}

TEST_F(StepCheckerTest, AnotherPlaceInTheTextIs) {
  StepChecker checker;
  checker.Check(StepAt(31));
  LoseThePage();
  EXPECT_DEATH(checker.Check(StepAt(7)), "no page 0");   // another text
  EXPECT_DEATH(checker.Check(StepAt(31)), "no page 0");  // the same step again
}

TEST_F(StepCheckerTest, MoreThanOneTokenIs) {
  LoseThePage(1);
  StepChecker checker;
  checker.Check(StepAt(30));
  EXPECT_DEATH(checker.Check(StepAt(31, 2)), "no page 1");  // now
  checker.Check(StepAt(5, 2));
  LoseThePage();
  EXPECT_DEATH(checker.Check(StepAt(6)), "no page 0");  // before: it would be at 7
}

TEST_F(StepCheckerTest, AnotherSequenceInItsPlaceIs) {
  StepChecker checker;
  checker.Check(StepAt(5));
  LoseThePage(1);
  EXPECT_DEATH(checker.Check(StepOf({{.num_rows = 1, .first_pos = 6, .first_head = 1}})), "no page 0");
}

TEST_F(StepCheckerTest, ASequenceThatWasNotInTheStepBeforeIs) {
  const StepRows first{.num_rows = 1, .first_pos = 5, .first_head = 0};
  const StepRows second{.first_row = 1, .num_rows = 1, .first_pos = 9, .first_head = 1};
  StepChecker checker;
  checker.Check(StepOf({first, second}));
  checker.Check(StepAt(6));
  LoseThePage(1);
  EXPECT_DEATH(
      checker.Check(StepOf({{.num_rows = 1, .first_pos = 7}, {.num_rows = 1, .first_pos = 10, .first_head = 1}})),
      "no page 0");
}

TEST_F(StepCheckerTest, HeadsThatChangedAre) {
  const std::array<uint32_t, 1> changed = {0};
  StepChecker checker;
  checker.Check(StepAt(28));
  LoseThePage();
  KvStep step = StepAt(29);
  step.changed_heads = changed;
  EXPECT_DEATH(checker.Check(step), "no page 0");
}

// Slots of heads that select by score do not follow from positions alone.
TEST_F(StepCheckerTest, HeadsThatSelectAre) {
  const auto at = [&](int64_t pos) { return StepOf({{.num_rows = 1, .first_pos = pos, .first_selection = 0}}); };
  StepChecker checker;
  checker.Check(at(5));
  LoseThePage();
  EXPECT_DEATH(checker.Check(at(6)), "no page 0");
}

}  // namespace
}  // namespace headwise
