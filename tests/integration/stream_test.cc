// Endless streams: with every head streaming and positions counted in the cache, a model runs far beyond its trained
// length at constant memory, and what it predicts depends on what it reads, not on how far along it is.
// [streaming-llm §3.2]
#include <gtest/gtest.h>

#include <random>

#include "base/process_memory.h"
#include "support/engines.h"
#include "support/golden.h"
#include "support/tolerance.h"

namespace headwise {
namespace {

constexpr int64_t kSink = 4;
constexpr int64_t kRecent = 60;
// More than the two layers can look back through: windows add up over layers.
constexpr size_t kContext = 200;

std::shared_ptr<const HeadPlan> StreamPlan(const Engine& engine) {
  auto plan = std::make_shared<HeadPlan>(HeadPlan::Dense(engine.shape()));
  for (HeadRule& rule : plan->rules) {
    rule = HeadRule::Stream(kSink, kRecent);
    rule.positions = Positions::kCache;
  }
  return plan;
}

std::vector<int32_t> RandomIds(size_t num, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::vector<int32_t> ids(num);
  for (int32_t& id : ids) id = static_cast<int32_t>(rng() % 384);
  return ids;
}

// Logits of the last 50 tokens of: the same beginning, `filler` other tokens, the same end.
std::vector<float> LogitsAfter(Engine& engine, size_t filler) {
  std::vector<int32_t> ids = RandomIds(kSink, 1);
  const std::vector<int32_t> middle = RandomIds(filler, 2);
  const std::vector<int32_t> end = RandomIds(kContext + 50, 3);
  ids.insert(ids.end(), middle.begin(), middle.end());
  ids.insert(ids.end(), end.begin(), end.end());
  std::vector<float> rows;
  std::vector<int64_t> positions;
  for (size_t i = 0; i < 50; ++i) positions.push_back(static_cast<int64_t>(ids.size() - 50 + i));
  ForcedRun run;
  run.plan = StreamPlan(engine);
  run.ids = ids;
  run.positions = positions;
  run.on_row = [&](int64_t, std::span<const float> logits, std::span<const float>) {
    rows.insert(rows.end(), logits.begin(), logits.end());
    return true;
  };
  const Status status = engine.RunForced(run);
  EXPECT_TRUE(status.ok()) << status.message();
  return rows;
}

TEST(Stream, PredictionsDoNotDependOnThePosition) {
  for (const char* model : {"llama-gqa", "mpt"}) {
    const auto engine = MustCreate(ExactOptions(SourcePath(std::string("tests/golden/tiny/") + model), {"cpu"}));
    ASSERT_NE(engine, nullptr);
    EXPECT_LE(MaxDifference(LogitsAfter(*engine, 100), LogitsAfter(*engine, 200000)), 1e-3) << model;
  }
}

TEST(Stream, GeneratesAtConstantMemory) {
  const auto engine = MustCreate(ExactOptions(SourcePath("tests/golden/tiny/llama-gqa"), {"cpu"}));
  ASSERT_NE(engine, nullptr);
  Request request;
  request.prompt = RandomIds(10, 5);
  request.plan = StreamPlan(*engine);
  request.max_new_tokens = 60000;
  request.eos = EosMode::kIgnore;
  request.output = Request::Output::kStreamOnly;
  int64_t num_tokens = 0;
  int64_t early_bytes = 0;
  int64_t early_kv_bytes = 0;
  request.on_token = [&](int32_t) {
    if (++num_tokens == 10000) {
      early_bytes = ReadProcessMemory().resident_bytes;
      early_kv_bytes = engine->kv_bytes();
    }
    return true;
  };
  const auto result = engine->Run(std::move(request));
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(result->metrics.new_tokens, 60000);
  // Sanitizers keep freed memory back for a while.
  if (!kIsSanitized) {
    EXPECT_LE(ReadProcessMemory().resident_bytes - early_bytes, 2 << 20);
  }
  EXPECT_GT(early_kv_bytes, 0);
  EXPECT_LE(result->metrics.kv_peak_bytes, early_kv_bytes * 2);
}

}  // namespace
}  // namespace headwise
