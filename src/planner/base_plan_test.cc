// Plans whose bounded heads choose by score in place of another plan's windows, made for another budget together.
#include "planner/base_plan.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json.h"
#include "planner/budget.h"
#include "support/planner_input.h"

namespace headwise {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Gates of which no two are alike, and everything else that must survive another method's rules.
std::string WriteGatePlan() {
  HeadPlan plan = HeadPlan::Dense(PlannerShape());
  plan.method = "duo";
  for (size_t i = 0; i < plan.rules.size(); ++i) {
    plan.scores.push_back(static_cast<double>(i * 7 % plan.rules.size()) / 32);
    if (plan.scores.back() < 0.8) plan.rules[i] = HeadRule::Stream(16, 128);
  }
  plan.parameters_json = R"({"sink": "16", "recent": "128", "sparsity": "0.8"})";
  plan.data_hash = "some-texts";
  plan.seed = 5;
  plan.report_json = R"({"steps": 40, "measured_loss": {"perplexity": 0.05, "answers": 0.01}})";
  const std::string path = testing::TempDir() + "/headwise_gate_plan.json";
  EXPECT_TRUE(WriteHeadPlan(plan, path).ok());
  return path;
}

std::vector<bool> FullHeads(const HeadPlan& plan) {
  std::vector<bool> full;
  for (const HeadRule& rule : plan.rules) full.push_back(rule.kind == HeadRule::Kind::kFull);
  return full;
}

void ExpectMeets(const HeadPlan& plan, double ratio, int64_t tokens) {
  const auto asked = ratio * static_cast<double>(PlanBytesAt(HeadPlan::Dense(PlannerShape()), tokens, {}));
  const auto bytes = static_cast<double>(PlanBytesAt(plan, tokens, {}));
  EXPECT_LE(bytes, asked);
  EXPECT_GE(bytes, 0.99 * asked);
}

// The same heads stay full as of the base at that budget, the others choose, and all of the budget is used.
TEST(BasePlan, BothAreMadeForABudgetTogether) {
  const std::string path = WriteGatePlan();
  const auto base = ReadHeadPlan(path);
  ASSERT_TRUE(base.ok());
  for (const char* method : {"h2o", "tova", "snapkv", "adakv", "knorm", "keydiff", "expected"}) {
    const auto once = MakePlan(method, Input({{"base", path}}));
    ASSERT_TRUE(once.ok()) << once.status().message();
    for (const char* ratio : {"0.125", "0.25", "0.5"}) {
      SCOPED_TRACE(fmt::format("{} {}", method, ratio));
      const PlannerInput budget = Input({{"kv-ratio", ratio}, {"at", "8192"}});
      const auto base_again = RefitPlan(*base, budget, "base");
      const auto again = RefitPlan(*once, budget, "plan");
      const auto at_once = MakePlan(method, Input({{"base", path}, {"kv-ratio", ratio}, {"at", "8192"}}));
      ASSERT_TRUE(base_again.ok()) << base_again.status().message();
      ASSERT_TRUE(again.ok()) << again.status().message();
      ASSERT_TRUE(at_once.ok()) << at_once.status().message();
      EXPECT_EQ(again->rules, at_once->rules);
      EXPECT_EQ(FullHeads(*again), FullHeads(*base_again));
      for (const HeadRule& rule : again->rules) {
        EXPECT_EQ(rule.SelectsByScore(), rule.kind != HeadRule::Kind::kFull);
        EXPECT_EQ(rule.sink, rule.SelectsByScore() ? 16 : 0);
      }
      ExpectMeets(*again, std::stod(ratio), 8192);
      for (int64_t layer_idx = 0; layer_idx < PlannerShape().num_layers && method == std::string_view("adakv");
           ++layer_idx) {
        int64_t shared = -1;
        for (int64_t kv_head = 0; kv_head < PlannerShape().num_kv_heads; ++kv_head) {
          const HeadRule& rule = again->At(layer_idx, kv_head);
          if (!rule.SelectsByScore()) continue;
          EXPECT_TRUE(shared < 0 || shared == rule.recent) << layer_idx;
          shared = rule.recent;
        }
      }
      EXPECT_EQ(again->method, method);
      EXPECT_EQ(again->report_json, at_once->report_json) << "how the base was made this time";
      EXPECT_EQ(again->scores, base->scores);
      EXPECT_EQ(again->data_hash, "some-texts");
      EXPECT_EQ(again->seed, 5);
    }
  }
}

// Spans that grow with the text have no size to be made smaller: the base has.
TEST(BasePlan, SpansThatGrowKeepToTheBudgetToo) {
  const std::string path = testing::TempDir() + "/headwise_uniform_plan.json";
  const auto base = MakePlan("uniform", Input({{"beta", "0.5"}}));
  ASSERT_TRUE(base.ok()) << base.status().message();
  ASSERT_TRUE(WriteHeadPlan(*base, path).ok());
  for (const char* ratio : {"0.25", "0.5"}) {
    const auto plan = MakePlan("h2o", Input({{"base", path}, {"kv-ratio", ratio}, {"at", "32768"}}));
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_EQ(plan->rules[0].kind, HeadRule::Kind::kElasticMoa);
    EXPECT_TRUE(plan->rules[0].SelectsByScore());
    const auto asked = std::stod(ratio) * static_cast<double>(PlanBytesAt(HeadPlan::Dense(PlannerShape()), 32768, {}));
    EXPECT_LE(static_cast<double>(PlanBytesAt(*plan, 32768, {})), asked);
    EXPECT_GE(static_cast<double>(PlanBytesAt(*plan, 32768, {})), 0.97 * asked);
  }
}

// FastGen's lists are not the policy's, but its base's.
TEST(BasePlan, ABasesTokensAreKept) {
  HeadPlan base = HeadPlan::Dense(PlannerShape());
  base.method = "fastgen";
  base.rules[3] = HeadRule::Stream(0, 64);
  base.rules[3].select.kind = TokenSelector::Kind::kFastGen;
  base.tokens = {.special = {0, 5}, .punctuation = {7, 9}};
  const std::string path = testing::TempDir() + "/headwise_fastgen_plan.json";
  ASSERT_TRUE(WriteHeadPlan(base, path).ok());
  const auto plan = MakePlan("h2o", Input({{"base", path}}));
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->tokens, TokenLists{});
  const auto again = BaseOf(*plan);
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again->method, "fastgen");
  EXPECT_EQ(again->tokens, base.tokens);
}

