// Long planners on the bundled model, interrupted and resumed: the plan must be that of an uninterrupted run.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <ostream>

#include "base/file.h"
#include "grad/grad_decoder.h"
#include "model/load_config.h"
#include "planner/planner.h"
#include "support/golden.h"

namespace headwise {
namespace {

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
  input.options = PlannerOptions(options);
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
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path folder_;
};

TEST_P(ResumeTest, AnInterruptedRunResumedIsAnUninterruptedOne) {
  PlannerInput input = InputFor(GetParam().options);
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
  PlannerInput input = InputFor(GetParam().options);
  input.checkpoint = (folder_ / "plan.json.checkpoint").string();
  input.resume = PlannerInput::Resume::kYes;
  auto refused = MakePlan(GetParam().name, input);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("plan.json.checkpoint"));

  input.resume = PlannerInput::Resume::kNo;
  input.should_stop = [] { return true; };
  ASSERT_FALSE(MakePlan(GetParam().name, input).ok());
  Options others = GetParam().options;
  others["seed"] = "7";
  input.options = PlannerOptions(others);
  input.resume = PlannerInput::Resume::kYes;
  refused = MakePlan(GetParam().name, input);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("seed"));

  ASSERT_TRUE(WriteFileAtomically(input.checkpoint, "{\"identity\": 3}").ok());
  EXPECT_FALSE(MakePlan(GetParam().name, input).ok());
}

const Options kShortAnswers = {{"lengths", "256,320"},      {"validation-length", "384"}, {"samples", "2"},
                               {"validation-samples", "1"}, {"answer-tokens", "8"},       {"density", "0.8"}};

INSTANTIATE_TEST_SUITE_P(Planners, ResumeTest,
                         testing::Values(Method{"duo", kFewPasskeys}, Method{"moa", kShortAnswers}),
                         [](const auto& method) { return std::string(method.param.name); });

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
  EXPECT_THAT(message("profile", {{"samples", "0"}}), HasSubstr("--samples"));
}

TEST(Gradient, AModelWithoutOneIsNamed) {
  ModelConfig config = *ReadModelConfig(BundledModel());
  EXPECT_TRUE(CheckHasGradient(config).ok());
  config.qkv_clip = 8.0;
  EXPECT_THAT(std::string(CheckHasGradient(config).message()), HasSubstr("llama"));
}

}  // namespace
}  // namespace headwise
