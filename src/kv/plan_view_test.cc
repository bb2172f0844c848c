#include "kv/plan_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace headwise {
namespace {

using ::testing::HasSubstr;

TEST(FormatPlanMap, RulesHaveLettersInTheOrderOfTheirHeads) {
  HeadPlan plan =
      HeadPlan::Dense({.architecture = "llama", .num_layers = 2, .num_q_heads = 3, .num_kv_heads = 3, .head_dim = 64});
  plan.rules[1] = plan.rules[5] = HeadRule::Stream(4, 60);
  plan.rules[2] = HeadRule::Stream(4, 61);
  EXPECT_EQ(FormatPlanMap(plan),
            "  layer   0  #bc\n  layer   1  ##b\n"
            "  #     3 of 6 KV heads: full: every token\n"
            "  b     2 of 6 KV heads: sink 4, recent 60\n"
            "  c     1 of 6 KV heads: sink 4, recent 61\n");
}

// Each with a rule of its own: to compare every head with every rule takes ten seconds.
TEST(FormatPlanMap, ManyRulesAreListedToo) {
  HeadPlan plan = HeadPlan::Dense(
      {.architecture = "llama", .num_layers = 400, .num_q_heads = 400, .num_kv_heads = 400, .head_dim = 64});
  for (size_t i = 0; i < plan.rules.size(); ++i) plan.rules[i] = HeadRule::Stream(0, static_cast<int64_t>(i) + 1);
  const std::string map = FormatPlanMap(plan);
  EXPECT_EQ(std::count(map.begin(), map.end(), '\n'), 400 + 160'000);
  EXPECT_THAT(map.substr(map.size() - 100), HasSubstr("1 of 160000 KV heads: sink 0, recent 160000\n"));
}

}  // namespace
}  // namespace headwise