TEST(BasePlan, ABaseMayHaveOneItself) {
  const std::string path = testing::TempDir() + "/headwise_two_policies.json";
  const auto first = MakePlan("tova", Input({{"base", WriteGatePlan()}}));
  ASSERT_TRUE(first.ok()) << first.status().message();
  ASSERT_TRUE(WriteHeadPlan(*first, path).ok());
  const auto second = MakePlan("h2o", Input({{"base", path}}));
  ASSERT_TRUE(second.ok()) << second.status().message();
  const PlannerInput budget = Input({{"kv-bytes-at", "4M:8192"}});
  const auto again = RefitPlan(*second, budget, "plan");
  ASSERT_TRUE(again.ok()) << again.status().message();
  const auto first_again = RefitPlan(*first, budget, "plan");
  ASSERT_TRUE(first_again.ok());
  EXPECT_EQ(FullHeads(*again), FullHeads(*first_again));
  for (const HeadRule& rule : again->rules) {
    const bool is_full = rule.kind == HeadRule::Kind::kFull;
    EXPECT_EQ(rule.select.kind, is_full ? TokenSelector::Kind::kPosition : TokenSelector::Kind::kH2o);
  }
  EXPECT_LE(PlanBytesAt(*again, 8192, {}), 4'000'000);
}

// Only of the rules that it was measured under is it true.
TEST(BasePlan, WhatWasMeasuredUnderOtherRulesIsForgotten) {
  const std::string path = WriteGatePlan();
  const auto base = ReadHeadPlan(path);
  ASSERT_TRUE(base.ok());
  ASSERT_THAT(base->report_json, HasSubstr("measured_loss"));
  const auto selecting = MakePlan("h2o", Input({{"base", path}}));
  const auto refitted = RefitPlan(*base, Input({{"kv-ratio", "0.5"}, {"at", "8192"}}), "base");
  for (const auto* plan : {&selecting, &refitted}) {
    ASSERT_TRUE(plan->ok()) << plan->status().message();
    EXPECT_THAT((*plan)->report_json, Not(HasSubstr("measured_loss")));
    EXPECT_THAT((*plan)->report_json, HasSubstr("steps"));
  }
}

TEST(BasePlan, WhatCannotBeMadeAgainIsSaid) {
  const PlannerInput budget = Input({{"kv-ratio", "0.5"}, {"at", "8192"}});
  const auto plan = MakePlan("h2o", Input({{"base", WriteGatePlan()}}));
  ASSERT_TRUE(plan.ok());
  const auto error = [&](const char* report) {
    HeadPlan other = *plan;
    other.report_json = report;
    return RefitPlan(other, budget, "its file").status().message();
  };
  EXPECT_THAT(error("{}"), HasSubstr("its file: the report does not say what made the plan's base"));
  EXPECT_THAT(error(R"({"base": 1})"), HasSubstr("object"));
  EXPECT_THAT(error(R"({"base": {"method": "duo"}})"), HasSubstr("parameters"));
  EXPECT_THAT(error(R"({"base": {"method": "fastgen", "parameters": {}, "tokens": {"special": [1.5]}}})"),
              HasSubstr("not a list of token ids"));
  EXPECT_THAT(error(R"({"base": {"method": "manual", "parameters": {}}})"), HasSubstr("cannot be made for another"));
  EXPECT_THAT(
      MakePlan("h2o", Input({{"base", WriteGatePlan()}, {"kv-ratio", "0.0001"}, {"at", "8192"}})).status().message(),
      HasSubstr("needs at least"));
}

}  // namespace
}  // namespace headwise
