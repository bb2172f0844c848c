#include "planner/plan_compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kv/plan_svg.h"
#include "kv/plan_view.h"

namespace headwise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

HeadPlan Plan(const std::vector<bool>& is_full, std::vector<double> scores = {}) {
  HeadPlan plan =
      HeadPlan::Dense({.architecture = "llama", .num_layers = 2, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 64});
  for (size_t i = 0; i < is_full.size(); ++i) {
    if (!is_full[i]) plan.rules[i] = HeadRule::Stream(16, 128);
  }
  plan.scores = std::move(scores);
  return plan;
}

TEST(PlanCompare, OverlapsByHand) {
  const std::vector<NamedPlan> plans = {{"a.json", Plan({true, true, false, false}, {0.9, 0.8, 0.1, 0.2})},
                                        {"b.json", Plan({false, true, true, false}, {0.1, 0.2, 0.9, 0.8})},
                                        {"c.json", Plan({false, false, false, false})}};
  const auto comparison = ComparePlans(plans, {32, 3200});
  ASSERT_TRUE(comparison.ok()) << comparison.status().message();
  ASSERT_EQ(comparison->overlaps.size(), 3u);
  const PlanOverlap& ab = comparison->overlaps[0];
  EXPECT_THAT(ab.both, ElementsAre(1));
  EXPECT_THAT(ab.only_a, ElementsAre(0));
  EXPECT_THAT(ab.only_b, ElementsAre(2));
  EXPECT_NEAR(*ab.jaccard, 1.0 / 3, 1e-12);
  // Ranks 3 2 0 1 against 0 1 3 2.
  EXPECT_NEAR(*ab.rank_correlation, -1.0, 1e-12);
  EXPECT_FALSE(comparison->overlaps[1].rank_correlation.has_value());
  EXPECT_DOUBLE_EQ(*comparison->overlaps[1].jaccard, 0.0);
  // At 32 tokens every head has its one page; at 3200 a full head has 100 and a stream what its rule
  // has: pages of sinks and a ring.
  constexpr int64_t kPage = 2 * 32 * 64 * 2;
  EXPECT_THAT(comparison->kv_bytes[0], ElementsAre(4 * kPage, (2 * 100 + 2 * 6) * kPage));
  EXPECT_THAT(comparison->dense_kv_bytes, ElementsAre(4 * kPage, 400 * kPage));
  // A model's own window of 65 tokens bounds the heads of its second layer: three pages, whatever the rule.
  const auto bounded = ComparePlans(plans, {3200}, {.tokens = {kNoLimit, 65}});
  ASSERT_TRUE(bounded.ok()) << bounded.status().message();
  EXPECT_THAT(bounded->dense_kv_bytes, ElementsAre((2 * 100 + 2 * 3) * kPage));
  EXPECT_THAT(bounded->kv_bytes[0], ElementsAre((2 * 100 + 2 * 3) * kPage));
  EXPECT_THAT(FormatComparison(plans, *comparison), HasSubstr("full in both: 0.1\n"));
  EXPECT_EQ(ComparisonJson(plans, *comparison).at("pairs").size(), 3u);
}

TEST(PlanCompare, RankCorrelationWithTies) {
  const std::vector<double> a = {1, 1, 2, 3};
  const std::vector<double> b = {1, 2, 2, 3};
  // Ranks 0.5 0.5 2 3 and 0 1.5 1.5 3.
  EXPECT_NEAR(*RankCorrelation(a, b), 3.75 / 4.5, 1e-12);
  EXPECT_FALSE(RankCorrelation(a, std::vector<double>(4, 7.0)).has_value());
}

TEST(PlanCompare, RefusesOnePlanAndOtherShapes) {
  std::vector<NamedPlan> plans = {{"a.json", Plan({true, true, true, true})}};
  EXPECT_FALSE(ComparePlans(plans, {1}).ok());
  HeadPlan other = plans[0].plan;
  other.shape.num_layers = 1;
  other.rules.resize(2);
  plans.push_back({"b.json", other});
  const auto refused = ComparePlans(plans, {1});
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(std::string(refused.status().message()), testing::AllOf(HasSubstr("a.json"), HasSubstr("b.json")));
}

TEST(ScoreMap, ShowsScaleFullHeadsAndTheHighest) {
  const std::string map = FormatScoreMap(Plan({true, false, false, false}, {1.0, 0.0, 0.5, 0.25}));
  EXPECT_THAT(map, HasSubstr("  layer   0  ██#·· \n"));
  EXPECT_THAT(map, HasSubstr("  layer   1  ▒▒ ░░ \n"));
  EXPECT_THAT(map, HasSubstr("0.5  layer 1 KV head 0"));
  EXPECT_THAT(FormatScoreMap(Plan({true})), IsEmpty());
}

TEST(PlanSvg, HasEveryHeadAndNothingFromOutside) {
  HeadPlan plan = Plan({true, false, false, false}, {1.0, 0.0, 0.5, 0.25});
  plan.method = "a < b & \"c\"";
  const std::string svg = PlanSvg(plan);
  EXPECT_THAT(svg, HasSubstr("a &lt; b &amp; &quot;c&quot;"));
  EXPECT_THAT(svg, HasSubstr("layer 1, KV head 0: sink 16, recent 128; score 0.5</title>"));
  EXPECT_THAT(svg, Not(HasSubstr("href")));
  size_t cells = 0;
  for (size_t at = svg.find("<g>"); at != std::string::npos; at = svg.find("<g>", at + 1)) ++cells;
  EXPECT_EQ(cells, 4u);
  EXPECT_THAT(PlanSvg(Plan({true, false, false, false})), HasSubstr("share of a full head"));
  EXPECT_THAT(svg, HasSubstr("<style>"));
  EXPECT_THAT(PlanSvg(plan, PlanSvgUse::kInPage), Not(testing::AnyOf(HasSubstr("<style>"), HasSubstr("http"))));
}

}  // namespace
}  // namespace headwise
