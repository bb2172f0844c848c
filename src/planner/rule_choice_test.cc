// The programme against trying every choice, on problems small enough for that.
#include "planner/rule_choice.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>

#include "base/rng.h"

namespace headwise {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::array<double, 6> kScales = {1e-9, 1e-4, 1.0, 1e2, 1e4, 1e9};

struct Sizes {
  int64_t num_layers = 2;
  int64_t heads_per_layer = 2;
  int64_t num_rules = 3;
  int64_t num_lengths = 1;
  int64_t num_limits = 1;
  int64_t max_rules_per_layer = 2;
};

size_t TableSize(const RuleChoiceProblem& p) {
  return static_cast<size_t>(p.num_layers * p.heads_per_layer * p.num_rules);
}

double Total(const RuleChoiceProblem& p, const std::vector<double>& table, const std::vector<int64_t>& rules) {
  double sum = 0.0;
  for (size_t head = 0; head < rules.size(); ++head) {
    sum += table[head * static_cast<size_t>(p.num_rules) + static_cast<size_t>(rules[head])];
  }
  return sum;
}

RuleChoice Evaluate(const RuleChoiceProblem& p, const std::vector<int64_t>& rules) {
  RuleChoice choice{.rule_of_head = rules, .losses = {}, .costs = {}};
  for (const auto& table : p.losses) choice.losses.push_back(Total(p, table, rules));
  for (const auto& table : p.costs) choice.costs.push_back(Total(p, table, rules));
  return choice;
}

bool KeepsLayerLimit(const RuleChoiceProblem& p, const std::vector<int64_t>& rules) {
  for (auto first = rules.begin(); first != rules.end(); first += p.heads_per_layer) {
    const std::set<int64_t> distinct(first, first + p.heads_per_layer);
    if (static_cast<int64_t>(distinct.size()) > p.max_rules_per_layer) return false;
  }
  return true;
}

// Every choice that keeps the cost limits and the rules per layer.
std::vector<RuleChoice> EveryChoice(const RuleChoiceProblem& p) {
  std::vector<RuleChoice> choices;
  std::vector<int64_t> rules(static_cast<size_t>(p.num_layers * p.heads_per_layer), 0);
  for (;;) {
    if (KeepsLayerLimit(p, rules)) {
      RuleChoice choice = Evaluate(p, rules);
      if (std::ranges::equal(choice.costs, p.cost_limits, std::less_equal<>())) choices.push_back(std::move(choice));
    }
    size_t head = 0;
    for (; head < rules.size(); ++head) {
      if (++rules[head] < p.num_rules) break;
      rules[head] = 0;
    }
    if (head == rules.size()) return choices;
  }
}

// Values of either sign and of different sizes; every third table is whole numbers, so that sums tie and meet limits
// exactly. A limit is the cost of some choice, so that bounds that are met exactly must count as met.
RuleChoiceProblem RandomProblem(Rng& rng, const Sizes& sizes) {
  RuleChoiceProblem p{.num_layers = sizes.num_layers,
                      .heads_per_layer = sizes.heads_per_layer,
                      .num_rules = sizes.num_rules,
                      .losses = {},
                      .costs = {},
                      .cost_limits = {},
                      .max_rules_per_layer = sizes.max_rules_per_layer};
  const auto table = [&](double lowest) {
    const double scale = kScales[rng.Below(kScales.size())];
    const bool is_whole = rng.Below(3) == 0;
    std::vector<double> values(TableSize(p));
    for (double& value : values) {
      value = lowest + (1.0 - lowest) * rng.Uniform();
      value = (is_whole ? std::round(value * 4.0) : value) * scale;
    }
    return values;
  };
  for (int64_t i = 0; i < sizes.num_lengths; ++i) p.losses.push_back(table(rng.Below(2) == 0 ? -1.0 : 0.0));
  for (int64_t i = 0; i < sizes.num_limits; ++i) p.costs.push_back(table(0.0));
  std::vector<int64_t> rules(static_cast<size_t>(sizes.num_layers * sizes.heads_per_layer));
  for (int64_t& rule : rules) rule = static_cast<int64_t>(rng.Below(static_cast<uint64_t>(sizes.num_rules)));
  p.cost_limits = Evaluate(p, rules).costs;
  return p;
}

// What "the same loss" means: a billionth of the spread.
double Tolerance(const RuleChoiceProblem& p, const std::vector<double>& table) {
  const auto [least, most] = std::ranges::minmax(table);
  return 1e-9 * (most - least) * static_cast<double>(p.num_layers * p.heads_per_layer);
}

// Whether `choice` says of itself what it is, and keeps every limit.
void ExpectSound(const RuleChoiceProblem& p, const RuleChoice& choice) {
  const RuleChoice expected = Evaluate(p, choice.rule_of_head);
  EXPECT_EQ(choice.losses, expected.losses);
  EXPECT_EQ(choice.costs, expected.costs);
  EXPECT_TRUE(KeepsLayerLimit(p, choice.rule_of_head));
  for (size_t i = 0; i < p.costs.size(); ++i) EXPECT_LE(choice.costs[i], p.cost_limits[i]) << "limit " << i;
}

TEST(MinimiseLossTest, AgreesWithTryingEveryChoice) {
  Rng rng(1);
  int num_infeasible = 0;
  int num_layer_limited = 0;
  for (int round = 0; round < 360; ++round) {
    SCOPED_TRACE(fmt::format("round {}", round));
    Sizes sizes{.num_limits = 1 + round % 2, .max_rules_per_layer = 1 + round / 2 % 2};
    if (round % 5 == 0) sizes.heads_per_layer = 3;
    const RuleChoiceProblem p = RandomProblem(rng, sizes);
    const std::vector<RuleChoice> every = EveryChoice(p);
    const Result<RuleChoice> found = MinimiseLoss(p, 0, {});
    if (every.empty()) {
      ++num_infeasible;
      EXPECT_EQ(found.status().code(), StatusCode::kInvalidInput);
      continue;
    }
    ASSERT_TRUE(found.ok()) << found.status().message();
    ExpectSound(p, *found);
    const auto loss = [](const RuleChoice& c) { return c.losses[0]; };
    const double least = std::ranges::min(every, {}, loss).losses[0];
    EXPECT_NEAR(found->losses[0], least, Tolerance(p, p.losses[0]));
    RuleChoiceProblem free = p;
    free.max_rules_per_layer = p.num_rules;
    num_layer_limited += std::ranges::min(EveryChoice(free), {}, loss).losses[0] < least ? 1 : 0;
  }
  EXPECT_GT(num_infeasible, 5);
  EXPECT_GT(num_layer_limited, 50);
}

TEST(MinimiseLossTest, KeepsLossLimitsOfOtherLengths) {
  Rng rng(2);
  for (int round = 0; round < 100; ++round) {
    SCOPED_TRACE(fmt::format("round {}", round));
    const RuleChoiceProblem p = RandomProblem(rng, {.num_lengths = 2});
    std::vector<RuleChoice> every = EveryChoice(p);
    if (every.empty()) continue;
    const double bound = every[rng.Below(every.size())].losses[1];
    const Result<RuleChoice> found = MinimiseLoss(p, 0, std::vector<double>{kInfinity, bound});
    ASSERT_TRUE(found.ok()) << found.status().message();
    ExpectSound(p, *found);
    EXPECT_LE(found->losses[1], bound);
    std::erase_if(every, [&](const RuleChoice& c) { return c.losses[1] > bound; });
    const double least = std::ranges::min(every, {}, [](const RuleChoice& c) { return c.losses[0]; }).losses[0];
    EXPECT_NEAR(found->losses[0], least, Tolerance(p, p.losses[0]));
  }
}

// The lowest losses are over the limit by less than CBC can tell.
TEST(MinimiseLossTest, LimitHoldsBelowTheSolversTolerance) {
  const double over = 1.0 + 1e-14;
  const RuleChoiceProblem p{.num_layers = 2,
                            .heads_per_layer = 1,
                            .num_rules = 4,
                            .losses = {{0, 1, 2, 7, 0, 1, 2, 7}},
                            .costs = {{over, over, 1, 0, over, over, 1, 0}},
                            .cost_limits = {2.0}};
  const Result<RuleChoice> found = MinimiseLoss(p, 0, {});
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ(found->rule_of_head, (std::vector<int64_t>{2, 2}));
}

// One head's hopeless rule must not decide what counts as a difference elsewhere.
TEST(MinimiseLossTest, OutlierDoesNotHideSmallDifferences) {
  const RuleChoiceProblem p{.num_layers = 1,
                            .heads_per_layer = 2,
                            .num_rules = 2,
                            .losses = {{1, 0, 2, 1}},
                            .costs = {{1e-6, 1e12, 1e-6, 3e-6}},
                            .cost_limits = {3e-6}};
  const Result<RuleChoice> found = MinimiseLoss(p, 0, {});
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ(found->rule_of_head, (std::vector<int64_t>{0, 0}));
}

TEST(MinimiseLossTest, NamesTheLimitThatCannotBeMet) {
  RuleChoiceProblem p{.num_layers = 1,
                      .heads_per_layer = 2,
                      .num_rules = 2,
                      .losses = {{1, 2, 5, 4}},
                      .costs = {{1, 2, 2, 1}, {6, 4, 4, 6}},
                      .cost_limits = {4, 7},
                      .max_rules_per_layer = 2};
  EXPECT_EQ(MinimiseLoss(p, 0, {}).status().message(),
            "rule choice: cost limit 1: at most 7 was asked, but the least possible with up to 2 rules per layer is 8");
  p.max_rules_per_layer = 1;
  p.cost_limits = {2, 100};
  EXPECT_EQ(MinimiseLoss(p, 0, {}).status().message(),
            "rule choice: cost limit 0: at most 2 was asked, but the least possible with up to 1 rules per layer is 3");
  p.cost_limits = {100, 100};
  EXPECT_EQ(MinimiseLoss(p, 0, std::vector<double>{5.5}).status().message(),
            "rule choice: loss limit at length 0: at most 5.5 was asked, but the least possible with up to 1 rules per "
            "layer is 6");
  p.max_rules_per_layer = 2;
  p.cost_limits = {2, 8};
  const Result<RuleChoice> together = MinimiseLoss(p, 0, {});
  EXPECT_EQ(together.status().code(), StatusCode::kInvalidInput);
  EXPECT_THAT(together.status().message(), HasSubstr("each of the 2 limits can be met alone"));
}

TEST(MinimiseLossTest, NamesTheValueThatIsNoNumber) {
  Rng rng(3);
  const RuleChoiceProblem good = RandomProblem(rng, {.num_lengths = 2});
  RuleChoiceProblem p = good;
  p.losses[1][(1 * 2 + 1) * 3 + 2] = std::nan("");
  EXPECT_THAT(MinimiseLoss(p, 0, {}).status().message(),
              HasSubstr("loss at length 1, layer 1, head 1, rule 2: found nan"));
  EXPECT_EQ(ParetoSet(p, 5).status().code(), StatusCode::kInvalidInput);
  p = good;
  p.costs[0][4] = kInfinity;
  EXPECT_THAT(MinimiseLoss(p, 0, {}).status().message(), HasSubstr("cost 0, layer 0, head 1, rule 1: found inf"));
  p = good;
  p.cost_limits[0] = std::nan("");
  EXPECT_THAT(MinimiseLoss(p, 0, {}).status().message(), HasSubstr("cost limit 0: found nan"));
  EXPECT_THAT(MinimiseLoss(good, 0, std::vector<double>{0, std::nan("")}).status().message(),
              HasSubstr("loss limit at length 1: found nan"));
}

TEST(MinimiseLossTest, NoLimitsTakesTheLeastOfEachHead) {
  const RuleChoiceProblem p{.num_layers = 1,
                            .heads_per_layer = 3,
                            .num_rules = 3,
                            .losses = {{1e5, 1e5 - 1e-3, 1e5, -1e5, 0, 1, 3, 2, 4}},
                            .costs = {},
                            .cost_limits = {},
                            .max_rules_per_layer = 3};
  const Result<RuleChoice> found = MinimiseLoss(p, 0, std::vector<double>{kInfinity});
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ(found->rule_of_head, (std::vector<int64_t>{1, 0, 1}));
}

void ExpectParetoSet(const RuleChoiceProblem& p, const std::vector<RuleChoice>& set,
                     const std::vector<RuleChoice>& every) {
  std::vector<double> tolerance;
  for (const auto& table : p.losses) tolerance.push_back(4.0 * Tolerance(p, table));
  for (const RuleChoice& choice : set) {
    ExpectSound(p, choice);
    for (const RuleChoice& other : every) {
      bool is_nowhere_worse = true;
      bool is_better = false;
      for (size_t i = 0; i < tolerance.size(); ++i) {
        is_nowhere_worse = is_nowhere_worse && other.losses[i] <= choice.losses[i];
        is_better = is_better || other.losses[i] < choice.losses[i] - tolerance[i];
      }
      EXPECT_FALSE(is_nowhere_worse && is_better)
          << ::testing::PrintToString(choice.losses) << " is dominated by " << ::testing::PrintToString(other.losses);
    }
  }
  for (size_t i = 0; i < tolerance.size(); ++i) {
    const auto loss = [i](const RuleChoice& c) { return c.losses[i]; };
    EXPECT_NEAR(loss(std::ranges::min(set, {}, loss)), loss(std::ranges::min(every, {}, loss)), tolerance[i]);
  }
  for (size_t i = 1; i < set.size(); ++i) EXPECT_LT(set[i - 1].losses, set[i].losses);
}

TEST(ParetoSetTest, NothingBettersAChoiceAndEveryOptimumIsIn) {
  Rng rng(4);
  size_t most_choices = 0;
  for (int round = 0; round < 40; ++round) {
    SCOPED_TRACE(fmt::format("round {}", round));
    const RuleChoiceProblem p = RandomProblem(rng, {.num_lengths = 1 + round % 3, .num_limits = 1 + round / 3 % 2});
    const std::vector<RuleChoice> every = EveryChoice(p);
    const Result<std::vector<RuleChoice>> set = ParetoSet(p, 5);
    ASSERT_EQ(set.ok(), !every.empty()) << set.status().message();
    if (every.empty()) continue;
    ExpectParetoSet(p, *set, every);
    most_choices = std::max(most_choices, set->size());
    if (p.losses.size() == 1) {
      EXPECT_EQ(set->size(), 1u);
    }
  }
  EXPECT_GE(most_choices, 5u);
}

// Two lengths, one head: the front is all four choices, and only bounds inside the range find the middle ones.
TEST(ParetoSetTest, IntervalsFindTheMiddle) {
  const RuleChoiceProblem p{.num_layers = 1,
                            .heads_per_layer = 1,
                            .num_rules = 5,
                            .losses = {{0, 3, 6, 9, 9}, {9, 6, 3, 0, 1}},
                            .costs = {},
                            .cost_limits = {}};
  const Result<std::vector<RuleChoice>> coarse = ParetoSet(p, 1);
  ASSERT_TRUE(coarse.ok()) << coarse.status().message();
  EXPECT_EQ(coarse->size(), 2u);
  const Result<std::vector<RuleChoice>> fine = ParetoSet(p, 3);
  ASSERT_TRUE(fine.ok()) << fine.status().message();
  ASSERT_EQ(fine->size(), 4u);
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ((*fine)[static_cast<size_t>(i)].rule_of_head[0], i);
}

// It is asked between programmes, of which a set takes many.
TEST(ParetoSetTest, StopsWhereItIsAskedTo) {
  const RuleChoiceProblem p{.num_layers = 1,
                            .heads_per_layer = 1,
                            .num_rules = 5,
                            .losses = {{0, 3, 6, 9, 9}, {9, 6, 3, 0, 1}},
                            .costs = {},
                            .cost_limits = {}};
  for (const int most : {0, 1, 5}) {
    int num_asked = 0;
    const Result<std::vector<RuleChoice>> set = ParetoSet(p, 3, [&] { return num_asked++ == most; });
    EXPECT_EQ(set.status().code(), StatusCode::kCancelled) << most;
    EXPECT_EQ(num_asked, most + 1);
  }
}

// Rules that are the whole text at the first length tie there; the second length decides between them.
TEST(ParetoSetTest, TiesAtOneLengthAreDecidedByTheOther) {
  const RuleChoiceProblem p{.num_layers = 1,
                            .heads_per_layer = 2,
                            .num_rules = 3,
                            .losses = {{0, 0, 0, 0, 0, 0}, {5, 3, 4, 1, 2, 3}},
                            .costs = {},
                            .cost_limits = {}};
  const Result<std::vector<RuleChoice>> set = ParetoSet(p, 5);
  ASSERT_TRUE(set.ok()) << set.status().message();
  ASSERT_EQ(set->size(), 1u);
  EXPECT_EQ((*set)[0].rule_of_head, (std::vector<int64_t>{1, 0}));
}

// A problem as MoA states it: longer spans cost more and lose less, more so in some heads.
RuleChoiceProblem MidSizeProblem(int64_t num_lengths) {
  constexpr int64_t kBetas = 9;
  Rng rng(5);
  RuleChoiceProblem p{.num_layers = 8,
                      .heads_per_layer = 4,
                      .num_rules = 5 * kBetas,
                      .losses = std::vector<std::vector<double>>(static_cast<size_t>(num_lengths)),
                      .costs = std::vector<std::vector<double>>(static_cast<size_t>(num_lengths)),
                      .cost_limits = {}};
  const int64_t num_heads = p.num_layers * p.heads_per_layer;
  for (int64_t i = 0; i < num_lengths; ++i) p.cost_limits.push_back(512.0 * static_cast<double>((i + 1) * num_heads));
  for (int64_t head = 0; head < num_heads; ++head) {
    const double importance = std::exp(4.0 * rng.Uniform());
    const double reach = 0.02 + 0.6 * rng.Uniform();
    for (int64_t rule = 0; rule < p.num_rules; ++rule) {
      for (int64_t i = 0; i < num_lengths; ++i) {
        const double length = 1024.0 * static_cast<double>(i + 1);
        const double span =
            512.0 * static_cast<double>(rule / kBetas - 1) + length * static_cast<double>(rule % kBetas) / 8;
        const double density = std::clamp(span, 128.0, length) / length;
        const double noise = 1.0 + 0.05 * rng.Uniform();
        const double loss = density == 1.0 ? 0.0 : importance * std::exp(-density / reach) * noise;
        p.losses[static_cast<size_t>(i)].push_back(loss);
        p.costs[static_cast<size_t>(i)].push_back(std::clamp(span, 128.0, length));
      }
    }
  }
  return p;
}

TEST(MinimiseLossTest, SolvesAMidSizeProblemTheSameWayTwiceAndPrintsNothing) {
  const RuleChoiceProblem p = MidSizeProblem(3);
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  const Result<RuleChoice> first = MinimiseLoss(p, 1, {});
  const Result<RuleChoice> second = MinimiseLoss(p, 1, {});
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  ASSERT_TRUE(first.ok()) << first.status().message();
  ASSERT_TRUE(second.ok()) << second.status().message();
  ExpectSound(p, *first);
  EXPECT_EQ(first->rule_of_head, second->rule_of_head);
}

}  // namespace
}  // namespace headwise
