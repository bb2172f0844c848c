#include "backend/step_checker.h"

#include <gtest/gtest.h>

#include <array>

namespace headwise {
namespace {

// One sequence of one head, whose only page is there at first.
class StepCheckerTest : public testing::Test {
 protected:
  KvStep StepAt(int64_t pos, int64_t num_rows = 1) {
    sequences_[0] = {.first_row = 0, .num_rows = num_rows, .first_pos = pos};
    return {.num_layers = 1,
            .num_kv_heads = 1,
            .sequences = sequences_,
            .heads = heads_,
            .pages = pages_,
            .spaces = spaces_};
  }
  void LoseThePage() { pages_[0] = kNoPage; }

  std::array<StepRows, 1> sequences_;
  std::array<StepHead, 1> heads_;
  std::array<uint32_t, 1> pages_ = {0};
  std::array<PageSpace, 1> spaces_ = {PageSpace{.layout = {.head_dim = 64, .page_tokens = 32}}};
};

TEST_F(StepCheckerTest, WhatOnlyGoesOnIsNotLookedAtAgain) {
  StepChecker checker;
  checker.Check(StepAt(5));
  LoseThePage();
  checker.Check(StepAt(6));
}

TEST_F(StepCheckerTest, EverythingElseIs) {
  StepChecker checker;
  checker.Check(StepAt(30));
  EXPECT_DEATH(StepChecker().Check(StepAt(32)), "no page 1|pages");  // of a checker that has seen none
  checker.Check(StepAt(31));
  EXPECT_DEATH(checker.Check(StepAt(32)), "no page 1");  // which begins there
  LoseThePage();
  EXPECT_DEATH(checker.Check(StepAt(7)), "no page 0");      // another text
  EXPECT_DEATH(checker.Check(StepAt(31, 1)), "no page 0");  // the same step again
  const std::array<uint32_t, 1> changed = {0};
  KvStep step = StepAt(29);
  step.changed_heads = changed;
  StepChecker other;
  pages_[0] = 0;
  other.Check(StepAt(28));
  LoseThePage();
  EXPECT_DEATH(other.Check(step), "no page 0");
}

}  // namespace
}  // namespace headwise
