#include "planner/moa_json.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "kv/rule.h"

namespace headwise {
namespace {

int64_t KeptAt(double alpha, double beta, int64_t num_tokens) {
  HeadRule rule;
  rule.kind = HeadRule::Kind::kElasticMoa;
  rule.sink = 64;
  rule.alpha = alpha;
  rule.beta = beta;
  return NumKeptTokens(ResolveRule(rule, {.prompt_tokens = num_tokens, .max_tokens = num_tokens}), num_tokens);
}

bool Covers(const HeadRule& rule, const std::vector<double>& alphas, const std::vector<double>& betas) {
  for (int64_t num_tokens = 1; num_tokens < 40'000; num_tokens += 1 + num_tokens / 64) {
    for (size_t i = 0; i < alphas.size(); ++i) {
      if (KeptAt(rule.alpha, rule.beta, num_tokens) < KeptAt(alphas[i], betas[i], num_tokens)) return false;
    }
  }
  return true;
}

TEST(WidestRule, KeepsWhatEveryMemberKeepsAndLittleMore) {
  Rng rng(5);
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<double> alphas;
    std::vector<double> betas;
    for (int member = 0; member < 4; ++member) {
      alphas.push_back(1024.0 * (static_cast<double>(rng.Below(8)) - 3));
      betas.push_back(static_cast<double>(rng.Below(9)) / 8);
    }
    const HeadRule rule = WidestRule(alphas, betas);
    EXPECT_TRUE(Covers(rule, alphas, betas)) << trial;
    bool is_member = false;
    for (size_t i = 0; i < alphas.size(); ++i) is_member |= rule.alpha == alphas[i] && rule.beta == betas[i];
    if (is_member) continue;
    HeadRule narrower = rule;
    narrower.alpha -= 64;  // lengths are looked at in steps, so one token less need not show
    EXPECT_FALSE(Covers(narrower, alphas, betas)) << trial;
  }
}

TEST(WidestRule, SpansOfTheDocument) {
  // 1,024 tokens always, and all but the last 1,024: they cross at 2,048.
  const HeadRule crossing = WidestRule(std::vector<double>{1024, -1024}, std::vector<double>{0, 1});
  EXPECT_EQ(crossing.beta, 1);
  EXPECT_EQ(crossing.alpha, 0);
  const HeadRule half = WidestRule(std::vector<double>{1024, 0}, std::vector<double>{0, 0.5});
  EXPECT_EQ(half.beta, 0.5);
  EXPECT_EQ(half.alpha, 512);
}

TEST(ParseMoaPlan, AGroupTakesItsWidest) {
  const ModelShape shape{.architecture = "llama", .num_layers = 1, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 8};
  const auto plan = ParseMoaPlan(R"({"alphas": [[1024, 0, 512, 512]], "betas": [[0, 0.5, 0.25, 0.125]]})", shape, "f");
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->rules[0].alpha, 512);
  EXPECT_EQ(plan->rules[0].beta, 0.5);
  EXPECT_EQ(plan->rules[1].alpha, 512);
  EXPECT_EQ(plan->rules[1].beta, 0.25);
  EXPECT_EQ(plan->notes.size(), 2u);
}

// The widest of a group is computed: what comes out may be more than a plan can hold.
TEST(ParseMoaPlan, AGroupWhoseWidestIsNoRuleIsRefused) {
  const ModelShape shape{.architecture = "llama", .num_layers = 1, .num_q_heads = 2, .num_kv_heads = 1, .head_dim = 8};
  const auto plan = ParseMoaPlan(R"({"alphas": [[2, 888888888888882]], "betas": [[50, 0.12]]})", shape, "f");
  EXPECT_EQ(plan.status().code(), StatusCode::kInvalidInput);
  EXPECT_EQ(plan.status().message().rfind("f: ", 0), 0u) << plan.status().message();
}

}  // namespace
}  // namespace headwise
