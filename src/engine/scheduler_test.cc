#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <numeric>
#include <optional>
#include <random>

#include "engine/client_shares.h"

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

TEST(ShareStep, TheMoreUrgentAreServedFirst) {
  const StepWish wishes[] = {{1000}, {4, StepWish::Cut::kAllowed, 2}, {30, StepWish::Cut::kAllowed, 1}};
  EXPECT_EQ(ShareStep(wishes, 20), (Tokens{20, 0, 0}));
  const StepWish few[] = {{6}, {4, StepWish::Cut::kAllowed, 2}, {30, StepWish::Cut::kAllowed, 1}};
  EXPECT_EQ(ShareStep(few, 20), (Tokens{6, 0, 14}));
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

using Order = std::vector<size_t>;

TEST(Turns, ArePrioritiesThenClientsThenArrivals) {
  EXPECT_EQ(OrderOf({}), Order{});
  const Turn of_one_client[] = {{.arrival = 3}, {.arrival = 1}, {.arrival = 2}};
  EXPECT_EQ(OrderOf(of_one_client), (Order{1, 2, 0}));
  const Turn turns[] = {{.priority = 1, .served = 0, .arrival = 1},
                        {.priority = 0, .served = 50, .arrival = 2},
                        {.priority = 0, .served = 20, .arrival = 4},
                        {.priority = -5, .served = 90, .arrival = 3},
                        {.priority = 0, .is_again = true, .served = 99, .arrival = 5}};
  EXPECT_EQ(OrderOf(turns), (Order{3, 4, 2, 1, 0}));
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const Turn far[] = {{.priority = kMost, .arrival = 1}, {.priority = -kMost - 1, .arrival = 2}};
  EXPECT_EQ(OrderOf(far), (Order{1, 0}));
}

// As urgent as the most urgent, and no more: else a client's many old requests would go before another's new one.
TEST(Turns, WaitingMakesUrgentAsOthersAre) {
  const auto order = [](int64_t waited_steps) {
    const Turn turns[] = {{.priority = 3, .waited_steps = waited_steps, .served = 10, .arrival = 1},
                          {.priority = 1, .served = 20, .arrival = 2},
                          {.priority = 1, .served = 5, .arrival = 3}};
    return OrderOf(turns);
  };
  EXPECT_EQ(order(0), (Order{2, 1, 0}));
  EXPECT_EQ(order(2 * kStepsOfAge - 1), (Order{2, 1, 0}));
  EXPECT_EQ(order(2 * kStepsOfAge), (Order{2, 0, 1}));
  EXPECT_EQ(order(1000 * kStepsOfAge), (Order{2, 0, 1}));
}

// One server of one request at a time.
struct Queue {
  struct Waiting {
    Turn turn;
    ClientShares::Ticket share;
    int client = 0;
    int64_t came = 0;
  };
  void Add(int client, int64_t priority, int64_t step) {
    waiting.push_back({.turn = {.priority = priority, .arrival = ++num_arrived},
                       .share = shares->Begin(std::to_string(client)),
                       .client = client,
                       .came = step});
  }
  Waiting TakeFirst(int64_t step) {
    std::vector<Turn> turns;
    for (Waiting& each : waiting) {
      each.turn.waited_steps = step - each.came;
      each.turn.served = each.share.served();
      turns.push_back(each.turn);
    }
    const auto first = waiting.begin() + static_cast<std::ptrdiff_t>(OrderOf(turns).front());
    Waiting taken = std::move(*first);
    waiting.erase(first);
    return taken;
  }
  std::shared_ptr<ClientShares> shares = std::make_shared<ClientShares>();
  std::vector<Waiting> waiting;
  int64_t num_arrived = 0;
};

// One has a hundred waiting, one of a few tokens each asks again when it was answered, one asks for much.
TEST(Turns, ClientsAreServedAlike) {
  Queue queue;
  for (int i = 0; i < 300; ++i) queue.Add(0, 0, 0);
  queue.Add(1, 0, 0);
  queue.Add(2, 0, 0);
  std::array<int64_t, 3> served{};
  const std::array<int64_t, 3> tokens = {100, 10, 400};
  for (int64_t step = 0; step < 1000; ++step) {
    Queue::Waiting taken = queue.TakeFirst(step);
    const auto client = static_cast<size_t>(taken.client);
    taken.share.Serve(tokens[client]);
    served[client] += tokens[client];
    if (taken.client > 0) queue.Add(taken.client, 0, step);
  }
  for (const int64_t of_client : served)
    EXPECT_NEAR(static_cast<double>(of_client), static_cast<double>(served[0]), 500);
  // Who comes now begins where the others are, and does not catch up.
  queue.Add(3, 0, 1000);
  int num_first = 0;
  for (int64_t step = 1000; step < 1012; ++step) {
    Queue::Waiting taken = queue.TakeFirst(step);
    taken.share.Serve(100);
    num_first += taken.client == 3 ? 1 : 0;
    queue.Add(taken.client, 0, step);
  }
  EXPECT_GE(num_first, 2);
  EXPECT_LE(num_first, 6);
}

// However many urgent ones come.
TEST(Turns, NobodyStarves) {
  Queue queue;
  queue.Add(0, 8, 0);
  std::optional<int64_t> served_at;
  for (int64_t step = 0; !served_at && step < 100 * kStepsOfAge; ++step) {
    queue.Add(1 + static_cast<int>(step % 3), 0, step);
    queue.Add(1 + static_cast<int>(step % 3), 0, step);
    Queue::Waiting taken = queue.TakeFirst(step);
    taken.share.Serve(10);
    if (taken.client == 0) served_at = step;
    if (queue.waiting.size() > 60) queue.waiting.erase(queue.waiting.begin() + 1, queue.waiting.begin() + 30);
  }
  ASSERT_TRUE(served_at.has_value());
  EXPECT_GE(*served_at, 7 * kStepsOfAge);
  EXPECT_LE(*served_at, 9 * kStepsOfAge);
}

TEST(ClientShares, TimeAwayIsNoCredit) {
  const auto shares = std::make_shared<ClientShares>();
  auto first = shares->Begin("a");
  first.Serve(1000);
  EXPECT_EQ(shares->Begin("b").served(), 1000);
  auto second = shares->Begin("b");
  second.Serve(10);
  first = {};
  EXPECT_EQ(second.served(), 1010);
  EXPECT_EQ(shares->Begin("a").served(), 1010) << "nor is it a debt";
  for (int i = 0; i < 5000; ++i) shares->Begin(std::to_string(i));
  EXPECT_LE(shares->num_clients(), 1100u);
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
