#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace headwise {
namespace {

using Tokens = std::vector<int64_t>;
constexpr StepWish::Cut kWhole = StepWish::Cut::kRefused;

TEST(ShareStep, DecodingRequestsAlwaysGetTheirToken) {
  EXPECT_EQ(ShareStep({}, 8), Tokens{});
  const StepWish wishes[] = {{1}, {1000}, {1}, {0}, {1}};
  EXPECT_EQ(ShareStep(wishes, 8), (Tokens{1, 8, 1, 0, 1}));
}

TEST(ShareStep, AShortPromptDoesNotWaitForALongOne) {
  const StepWish wishes[] = {{1000}, {900}, {3}, {4}};
  EXPECT_EQ(ShareStep(wishes, 8), (Tokens{4, 0, 3, 1}));
  EXPECT_EQ(ShareStep(wishes, 20), (Tokens{10, 3, 3, 4}));
}

TEST(ShareStep, TheOldestNeverStarves) {
  // However many short ones come after it.
  std::vector<StepWish> wishes(100, StepWish{2});
  wishes.front() = {1000};
  EXPECT_EQ(ShareStep(wishes, 7).front(), 4);
  EXPECT_EQ(ShareStep(wishes, 1).front(), 1);
}

TEST(ShareStep, WhatCannotBeCutIsGrantedWholeOrNotAtAll) {
  const StepWish first[] = {{50, kWhole}, {4}};
  EXPECT_EQ(ShareStep(first, 8), (Tokens{50, 0}));
  const StepWish second[] = {{2}, {7, kWhole}, {6, kWhole}};
  EXPECT_EQ(ShareStep(second, 8), (Tokens{2, 0, 6}));
}

TEST(ShareStep, StaysWithinTheBudgetAndLeavesNobodyIdle) {
  std::mt19937_64 rng(1);
  for (int round = 0; round < 1000; ++round) {
    std::vector<StepWish> wishes(1 + rng() % 6);
    for (StepWish& wish : wishes) wish = {static_cast<int64_t>(rng() % 20)};
    const auto budget = static_cast<int64_t>(1 + rng() % 30);
    const Tokens granted = ShareStep(wishes, budget);
    int64_t read = 0;
    int64_t wished = 0;
    for (size_t i = 0; i < wishes.size(); ++i) {
      ASSERT_LE(granted[i], wishes[i].num_tokens);
      if (wishes[i].num_tokens == 1) {
        ASSERT_EQ(granted[i], 1);
      }
      if (wishes[i].num_tokens > 1) {
        read += granted[i];
        wished += wishes[i].num_tokens;
      }
    }
    ASSERT_EQ(read, std::min(budget, wished));
  }
}

}  // namespace
}  // namespace headwise
