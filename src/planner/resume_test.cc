// Long planners on the bundled model, interrupted and resumed: the plan must be that of an uninterrupted run.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <ostream>

#include "base/file.h"
#include "base/json.h"
#include "grad/grad_decoder.h"
#include "model/load_config.h"
#include "planner/planner.h"
#include "support/golden.h"

namespace headwise {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using Options = std::map<std::string, std::string>;

struct Method {
  const char* name;
  Options options;
};
void PrintTo(const Method& method, std::ostream* out) {
  *out << method.name;
}

PlannerInput InputFor(const Options& options) {
  PlannerInput input;
  input.model = BundledModel();
  input.shape = ReadModelConfig(input.model)->shape();
  input.options = NamedOptions(options);
  input.num_threads = 2;
  return input;
}

const Options kFewPasskeys = {{"steps", "6"},        {"passkeys", "2"},   {"passkey-words", "4"}, {"min-tokens", "300"},
                              {"max-tokens", "400"}, {"train-sink", "4"}, {"train-recent", "32"}, {"sparsity", "0.75"}};

class ResumeTest : public testing::TestWithParam<Method> {
 protected:
  void SetUp() override {
    // Tests run side by side: each has a folder of its own.
    const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
    std::string name = fmt::format("headwise_{}", test.name());
    std::ranges::replace(name, '/', '_');
    folder_ = std::filesystem::temp_directory_path() / name;
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    options_ = GetParam().options;
    if (GetParam().name == std::string_view("zigzag")) options_["from"] = WriteGates();
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // A plan whose scores rank layer 3 first, for the re-training to start from.
  std::string WriteGates() const {
    HeadPlan plan = HeadPlan::Dense(InputFor({}).shape);
    plan.scores.assign(plan.rules.size(), 0.1);
    for (size_t head = 12; head < 16; ++head) plan.scores[head] = 0.9;
    const std::string path = (folder_ / "gates.json").string();
    EXPECT_TRUE(WriteHeadPlan(plan, path).ok());
    return path;
  }

  std::filesystem::path folder_;
  Options options_;
};

TEST_P(ResumeTest, AnInterruptedRunResumedIsAnUninterruptedOne) {
  PlannerInput input = InputFor(options_);
  const auto whole = MakePlan(GetParam().name, input);
  ASSERT_TRUE(whole.ok()) << whole.status().message();

  input.checkpoint = (folder_ / "plan.json.checkpoint").string();
  int64_t num_asked = 0;
  input.should_stop = [&] { return ++num_asked == 2; };
  const auto stopped = MakePlan(GetParam().name, input);
  ASSERT_FALSE(stopped.ok());
  EXPECT_EQ(stopped.status().code(), StatusCode::kCancelled);
  EXPECT_THAT(std::string(stopped.status().message()), HasSubstr("--resume"));

  input.should_stop = {};
  input.resume = PlannerInput::Resume::kYes;
  input.num_threads = 1;
  const auto resumed = MakePlan(GetParam().name, input);
  ASSERT_TRUE(resumed.ok()) << resumed.status().message();
  EXPECT_EQ(resumed->rules, whole->rules);
  EXPECT_EQ(resumed->scores, whole->scores);
  EXPECT_EQ(resumed->seed, whole->seed);
  EXPECT_EQ(resumed->data_hash, whole->data_hash);
}

TEST_P(ResumeTest, ACheckpointOfAnotherRunIsRefused) {
  PlannerInput input = InputFor(options_);
  input.checkpoint = (folder_ / "plan.json.checkpoint").string();
  input.resume = PlannerInput::Resume::kYes;
  auto refused = MakePlan(GetParam().name, input);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("plan.json.checkpoint"));

  input.resume = PlannerInput::Resume::kNo;
  input.should_stop = [] { return true; };
  ASSERT_FALSE(MakePlan(GetParam().name, input).ok());
  Options others = options_;
  others["seed"] = "7";
  input.options = NamedOptions(others);
  input.resume = PlannerInput::Resume::kYes;
  refused = MakePlan(GetParam().name, input);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("seed"));
  input.options = NamedOptions(options_).With("compute", "bf16");
  refused = MakePlan(GetParam().name, input);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("compute"));

  ASSERT_TRUE(WriteFileAtomically(input.checkpoint, "{\"identity\": 3}").ok());
  EXPECT_FALSE(MakePlan(GetParam().name, input).ok());
}

