#include "loadgen/load_summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "base/file.h"
#include "loadgen/load_json.h"

namespace headwise {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::Pair;
using testing::Pointwise;

// Requests as a clock would have seen them.
LoadRecord Record(int64_t request, double start, std::vector<double> pieces, double end) {
  LoadRecord record = {.request = request, .arrival = start, .start = start, .connected = start, .end = end};
  record.output_tokens = static_cast<int64_t>(pieces.size());
  record.wanted_tokens = record.output_tokens;
  record.pieces = std::move(pieces);
  record.status = 200;
  return record;
}

LoadRecord Failed(int64_t request, double start, double end, std::string kind) {
  LoadRecord record = Record(request, start, {}, end);
  record.failure = std::move(kind);
  record.message = "as it was";
  return record;
}

// 0, 1, ..., 100: every quantile is its own share.
TEST(Quantile, IsLinearBetweenNeighbours) {
  std::vector<double> values(101);
  std::iota(values.begin(), values.end(), 0.0);
  for (const double share : {0.0, 0.5, 0.9, 0.95, 0.99, 1.0, 0.123}) {
    EXPECT_NEAR(Quantile(values, share), 100 * share, 1e-9);
  }
  EXPECT_DOUBLE_EQ(Quantile(std::vector<double>{7}, 0.99), 7);
  EXPECT_DOUBLE_EQ(Quantile(std::vector<double>{1, 3}, 0.25), 1.5);
  EXPECT_DOUBLE_EQ(Quantile(std::vector<double>{1, 2, 10}, 0.75), 6);
}

// 1 to n: mean (n + 1) / 2, variance (n^2 - 1) / 12.
TEST(Distribution, HasItsClosedForm) {
  constexpr int kCount = 1000;
  std::vector<double> values;
  for (int i = kCount; i >= 1; --i) values.push_back(i);
  const Distribution distribution = DistributionOf(values);
  EXPECT_EQ(distribution.count, kCount);
  EXPECT_NEAR(distribution.mean, (kCount + 1) / 2.0, 1e-9);
  EXPECT_NEAR(distribution.median, (kCount + 1) / 2.0, 1e-9);
  EXPECT_NEAR(distribution.std, std::sqrt((kCount * kCount - 1) / 12.0), 1e-9);
  EXPECT_EQ(distribution.min, 1);
  EXPECT_EQ(distribution.max, kCount);
  EXPECT_NEAR(distribution.p50, 1 + 0.50 * (kCount - 1), 1e-9);
  EXPECT_NEAR(distribution.p90, 1 + 0.90 * (kCount - 1), 1e-9);
  EXPECT_NEAR(distribution.p95, 1 + 0.95 * (kCount - 1), 1e-9);
  EXPECT_NEAR(distribution.p99, 1 + 0.99 * (kCount - 1), 1e-9);
  EXPECT_EQ(DistributionOf({}).count, 0);
  EXPECT_EQ(DistributionOf({}).p99, 0);
}

TEST(Times, AreThoseOfRequestsThatCameWhole) {
  std::vector<LoadRecord> records = {Record(0, 1.0, {1.5, 1.6, 2.0}, 2.1), Record(1, 2.0, {2.25}, 2.5),
                                     Failed(2, 0.5, 9.0, "reset")};
  records[0].output_tokens = 5;  // two pieces had two tokens
  records[0].connected = 1.125;
  const LoadTimes times = TimesOf(records);
  const auto near = [](const std::vector<double>& expected) { return Pointwise(testing::DoubleNear(1e-12), expected); };
  EXPECT_THAT(times.first, near({0.5, 0.25}));
  EXPECT_THAT(times.per_token, near({0.5 / 4}));  // one token has no time after the first
  EXPECT_THAT(times.gaps, near({0.1, 0.4}));
  EXPECT_THAT(times.longest_gap, near({0.4}));
  EXPECT_THAT(times.whole, near({1.1, 0.5}));
  EXPECT_THAT(times.connect, near({0.125, 0}));
}

TEST(Summary, CountsTokensAndFailures) {
  std::vector<LoadRecord> records = {Record(0, 1.0, {1.5, 2.0}, 2.0), Record(1, 1.0, {3.0, 4.0}, 5.0),
                                     Failed(2, 2.0, 2.5, "http_500"), Failed(3, 2.0, 3.0, "http_500"),
                                     Failed(4, 2.0, 3.0, "reset")};
  records[0].prompt_tokens = 100;
  records[0].cached_tokens = 64;
  records[0].is_counted = true;
  records[1].prompt_tokens = 60;
  records[1].wanted_tokens = 3;
  records[2].prompt_tokens = 1000;
  records[4].arrival = 1.25;
  const LoadSummary summary = Summarise(records);
  EXPECT_EQ(summary.completed, 2);
  EXPECT_EQ(summary.failed, 3);
  EXPECT_THAT(summary.failures, ElementsAre(Pair("http_500", 2), Pair("reset", 1)));
  EXPECT_DOUBLE_EQ(summary.duration, 4);
  EXPECT_EQ(summary.input_tokens, 160);
  EXPECT_EQ(summary.cached_tokens, 64);
  EXPECT_EQ(summary.output_tokens, 4);
  EXPECT_EQ(summary.num_counted, 1);
  EXPECT_EQ(summary.num_short, 1);
  EXPECT_DOUBLE_EQ(summary.request_throughput, 0.5);
  EXPECT_DOUBLE_EQ(summary.input_throughput, 40);
  EXPECT_DOUBLE_EQ(summary.output_throughput, 1);
  EXPECT_DOUBLE_EQ(summary.total_throughput, 41);
  EXPECT_EQ(summary.peak_concurrency, 4);  // one ended as three began
  EXPECT_DOUBLE_EQ(summary.delay.max, 0.75);
}

TEST(Summary, OfNothingIsNothing) {
  const LoadSummary summary = Summarise({});
  EXPECT_EQ(summary.completed, 0);
  EXPECT_EQ(summary.request_throughput, 0);
  EXPECT_EQ(LoadSummaryJson(summary)["p99_ttft_ms"], 0);
}

TEST(LoadJson, HasTheFiguresAndEveryRequest) {
  std::vector<LoadRecord> records = {Failed(2, 2.0, 2.5, "timeout"), Record(0, 1.0, {1.5, 1.75, 2.5}, 2.5)};
  const Json json = LoadJson({{"base_url", "http://a"}}, records, LoadState::kStopped);
  EXPECT_EQ(json["state"], "stopped");
  EXPECT_EQ(json["config"]["base_url"], "http://a");
  EXPECT_EQ(json["completed"], 1);
  EXPECT_EQ(json["failures"], Json({{"timeout", 1}}));
  EXPECT_EQ(json["mean_ttft_ms"], 500);
  EXPECT_EQ(json["median_itl_ms"], 500);
  EXPECT_EQ(json["max_longest_itl_ms"], 750);
  EXPECT_EQ(json["token_counts"], "pieces");
  ASSERT_EQ(json["requests"].size(), 2u);
  EXPECT_EQ(json["requests"][0]["request"], 0);
  EXPECT_EQ(json["requests"][0]["itl_ms"], Json({250, 750}));
  EXPECT_FALSE(json["requests"][0].contains("failure"));
  EXPECT_EQ(json["requests"][1]["failure"], "timeout");
  EXPECT_FALSE(json["requests"][1].contains("ttft_ms"));
}

TEST(LoadResultFile, IsThereFromTheBeginningAndWholeAtTheEnd) {
  const std::string path = testing::TempDir() + "/headwise_load_" + std::to_string(::getpid()) + ".json";
  const std::vector<LoadRecord> records = {Record(0, 1.0, {1.5}, 2.5)};
  {
    const auto file = LoadResultFile::Create(path, {{"model", "m"}});
    ASSERT_TRUE(file.ok()) << file.status().message();
    const auto begun = ReadJsonFile(path);
    ASSERT_TRUE(begun.ok());
    EXPECT_EQ((*begun)["state"], "running");
    EXPECT_EQ((*begun)["requests"], Json::array());
    (*file)->Offer(records);  // too early: nothing comes of it
    ASSERT_TRUE((*file)->Finish(records, LoadState::kFinished).ok());
  }
  const auto whole = ReadJsonFile(path);
  ASSERT_TRUE(whole.ok());
  EXPECT_EQ((*whole)["state"], "finished");
  EXPECT_EQ((*whole)["requests"].size(), 1u);
  std::filesystem::remove(path);
  EXPECT_FALSE(LoadResultFile::Create("/nowhere/at/all.json", {}).ok());
}

}  // namespace
}  // namespace headwise
