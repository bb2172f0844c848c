#include "planner/budget.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/json.h"
#include "planner/gates.h"
#include "support/planner_input.h"

namespace headwise {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kPageBytes = 2 * 32 * 64 * 2;  // K and V of 32 tokens, head dim 64, f16

TEST(Budget, BytesByHand) {
  // 1000 tokens are 32 pages; sink 16 has one, 128 tokens touch up to 5.
  EXPECT_EQ(RuleBytesAt(HeadRule::Full(), PlannerShape(), 1000, kNoLimit), 32 * kPageBytes);
  EXPECT_EQ(RuleBytesAt(HeadRule::Stream(16, 128), PlannerShape(), 1000, kNoLimit), 6 * kPageBytes);
  EXPECT_EQ(PlanBytesAt(HeadPlan::Dense(PlannerShape()), 1000, {}), 32 * 32 * kPageBytes);
  // The model's own window also bounds full heads.
  EXPECT_EQ(RuleBytesAt(HeadRule::Full(), PlannerShape(), 1000, 100), 5 * kPageBytes);
  HeadRule folding = HeadRule::Stream(16, 128);
  folding.compensate = true;
  EXPECT_GT(RuleBytesAt(folding, PlannerShape(), 1000, kNoLimit), 6 * kPageBytes);
}

TEST(Budget, EveryMethodWithoutAModelMeetsIt) {
  for (const char* method : {"streaming", "uniform", "random", "h2o", "tova", "snapkv", "pyramidkv", "adakv", "knorm",
                             "keydiff", "expected"}) {
    for (const char* ratio : {"0.05", "0.125", "0.25", "0.5", "0.93"}) {
      for (const char* at : {"8192", "32768"}) {
        const auto plan = MakePlan(method, Input({{"kv-ratio", ratio}, {"at", at}}));
        ASSERT_TRUE(plan.ok()) << plan.status().message();
        const int64_t tokens = std::stoll(at);
        const auto asked =
            std::stod(ratio) * static_cast<double>(PlanBytesAt(HeadPlan::Dense(PlannerShape()), tokens, {}));
        const auto bytes = static_cast<double>(PlanBytesAt(*plan, tokens, {}));
        EXPECT_LE(bytes, asked) << method << " " << ratio << " at " << at;
        EXPECT_GE(bytes, 0.99 * asked) << method << " " << ratio << " at " << at;
      }
    }
  }
}

// Of what is read; kept is more than the dense plan has.
TEST(Budget, QuestMeetsItByWhatAQueryReads) {
  for (const char* ratio : {"0.32", "0.4", "0.5", "0.93", "1"}) {
    const auto plan = MakePlan("quest", Input({{"kv-ratio", ratio}, {"at", "8192"}}));
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const auto dense = static_cast<double>(PlanBytesAt(HeadPlan::Dense(PlannerShape()), 8192, {}));
    const auto read = static_cast<double>(PlanReadBytesAt(*plan, 8192, {}));
    EXPECT_LE(read, std::stod(ratio) * dense);
    EXPECT_GE(read, 0.99 * std::stod(ratio) * dense);
    EXPECT_GT(static_cast<double>(PlanBytesAt(*plan, 8192, {})), dense);
    for (int64_t layer_idx = 0; layer_idx < PlannerShape().num_layers; ++layer_idx) {
      EXPECT_EQ(plan->At(layer_idx, 0).ReadsBlocks(), layer_idx >= 2);
    }
  }
  for (const char* share : {"0", "0.5", "1"}) {
    for (const char* ratio : {"0.05", "0.3", "1"}) {
      const auto plan = MakePlan("infllm", Input({{"kv-ratio", ratio}, {"at", "8192"}, {"recent-share", share}}));
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      const auto dense = static_cast<double>(PlanBytesAt(HeadPlan::Dense(PlannerShape()), 8192, {}));
      const auto read = static_cast<double>(PlanReadBytesAt(*plan, 8192, {}));
      EXPECT_LE(read, std::stod(ratio) * dense);
      EXPECT_GE(read, std::stod(ratio) > 0.1 ? 0.97 * std::stod(ratio) * dense : 0.6 * std::stod(ratio) * dense);
      EXPECT_GT(static_cast<double>(PlanBytesAt(*plan, 8192, {})), dense);
    }
  }
  EXPECT_THAT(MakePlan("infllm", Input({{"kv-ratio", "0.001"}, {"at", "8192"}})).status().message(),
              HasSubstr("reads at least"));
  const auto all = MakePlan("quest", Input({{"dense-layers", "0"}, {"block", "32"}, {"budget", "500"}}));
  ASSERT_TRUE(all.ok()) << all.status().message();
  for (const HeadRule& rule : all->rules) EXPECT_TRUE(rule.ReadsBlocks() && rule.select.block == 32);
  EXPECT_THAT(MakePlan("quest", Input({{"kv-ratio", "0.0001"}, {"at", "8192"}})).status().message(),
              HasSubstr("reads at least"));
  EXPECT_THAT(MakePlan("quest", Input({{"block", "24"}})).status().message(), HasSubstr("multiple of 16"));
}

// With nothing to bound a budget is met by what there is, or refused.
TEST(Budget, WithoutAnyBoundedHeadIsNotIgnored) {
  for (const char* ratio : {"0.25", "0.999"}) {
    EXPECT_THAT(
        MakePlan("quest", Input({{"dense-layers", "8"}, {"kv-ratio", ratio}, {"at", "8192"}})).status().message(),
        HasSubstr("reads at least"));
  }
  EXPECT_TRUE(MakePlan("quest", Input({{"dense-layers", "8"}, {"kv-ratio", "1"}, {"at", "8192"}})).ok());

  HeadPlan plan = HeadPlan::Dense(PlannerShape());
  KvBudget budget{.bytes = PlanBytesAt(plan, 8192, {}), .at_tokens = 8192, .windows = {}};
  const WindowRule rule = [](int64_t recent) { return HeadRule::Stream(0, recent); };
  EXPECT_TRUE(FitWindows(plan, {}, rule, budget).ok());
  --budget.bytes;
  EXPECT_THAT(FitWindows(plan, {}, rule, budget).message(), HasSubstr("needs at least"));

  // Every layer's heads are of one KV head: some of the query heads that razor protects are in each.
  PlannerInput input = Input({{"kv-ratio", "0.25"}, {"at", "8192"}});
  input.shape = {.architecture = "llama", .num_layers = 8, .num_q_heads = 71, .num_kv_heads = 1, .head_dim = 64};
  HeadPlan razor = HeadPlan::Dense(input.shape);
  razor.method = "razor";
  Json scores = Json::array();
  for (int i = 0; i < 8 * 71; ++i) scores.push_back((i * 7919 % 1009) / 1009.0);
  razor.report_json = Json{{"echo_by_query_head", scores}, {"induction_by_query_head", scores}}.dump();
  const auto refitted = RefitPlan(razor, input, "razor.json");
  ASSERT_TRUE(refitted.ok()) << refitted.status().message();
  EXPECT_LE(PlanBytesAt(*refitted, 8192, {}) * 4, PlanBytesAt(HeadPlan::Dense(input.shape), 8192, {}));
}

// A bounded head's folded tokens are bytes too: of a text that its window holds a full one takes fewer.
TEST(Budget, OfAllIsEveryHeadFull) {
  for (const char* at : {"33", "100", "330", "8192"}) {
    const auto plan = MakePlan("random", Input({{"compensate", "true"}, {"kv-ratio", "1"}, {"at", at}}));
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_EQ(plan->rules, HeadPlan::Dense(PlannerShape()).rules) << at;
  }
}

// In place of a window no more bytes, and within two pages as many: its ring has a page or two that are not full.
TEST(Budget, SelectingHeadsOfAnotherPlanTakeNoMoreBytes) {
  HeadPlan base = HeadPlan::Dense(PlannerShape());
  base.method = "manual";
  for (size_t i = 2; i < base.rules.size(); ++i) base.rules[i] = HeadRule::Stream(16, 100 + static_cast<int64_t>(i));
  base.rules[3].compensate = true;
  const std::string path = testing::TempDir() + "/headwise_base_plan.json";
  ASSERT_TRUE(WriteHeadPlan(base, path).ok());
  for (const char* method : {"h2o", "tova", "snapkv", "adakv", "knorm", "keydiff", "expected"}) {
    const auto plan = MakePlan(method, Input({{"base", path}}));
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    for (size_t i = 0; i < base.rules.size(); ++i) {
      EXPECT_EQ(plan->rules[i].SelectsByScore(), i >= 2);
      EXPECT_EQ(plan->rules[i].compensate, i == 3 && std::string_view(method) != "adakv");
      const int64_t before = RuleBytesAt(base.rules[i], PlannerShape(), 32768, kNoLimit);
      const int64_t after = RuleBytesAt(plan->rules[i], PlannerShape(), 32768, kNoLimit);
      EXPECT_LE(after, before);
      EXPECT_GE(after, before - 2 * kPageBytes);
    }
    EXPECT_THAT(MakePlan(method, Input({{"base", path}, {"budget", "9"}})).status().message(), HasSubstr("--budget"));
  }
}

// Beside the observed tokens the last layer has a twentieth of the mean, the first 39 twentieths, the others a line.
TEST(Budget, APyramidFallsFromLayerToLayer) {
  const auto budgets = [](const HeadPlan& plan) {
    std::vector<int64_t> found;
    for (int64_t layer_idx = 0; layer_idx < plan.shape.num_layers; ++layer_idx) {
      found.push_back(plan.At(layer_idx, 0).recent);
      EXPECT_EQ(plan.At(layer_idx, 0), plan.At(layer_idx, plan.shape.num_kv_heads - 1));
    }
    return found;
  };
  const auto plan = MakePlan("pyramidkv", Input({{"budget", "432"}}));
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const std::vector<int64_t> found = budgets(*plan);
  EXPECT_EQ(found.front(), 32 + 780);
  EXPECT_EQ(found.back(), 32 + 20);
  const auto layers = static_cast<double>(found.size());
  EXPECT_NEAR(std::accumulate(found.begin(), found.end(), 0.0) / layers, 432, 1);
  for (size_t i = 1; i < found.size(); ++i) EXPECT_NEAR(found[i - 1] - found[i], 760 / (layers - 1), 1);
  const auto level = MakePlan("pyramidkv", Input({{"budget", "432"}, {"steepness", "1"}}));
  ASSERT_TRUE(level.ok()) << level.status().message();
  EXPECT_EQ(budgets(*level), std::vector<int64_t>(found.size(), 432));
  EXPECT_THAT(MakePlan("pyramidkv", Input({{"steepness", "0.5"}})).status().message(), HasSubstr("steepness"));
  EXPECT_THAT(MakePlan("pyramidkv", Input({{"kv-ratio", "0.00001"}, {"at", "8192"}})).status().message(),
              HasSubstr("needs at least"));
}

TEST(Budget, GatesMeetItByFullHeadsThenWindows) {
  std::vector<double> gates(32);
  for (size_t i = 0; i < gates.size(); ++i) gates[i] = static_cast<double>(i * 7 % 32) / 32;
  const auto plan = PlanFromGates(Input({{"kv-ratio", "0.25"}, {"at", "8192"}}), gates, HeadRule::Stream(16, 128), 0.5);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const int64_t dense = PlanBytesAt(HeadPlan::Dense(PlannerShape()), 8192, {});
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

// 8 layers of 4 heads, three with a window of 512 tokens and then one without.
PlannerInput WindowedInput(std::map<std::string, std::string> options) {
  PlannerInput input = Input(std::move(options));
  for (int64_t layer_idx = 0; layer_idx < input.shape.num_layers; ++layer_idx) {
    input.windows.tokens.push_back(layer_idx % 4 == 3 ? kNoLimit : 512);
  }
  return input;
}

// Never above, and short of it by less than a page of one head, or of so many as are widened together.
void ExpectMeets(const HeadPlan& plan, const PlannerInput& input, double ratio, int64_t tokens, int64_t num_heads = 1) {
  const int64_t dense = PlanBytesAt(HeadPlan::Dense(PlannerShape()), tokens, input.windows);
  const auto asked = static_cast<int64_t>(std::floor(ratio * static_cast<double>(dense)));
  const int64_t bytes = PlanBytesAt(plan, tokens, input.windows);
  EXPECT_LE(bytes, asked);
  EXPECT_GT(bytes, asked - num_heads * kPageBytes);
}

TEST(LayersThatDiffer, EveryMethodMeetsABudgetOfTheirRealBytes) {
  const PlannerInput plain = WindowedInput({});
  // 256 pages of 32 tokens, of which a window of 512 touches up to 17.
  ASSERT_EQ(PlanBytesAt(HeadPlan::Dense(PlannerShape()), 8192, plain.windows),
            PlannerShape().num_kv_heads * (PlannerShape().num_layers / 4) * (256 + 3 * 17) * kPageBytes);
  std::vector<double> gates(plain.shape.num_layers * plain.shape.num_kv_heads);
  for (size_t i = 0; i < gates.size(); ++i) gates[i] = static_cast<double>(i * 7 % gates.size()) / 64;
  for (const char* ratio : {"0.05", "0.125", "0.25", "0.5", "0.93"}) {
    const PlannerInput input = WindowedInput({{"kv-ratio", ratio}, {"at", "8192"}});
    for (const char* method : {"streaming", "uniform", "random"}) {
      SCOPED_TRACE(fmt::format("{} {}", method, ratio));
      const auto plan = MakePlan(method, input);
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      ExpectMeets(*plan, input, std::stod(ratio), 8192);
    }
    SCOPED_TRACE(ratio);
    const auto by_gates = PlanFromGates(input, gates, HeadRule::Stream(16, 128), 0.5);
    ASSERT_TRUE(by_gates.ok()) << by_gates.status().message();
    ExpectMeets(*by_gates, input, std::stod(ratio), 8192);
  }
}

TEST(LayersThatDiffer, ZigzagKeepsAsManyLayersFullAsTheirBytesAllow) {
  HeadPlan earlier = HeadPlan::Dense(PlannerShape());
  earlier.method = "zigzag";
  for (int64_t layer_idx = 0; layer_idx < PlannerShape().num_layers; ++layer_idx) {
    // Windowed layers first: what they cost is small.
    const double gate = layer_idx % 4 == 3 ? 0.2 : 0.8;
    earlier.scores.insert(earlier.scores.end(), static_cast<size_t>(PlannerShape().num_kv_heads), gate);
  }
  const PlannerInput input = WindowedInput({{"kv-ratio", "0.3"}, {"at", "8192"}});
  const auto plan = RefitPlan(earlier, input, "earlier");
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  ExpectMeets(*plan, input, 0.3, 8192);
  for (int64_t layer_idx = 0; layer_idx < PlannerShape().num_layers; ++layer_idx) {
    EXPECT_EQ(plan->At(layer_idx, 0).kind == HeadRule::Kind::kFull, layer_idx % 4 != 3) << layer_idx;
  }
}

TEST(LayersThatDiffer, MoaChoosesAndWidensByTheBytesOfEachLayer) {
  HeadPlan earlier = HeadPlan::Dense(PlannerShape());
  earlier.method = "moa";
  const auto num_heads = static_cast<size_t>(PlannerShape().num_layers * PlannerShape().num_kv_heads);
  // Losses of an eighth, a half and all of the text: all heads would rather read more.
  Json losses = Json::array();
  for (size_t head = 0; head < num_heads; ++head) {
    for (const double loss : {1.0 + 0.01 * static_cast<double>(head), 0.5, 0.0}) losses.push_back(loss);
  }
  earlier.report_json =
      Json{{"lengths", {8192}},
           {"influence", {{"rules", {{0, 0.125}, {0, 0.5}, {0, 1}}}, {"losses", Json::array({losses})}}}}
          .dump();
  for (const char* ratio : {"0.4", "0.7"}) {
    const PlannerInput input = WindowedInput({{"kv-ratio", ratio}, {"at", "8192"}});
    const auto plan = RefitPlan(earlier, input, "earlier");
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    // Heads of a layer under one rule stay under one.
    ExpectMeets(*plan, input, std::stod(ratio), 8192, PlannerShape().num_kv_heads);
  }
}

// Reports are part of a file, and may say anything.
TEST(Budget, ReportsThatSayNothingOfUseAreErrors) {
  const auto error = [](const char* method, const Json& report) {
    HeadPlan earlier = HeadPlan::Dense(PlannerShape());
    earlier.method = method;
    earlier.report_json = report.dump();
    return RefitPlan(earlier, WindowedInput({{"kv-ratio", "0.4"}, {"at", "8192"}}), "earlier").status().message();
  };
  const Json rules = {{0, 0.5}, {0, 1}};
  EXPECT_THAT(
      error("moa", {{"lengths", {1024}}, {"influence", {{"rules", Json::array()}, {"losses", {Json::array()}}}}}),
      HasSubstr("0 rules"));
  EXPECT_THAT(error("moa", {{"lengths", Json::array()}, {"influence", {{"rules", rules}, {"losses", Json::array()}}}}),
              HasSubstr("0 \"lengths\""));
  for (const double length : {-5.0, 0.0, 0.5, 1e300}) {
    const Json influence = {{"rules", rules}, {"losses", {Json::array()}}};
    EXPECT_THAT(error("moa", {{"lengths", {length}}, {"influence", influence}}), HasSubstr("whole numbers of tokens"));
    const std::vector<double> scopes(static_cast<size_t>(PlannerShape().num_layers * PlannerShape().num_q_heads),
                                     length);
    EXPECT_THAT(error("razor", {{"scope_by_query_head", scopes}}), HasSubstr("whole numbers of tokens"));
  }
}

// What the programme leaves goes to the heads of the most influence first, under every influence but the paper's own.
TEST(Budget, MoaSpendsTheRestByInfluence) {
  constexpr size_t kFarSighted = 13;  // layer 3, head 1
  HeadPlan earlier = HeadPlan::Dense(PlannerShape());
  earlier.method = "moa";
  earlier.parameters_json = R"({"influence": "integrated"})";
  Json losses = Json::array();
  for (size_t head = 0; head < earlier.rules.size(); ++head) {
    // The last eighth was never asked for.
    const double far = head == kFarSighted ? 5.0 : 0.001;
    for (const double loss : {far, 0.0, 0.0}) losses.push_back(loss);
  }
  earlier.report_json =
      Json{{"lengths", {8192}},
           {"influence", {{"rules", {{0, 0.125}, {0, 0.875}, {0, 1}}}, {"losses", Json::array({losses})}}}}
          .dump();
  const PlannerInput input = Input({{"kv-ratio", "0.2"}, {"at", "8192"}});
  const auto plan = RefitPlan(earlier, input, "earlier");
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->rules[kFarSighted], HeadRule::Full());
  const auto asked = 0.2 * static_cast<double>(PlanBytesAt(HeadPlan::Dense(PlannerShape()), 8192, {}));
  EXPECT_LE(static_cast<double>(PlanBytesAt(*plan, 8192, {})), asked);
  EXPECT_GE(static_cast<double>(PlanBytesAt(*plan, 8192, {})), 0.99 * asked);
}

TEST(Budget, BytesAtIsTheSameBudget) {
  const int64_t bytes = PlanBytesAt(HeadPlan::Dense(PlannerShape()), 8192, {}) / 4;
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