// Clouds hand out another machine every day: work of hours is not thrown away for last digits, but nobody is left to
// think that it is one machine's.
TEST_P(ResumeTest, WorkOfAnotherMachineGoesOnAndSaysSo) {
  PlannerInput input = InputFor(options_);
  input.checkpoint = (folder_ / "plan.json.checkpoint").string();
  input.should_stop = [] { return true; };
  ASSERT_FALSE(MakePlan(GetParam().name, input).ok());
  const Json saved = *ReadJsonFile(input.checkpoint);
  EXPECT_EQ(saved.at("arithmetic"), Json({GradArithmetic()}));

  input.should_stop = {};
  input.resume = PlannerInput::Resume::kYes;
  std::string warnings;
  input.on_warning = [&](std::string_view warning) { warnings += warning; };
  Json other = saved;
  other["arithmetic"] = {"avx3, OpenBLAS Pentium"};
  ASSERT_TRUE(WriteFileAtomically(input.checkpoint, other.dump()).ok());
  const auto resumed = MakePlan(GetParam().name, input);
  ASSERT_TRUE(resumed.ok()) << resumed.status().message();
  EXPECT_THAT(warnings, AllOf(HasSubstr("plan.json.checkpoint"), HasSubstr("avx3"), HasSubstr(GradArithmetic())));
  EXPECT_THAT(resumed->notes, Contains(AllOf(HasSubstr("avx3"), HasSubstr(GradArithmetic()))));
  EXPECT_EQ(ReadJsonFile(input.checkpoint)->at("arithmetic"), Json({"avx3, OpenBLAS Pentium", GradArithmetic()}));

  other.erase("arithmetic");  // an older file
  ASSERT_TRUE(WriteFileAtomically(input.checkpoint, other.dump()).ok());
  input.should_stop = [] { return true; };
  warnings.clear();
  EXPECT_EQ(MakePlan(GetParam().name, input).status().code(), StatusCode::kCancelled);
  EXPECT_THAT(warnings, HasSubstr("does not name"));
}

const Options kShortAnswers = {{"lengths", "256,320"},      {"validation-length", "384"}, {"samples", "2"},
                               {"validation-samples", "1"}, {"answer-tokens", "8"},       {"density", "0.8"}};

const Options kLayerGates = {{"retrain-steps", "6"}, {"passkeys", "2"},     {"passkey-words", "4"},
                             {"min-tokens", "300"},  {"max-tokens", "400"}, {"train-sink", "4"},
                             {"train-recent", "32"}, {"sparsity", "0.875"}};

INSTANTIATE_TEST_SUITE_P(Planners, ResumeTest,
                         testing::Values(Method{"duo", kFewPasskeys}, Method{"zigzag", kLayerGates},
                                         Method{"moa", kShortAnswers}),
                         [](const auto& method) { return std::string(method.param.name); });

TEST(Retraining, TakesAllItsStepsAndItsOwnData) {
  const std::string path = (std::filesystem::temp_directory_path() / "headwise_retraining_gates.json").string();
  HeadPlan gates = HeadPlan::Dense(InputFor({}).shape);
  gates.scores.assign(gates.rules.size(), 0.1);
  gates.seed = 77;
  ASSERT_TRUE(WriteHeadPlan(gates, path).ok());
  Options options = kLayerGates;
  options["retrain-steps"] = "30";  // enough for an early end, which settled gates would have at once
  options["max-tokens"] = "300";
  options["from"] = path;
  const auto plan = MakePlan("zigzag", InputFor(options));
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->seed, 0u);
  EXPECT_TRUE(plan->data_hash.has_value());
  EXPECT_EQ(Json::parse(plan->report_json).at("retraining").at("training").at("steps"), 30);
  std::filesystem::remove(path);
}

// Few steps leave the gates of many layers at 0, all alike: another budget takes them as duo's gates have them.
TEST(Retraining, IsRefittedInTheOrderOfTheGatesBefore) {
  const std::string path = (std::filesystem::temp_directory_path() / "headwise_retraining_order.json").string();
  HeadPlan gates = HeadPlan::Dense(InputFor({}).shape);
  const auto num_layers = static_cast<size_t>(gates.shape.num_layers);
  for (size_t head = 0; head < gates.rules.size(); ++head) {
    const size_t layer_idx = head / static_cast<size_t>(gates.shape.num_kv_heads);
    gates.scores.push_back(static_cast<double>(num_layers - layer_idx) / static_cast<double>(num_layers + 1));
  }
  ASSERT_TRUE(WriteHeadPlan(gates, path).ok());
  Options options = kLayerGates;
  options["retrain-steps"] = "2";
  options["from"] = path;
  const auto plan = MakePlan("zigzag", InputFor(options));
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  // By the layers' own gates, then by those before.
  const auto rank_of = [&](int64_t layer_idx) {
    const auto head = static_cast<size_t>(layer_idx * gates.shape.num_kv_heads);
    return std::pair(-plan->scores[head], -gates.scores[head]);
  };
  std::vector<int64_t> order(num_layers);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, {}, rank_of);
  for (const char* ratio : {"0.3", "0.45", "0.6", "0.8", "0.9"}) {
    const auto refitted = RefitPlan(*plan, InputFor({{"kv-ratio", ratio}, {"at", "4096"}}), "plan");
    ASSERT_TRUE(refitted.ok()) << refitted.status().message();
    bool is_full = true;
    for (const int64_t layer_idx : order) {
      const bool is_next = refitted->At(layer_idx, 0).kind == HeadRule::Kind::kFull;
      EXPECT_TRUE(is_full || !is_next) << ratio << ": layer " << layer_idx << " is full, but one ahead of it is not";
      is_full = is_next;
    }
  }
  std::filesystem::remove(path);
}

