#include "planner/budget.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "planner/gates.h"

namespace headwise {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kPageBytes = 2 * 32 * 64 * 2;  // K and V of 32 tokens, head dim 64, f16

ModelShape Shape() {
  return {.architecture = "llama", .num_layers = 8, .num_q_heads = 8, .num_kv_heads = 4, .head_dim = 64};
}

PlannerInput Input(std::map<std::string, std::string> options) {
  PlannerInput input;
  input.shape = Shape();
  input.options = NamedOptions(std::move(options));
  return input;
}

TEST(Budget, BytesByHand) {
  // 1000 tokens are 32 pages; sink 16 and the last 128 (from 872, inside page 27) are 1 + 5.
  EXPECT_EQ(RuleBytesAt(HeadRule::Full(), Shape(), 1000, kNoLimit), 32 * kPageBytes);
  EXPECT_EQ(RuleBytesAt(HeadRule::Stream(16, 128), Shape(), 1000, kNoLimit), 6 * kPageBytes);
  EXPECT_EQ(PlanBytesAt(HeadPlan::Dense(Shape()), 1000, {}), 32 * 32 * kPageBytes);
  // The model's own window also bounds full heads.
  EXPECT_EQ(RuleBytesAt(HeadRule::Full(), Shape(), 1000, 100), 4 * kPageBytes);
  HeadRule folding = HeadRule::Stream(16, 128);
  folding.compensate = true;
  EXPECT_GT(RuleBytesAt(folding, Shape(), 1000, kNoLimit), 6 * kPageBytes);
}

TEST(Budget, EveryMethodWithoutAModelMeetsIt) {
  for (const char* method : {"streaming", "uniform", "random"}) {
    for (const char* ratio : {"0.05", "0.125", "0.25", "0.5", "0.93"}) {
      for (const char* at : {"8192", "32768"}) {
        const auto plan = MakePlan(method, Input({{"kv-ratio", ratio}, {"at", at}}));
        ASSERT_TRUE(plan.ok()) << plan.status().message();
        const int64_t tokens = std::stoll(at);
        const auto asked = std::stod(ratio) * static_cast<double>(PlanBytesAt(HeadPlan::Dense(Shape()), tokens, {}));
        const auto bytes = static_cast<double>(PlanBytesAt(*plan, tokens, {}));
        EXPECT_LE(bytes, asked) << method << " " << ratio << " at " << at;
        EXPECT_GE(bytes, 0.99 * asked) << method << " " << ratio << " at " << at;
      }
    }
  }
}

TEST(Budget, GatesMeetItByFullHeadsThenWindows) {
  std::vector<double> gates(32);
  for (size_t i = 0; i < gates.size(); ++i) gates[i] = static_cast<double>(i * 7 % 32) / 32;
  const auto plan = PlanFromGates(Input({{"kv-ratio", "0.25"}, {"at", "8192"}}), gates, HeadRule::Stream(16, 128), 0.5);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const int64_t dense = PlanBytesAt(HeadPlan::Dense(Shape()), 8192, {});
  EXPECT_LE(PlanBytesAt(*plan, 8192, {}), dense / 4);
  EXPECT_GE(PlanBytesAt(*plan, 8192, {}), dense / 4 * 99 / 100);
  // One more full head would not fit: 256 pages each, 6 for a stream of 16 + 128.
  int64_t num_full = 0;
  for (size_t i = 0; i < gates.size(); ++i) {
    if (plan->rules[i].kind != HeadRule::Kind::kFull) continue;
    ++num_full;
    EXPECT_GT(gates[i], 0.7);
  }
  EXPECT_EQ(num_full, (32 * 256 / 4 - 32 * 5) / (256 - 5));
}

TEST(Budget, BytesAtIsTheSameBudget) {
  const int64_t bytes = PlanBytesAt(HeadPlan::Dense(Shape()), 8192, {}) / 4;
  const auto by_bytes = MakePlan("streaming", Input({{"kv-bytes-at", fmt::format("{}:8192", bytes)}}));
  const auto by_ratio = MakePlan("streaming", Input({{"kv-ratio", "0.25"}, {"at", "8192"}}));
  ASSERT_TRUE(by_bytes.ok() && by_ratio.ok());
  EXPECT_EQ(by_bytes->rules, by_ratio->rules);
}

TEST(Budget, OneThatNothingMeetsSaysWhatItNeeds) {
  const auto plan = MakePlan("streaming", Input({{"kv-bytes-at", "1000:8192"}}));
  ASSERT_FALSE(plan.ok());
  // A window of one token and four sinks: two pages a head.
  EXPECT_THAT(std::string(plan.status().message()), HasSubstr(fmt::format("{} bytes", 32 * 2 * kPageBytes)));
}

TEST(Budget, WrongOptions) {
  const auto message = [](std::map<std::string, std::string> options) {
    const auto plan = MakePlan("random", Input(std::move(options)));
    return plan.ok() ? std::string("no error") : std::string(plan.status().message());
  };
  EXPECT_THAT(message({{"kv-ratio", "0.5"}}), HasSubstr("--at"));
  EXPECT_THAT(message({{"kv-ratio", "1.5"}, {"at", "100"}}), HasSubstr("--kv-ratio"));
  EXPECT_THAT(message({{"kv-bytes-at", "12"}}), HasSubstr("BYTES:TOKENS"));
  EXPECT_THAT(message({{"kv-ratio", "0.5"}, {"at", "100"}, {"kv-bytes-at", "1:2"}}), HasSubstr("one budget"));
  EXPECT_THAT(message({{"kv-ratio", "0.5"}, {"at", "4096"}, {"sparsity", "0.5"}}), HasSubstr("--sparsity"));
  EXPECT_THAT(message({{"sparsity", "1.5"}}), HasSubstr("--sparsity"));
}

TEST(Gates, TiesStreamFromTheFirst) {
  EXPECT_EQ(HeadsByGate({0.5, 0.9, 0.5, 0.5}), (std::vector<size_t>{1, 3, 2, 0}));
}

TEST(Gates, ThresholdAndSparsity) {
  PlannerInput input = Input({{"threshold", "0.5"}});
  input.shape.num_layers = 1;
  const HeadRule stream = HeadRule::Stream(4, 8);
  auto plan = PlanFromGates(input, {0.1, 0.6, 0.5, 0.4}, stream, 0.5);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->rules, (std::vector<HeadRule>{stream, HeadRule::Full(), HeadRule::Full(), stream}));
  input.options = NamedOptions(std::map<std::string, std::string>{{"sparsity", "0.75"}});
  plan = PlanFromGates(input, {0.1, 0.6, 0.5, 0.4}, stream, 0.5);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->rules, (std::vector<HeadRule>{stream, HeadRule::Full(), stream, stream}));
  EXPECT_THAT(plan->notes.back(), HasSubstr("margin 0.1"));
}

}  // namespace
}  // namespace headwise
