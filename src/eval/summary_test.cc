#include "eval/summary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace headwise {
namespace {

CaseResult Case(const std::string& plan, int64_t length, int64_t case_idx, std::map<std::string, double> scores,
                int64_t kv_bytes = 100) {
  CaseResult result;
  result.plan = plan;
  result.length = length;
  result.case_idx = case_idx;
  result.scores = std::move(scores);
  result.kv_bytes = kv_bytes;
  result.kv_peak_bytes = 2 * kv_bytes;
  result.kv_read_bytes = plan == "duo" ? kv_bytes - 10 : kv_bytes;
  return result;
}

// Two plans, two lengths; "duo" is not through yet.
RunData SmallRun() {
  RunData run;
  run.info.metrics = {{.name = "right", .label = "right answers", .unit = ""},
                      {.name = "nll", .label = "NLL", .unit = "nats", .kind = MetricInfo::Kind::kMean}};
  run.info.plans = {{.name = "full", .method = "full", .kv_ratio = {}, .files = {}},
                    {.name = "duo", .method = "duo", .kv_ratio = {}, .files = {}}};
  run.info.lengths = {1024, 2048};
  run.results = {Case("full", 1024, 0, {{"right", 1}, {"nll", 2.0}}),
                 Case("full", 1024, 1, {{"right", 0}, {"nll", 3.0}}, 300),
                 Case("full", 2048, 0, {{"right", 1}, {"nll", 4.0}}, 200),
                 Case("full", 2048, 1, {{"right", 1}, {"nll", 5.0}}, 200),
                 Case("duo", 1024, 1, {{"right", 1}, {"nll", 3.5}}, 50),
                 Case("duo", 2048, 1, {{"right", 0}, {"nll", 5.5}}, 60)};
  return run;
}

TEST(Summary, CellsAreMeansWithTheirCountsAndLargestBytes) {
  const Summary summary = Summarise(SmallRun());
  const Cell* all = FindCell(summary, "full", std::nullopt, "right");
  ASSERT_NE(all, nullptr);
  EXPECT_EQ(all->count, 4);
  EXPECT_DOUBLE_EQ(all->mean, 0.75);
  EXPECT_EQ(all->kv_bytes, 300);
  EXPECT_EQ(all->kv_peak_bytes, 600);
  EXPECT_EQ(all->kv_read_bytes, 300);
  EXPECT_FALSE(all->ReadsLess());
  EXPECT_EQ(FindCell(summary, "duo", std::nullopt, "right")->kv_read_bytes, 50);
  EXPECT_TRUE(FindCell(summary, "duo", std::nullopt, "right")->ReadsLess());
  const Interval wilson = WilsonInterval(3, 4);
  EXPECT_DOUBLE_EQ(all->interval.low, wilson.low);
  EXPECT_DOUBLE_EQ(all->interval.high, wilson.high);
  const Cell* nll = FindCell(summary, "full", 2048, "nll");
  ASSERT_NE(nll, nullptr);
  EXPECT_DOUBLE_EQ(nll->mean, 4.5);
  const double values[] = {4.0, 5.0};
  EXPECT_DOUBLE_EQ(nll->interval.low, BootstrapMeanInterval(values).low);
  EXPECT_EQ(FindCell(summary, "duo", 1024, "right")->count, 1);
  EXPECT_EQ(FindCell(summary, "duo", 4096, "right"), nullptr);
}

// Two texts of perplexities 100 and 10,000 have a perplexity of 1,000, as exp of their mean NLL is.
TEST(Summary, PerplexityIsThatOfTheMeanNll) {
  RunData run = SmallRun();
  run.info.metrics.push_back(
      {.name = "ppl", .label = "perplexity", .unit = "", .kind = MetricInfo::Kind::kGeometricMean});
  for (CaseResult& result : run.results) result.scores["ppl"] = std::exp(result.scores.at("nll"));
  const Summary summary = Summarise(run);
  for (const auto length : {std::optional<int64_t>(), std::optional<int64_t>(1024), std::optional<int64_t>(2048)}) {
    const Cell* nll = FindCell(summary, "full", length, "nll");
    const Cell* ppl = FindCell(summary, "full", length, "ppl");
    EXPECT_NEAR(ppl->mean, std::exp(nll->mean), 1e-9 * ppl->mean);
    EXPECT_NEAR(ppl->interval.low, std::exp(nll->interval.low), 1e-9 * ppl->mean);
    EXPECT_NEAR(ppl->interval.high, std::exp(nll->interval.high), 1e-9 * ppl->mean);
  }
  // On the two cases that "duo" has: exp((3.5 + 5.5) / 2) - exp((3 + 5) / 2).
  for (const Comparison& comparison : summary.comparisons) {
    if (comparison.metric != "ppl" || comparison.length) continue;
    EXPECT_NEAR(comparison.paired.mean_difference, std::exp(4.5) - std::exp(4.0), 1e-9);
    EXPECT_EQ(comparison.paired.num_higher, 2);
    EXPECT_NEAR(comparison.paired.interval.low, std::exp(3.5) - std::exp(3.0), 1e-9);
    EXPECT_NEAR(comparison.paired.interval.high, std::exp(5.5) - std::exp(5.0), 1e-9);
  }
  // What has no logarithm, in a folder that someone wrote by hand, counts as not judged.
  run.results.front().scores["ppl"] = 0;
  EXPECT_EQ(FindCell(Summarise(run), "full", 1024, "ppl")->count, 1);
}

TEST(Summary, OrderIsPlansThenAllLengthsThenEach) {
  std::vector<std::string> order;
  for (const Cell& cell : Summarise(SmallRun()).cells) {
    order.push_back(cell.plan + (cell.length ? std::to_string(*cell.length) : "all") + cell.metric);
  }
  const std::vector<std::string> expected = {"fullallright",  "fullallnll",  "full1024right", "full1024nll",
                                             "full2048right", "full2048nll", "duoallright",   "duoallnll",
                                             "duo1024right",  "duo1024nll",  "duo2048right",  "duo2048nll"};
  EXPECT_EQ(order, expected);
}

TEST(Summary, ComparesTheCasesThatBothPlansHave) {
  const Summary summary = Summarise(SmallRun());
  ASSERT_EQ(summary.comparisons.size(), 6u);
  const Comparison& all = summary.comparisons[0];
  EXPECT_EQ(all.plan, "duo");
  EXPECT_EQ(all.reference, "full");
  EXPECT_EQ(all.length, std::nullopt);
  EXPECT_EQ(all.paired.num_pairs, 2);  // case 1 of either length
  EXPECT_EQ(all.paired.num_higher, 1);
  EXPECT_EQ(all.paired.num_lower, 1);
  EXPECT_DOUBLE_EQ(all.paired.mean_difference, 0.0);
  EXPECT_EQ(summary.comparisons[1].metric, "nll");
  EXPECT_DOUBLE_EQ(summary.comparisons[1].paired.mean_difference, 0.5);
  EXPECT_EQ(summary.comparisons[4].length, 2048);
  EXPECT_DOUBLE_EQ(summary.comparisons[4].paired.mean_difference, -1.0);
}

TEST(Summary, LeavesOutWhatIsNoNumberAndTakesTheLaterOfTwoLines) {
  RunData run = SmallRun();
  run.results[0].scores["nll"] = std::numeric_limits<double>::quiet_NaN();
  run.results.push_back(Case("full", 1024, 1, {{"right", 1}}));
  const Summary summary = Summarise(run);
  EXPECT_EQ(FindCell(summary, "full", 1024, "nll"), nullptr);
  EXPECT_DOUBLE_EQ(FindCell(summary, "full", 1024, "right")->mean, 1.0);
  EXPECT_EQ(FindCell(summary, "full", 1024, "right")->count, 2);
}

TEST(Summary, ARateWithPartlyRightAnswersHasTheMeansInterval) {
  RunData run = SmallRun();
  run.results[0].scores["right"] = 0.5;
  const double values[] = {0.5, 0.0};
  EXPECT_DOUBLE_EQ(FindCell(Summarise(run), "full", 1024, "right")->interval.high, BootstrapMeanInterval(values).high);
}

// One long text: its blocks are what there is to compare.
TEST(Summary, ASingleTextIsComparedBlockByBlock) {
  RunData run = SmallRun();
  run.results = {Case("full", 1024, 0, {{"nll", 2.0}}), Case("duo", 1024, 0, {{"nll", 2.25}})};
  run.results[0].curves["nll"] = {{1, 1.0}, {2, 2.0}, {3, 3.0}};
  run.results[1].curves["nll"] = {{1, 1.5}, {2, 2.0}, {3, 3.25}};
  const Summary summary = Summarise(run);
  EXPECT_DOUBLE_EQ(FindCell(summary, "duo", 1024, "nll")->mean, 2.25);
  const double blocks[] = {1.5, 2.0, 3.25};
  EXPECT_DOUBLE_EQ(FindCell(summary, "duo", 1024, "nll")->interval.high, BootstrapMeanInterval(blocks).high);
  EXPECT_EQ(summary.comparisons[0].paired.num_pairs, 3);
  EXPECT_DOUBLE_EQ(summary.comparisons[0].paired.mean_difference, 0.25);
  // Several texts are compared text by text.
  run.results.push_back(Case("full", 1024, 1, {{"nll", 2.0}}));
  run.results.push_back(Case("duo", 1024, 1, {{"nll", 2.0}}));
  EXPECT_EQ(Summarise(run).comparisons[0].paired.num_pairs, 2);
}

TEST(Summary, OfNothingIsEmpty) {
  RunData run = SmallRun();
  run.results.clear();
  EXPECT_TRUE(Summarise(run).cells.empty());
  EXPECT_TRUE(Summarise(run).comparisons.empty());
  EXPECT_EQ(ToJson(Summarise(run)).dump(), R"({"cells":[],"comparisons":[]})");
}

TEST(Summary, AsJson) {
  const Json json = ToJson(Summarise(SmallRun()));
  EXPECT_TRUE(json["cells"][0]["length"].is_null());
  EXPECT_EQ(json["cells"][0]["count"], 4);
  EXPECT_EQ(json["cells"][2]["length"], 1024);
  EXPECT_EQ(json["comparisons"][0]["reference"], "full");
  EXPECT_EQ(json["comparisons"][0]["num_pairs"], 2);
}

}  // namespace
}  // namespace headwise