TEST(MoaCheckpoint, TablesOfAnotherSizeAreRefused) {
  const std::filesystem::path path = std::filesystem::temp_directory_path() / "headwise_moa_tables.checkpoint";
  PlannerInput input = InputFor(kShortAnswers);
  input.checkpoint = path.string();
  input.should_stop = [] { return true; };
  ASSERT_FALSE(MakePlan("moa", input).ok());
  const Json saved = *ReadJsonFile(path.string());
  input.resume = PlannerInput::Resume::kYes;
  for (const auto& [key, value] : {std::pair<const char*, Json>{"losses", Json::parse("[[], []]")},
                                   {"dense_losses", Json::array()},
                                   {"num_done", -7}}) {
    Json changed = saved;
    changed["state"][key] = value;
    ASSERT_TRUE(WriteFileAtomically(path.string(), changed.dump()).ok());
    const auto refused = MakePlan("moa", input);
    ASSERT_FALSE(refused.ok()) << key;
    EXPECT_EQ(refused.status().code(), StatusCode::kInvalidInput) << key;
  }
  std::filesystem::remove(path);
}

TEST(Calibration, WithoutAShortestLengthPasskeysSetIt) {
  PlannerInput input = InputFor({{"max-tokens", "1300"}});
  input.should_stop = [] { return true; };
  EXPECT_EQ(MakePlan("duo", input).status().code(), StatusCode::kCancelled);
}

TEST(Calibration, ATextThatIsTooShortIsNamed) {
  const std::filesystem::path path = std::filesystem::temp_directory_path() / "headwise_short_text.txt";
  ASSERT_TRUE(WriteFileAtomically(path.string(), "A short text.\n").ok());
  Options options = kFewPasskeys;
  options["text"] = path.string();
  const auto refused = MakePlan("duo", InputFor(options));
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("headwise_short_text.txt"));
  std::filesystem::remove(path);
}

TEST(Calibration, LengthsThatPasskeysDoNotFitAreNamed) {
  Options options = kFewPasskeys;
  options["passkeys"] = "10";
  options["passkey-words"] = "32";
  const auto refused = MakePlan("duo", InputFor(options));
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("--min-tokens: found 300, expected at least"));
  options["max-tokens"] = "40000";
  EXPECT_THAT(std::string(MakePlan("duo", InputFor(options)).status().message()), HasSubstr("32768"));
}

TEST(Planners, OutOfRangeAndConflictingOptions) {
  const auto message = [](const char* method, Options options) {
    const auto plan = MakePlan(method, InputFor(options));
    return plan.ok() ? std::string("no error") : std::string(plan.status().message());
  };
  EXPECT_THAT(message("duo", {{"sparsity", "1.5"}}), HasSubstr("--sparsity"));
  EXPECT_THAT(message("duo", {{"threshold", "-1"}}), HasSubstr("--threshold"));
  EXPECT_THAT(message("duo", {{"sparsity", "0.5"}, {"threshold", "0.5"}}), HasSubstr("expected one"));
  EXPECT_THAT(message("duo", {{"kv-bytes-at", "10:8192"}}), HasSubstr("at least"));
  EXPECT_THAT(message("zigzag", {{"omega", "2"}}), HasSubstr("--omega"));
  EXPECT_THAT(message("zigzag", {{"from", "missing.json"}}), HasSubstr("missing.json"));
  EXPECT_THAT(message("zigzag", {{"retrain-steps", "5"}}), HasSubstr("--from"));
  EXPECT_THAT(message("razor", {{"induction-share", "2"}}), HasSubstr("--induction-share"));
  EXPECT_THAT(message("razor", {{"epsilon", "0.01"}}), HasSubstr("ALiBi"));
  EXPECT_THAT(message("moa", {{"lengths", "512,256"}}), HasSubstr("--lengths"));
  EXPECT_THAT(message("moa", {{"lengths", "256"}, {"samples", "1"}, {"answer-tokens", "4"}, {"density", "0.01"}}),
              HasSubstr("rule choice"));
  EXPECT_THAT(message("moa", {{"influence", "felt"}}), HasSubstr("measured"));
  EXPECT_THAT(message("moa", {{"influence", "margin"}, {"integration-points", "2"}}), HasSubstr("integrated"));
  EXPECT_THAT(message("moa", {{"influence", "integrated"}, {"integration-points", "0"}}),
              HasSubstr("--integration-points"));
  EXPECT_THAT(message("profile", {{"samples", "0"}}), HasSubstr("--samples"));
}

}  // namespace
}  // namespace headwise
