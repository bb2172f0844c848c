#include "eval/subjects.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <set>

#include "support/engines.h"
#include "support/golden.h"

namespace headwise {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;

class SubjectsTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    EngineOptions options;
    options.model = SourcePath("models/headwise-17m");
    engine_ = MustCreate(options).release();
  }
  static void TearDownTestSuite() { delete engine_; }
  SubjectsTest() {
    folder_ = fs::path(testing::TempDir()) /
              (std::string("subjects_") + testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~SubjectsTest() override { fs::remove_all(folder_); }

  // A plan file whose every head keeps so many recent tokens.
  std::string PlanFile(const std::string& name, int64_t recent, const std::string& method = "streaming") {
    HeadPlan plan = HeadPlan::Dense(engine_->shape());
    for (HeadRule& rule : plan.rules) rule = HeadRule::Stream(4, recent);
    plan.method = method;
    const fs::path path = folder_ / name;
    fs::create_directories(path.parent_path());
    EXPECT_TRUE(WriteHeadPlan(plan, path.string()).ok());
    return path.string();
  }
  static std::vector<Subject> Make(const std::vector<std::string>& paths, const std::vector<double>& kv_ratios = {}) {
    const auto plans = ReadPlans(paths, *engine_);
    EXPECT_TRUE(plans.ok()) << plans.status().message();
    const auto subjects = MakeSubjects(*plans, kv_ratios, std::vector<int64_t>{4096}, *engine_);
    EXPECT_TRUE(subjects.ok()) << subjects.status().message();
    return *subjects;
  }
  static std::vector<std::string> NamesOf(const std::vector<Subject>& subjects) {
    std::vector<std::string> names;
    for (const Subject& subject : subjects) names.push_back(subject.info.name);
    return names;
  }

  static Engine* engine_;
  fs::path folder_;
};

Engine* SubjectsTest::engine_ = nullptr;

TEST_F(SubjectsTest, FilesAreCalledByTheirNamesAndByTheirPathsWhereTwoAreAlike) {
  const std::string a = PlanFile("a.json", 100), b = PlanFile("b.json", 100), deep_b = PlanFile("deep/b.json", 200);
  EXPECT_THAT(NamesOf(Make({"full", a, b, deep_b})), ElementsAre("full", "a", b, deep_b));
}

// The word means the dense model, a file means what is in it.
TEST_F(SubjectsTest, AFileCalledFullIsThePlanInIt) {
  const std::string path = PlanFile("full.json", 100, "full");
  for (const std::vector<std::string>& paths : {std::vector<std::string>{path}, {"full", path}}) {
    const std::vector<Subject> subjects = Make(paths);
    const Subject& subject = subjects.back();
    EXPECT_EQ(subject.info.name, path);
    ASSERT_NE(subject.At(4096), nullptr);
    EXPECT_EQ(subject.At(4096)->rules.front(), HeadRule::Stream(4, 100));
    EXPECT_EQ(subject.info.files.size(), 1U);
  }
  EXPECT_EQ(Make({PlanFile("full.json", 100, "streaming")}, {0.25}).front().info.kv_ratio, 0.25);
}

// Also where no plan is made anew, so that none is ignored.
TEST_F(SubjectsTest, RatiosAreDifferentShares) {
  for (const std::vector<double>& ratios : {std::vector<double>{0}, {-0.5}, {1.5}, {0.5, 0.25, 0.5}}) {
    const auto subjects = MakeSubjects(*ReadPlans(std::vector<std::string>{"full"}, *engine_), ratios,
                                       std::vector<int64_t>{4096}, *engine_);
    EXPECT_THAT(subjects.status().message(), testing::HasSubstr("--kv-ratio: found"));
  }
}

// Names of files have fewer letters than names of plans, and some file systems have but one case of them.
TEST_F(SubjectsTest, AFileOfTheRunHoldsOnePlan) {
  const std::string long_name(120, 'x');
  const std::vector<std::string> paths = {PlanFile("a b.json", 100), PlanFile("a-b.json", 200),
                                          PlanFile("A-b.json", 300), PlanFile(long_name + "1.json", 400),
                                          PlanFile(long_name + "2.json", 500)};
  for (const std::vector<double>& kv_ratios : {std::vector<double>{}, {0.25, 0.5}, {0.25, 0.25000001}}) {
    const std::vector<Subject> subjects = Make(paths, kv_ratios);
    EXPECT_EQ(subjects.size(), paths.size() * std::max<size_t>(1, kv_ratios.size()));
    const std::vector<std::string> names = NamesOf(subjects);
    EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), subjects.size());
    std::map<std::string, std::string> content_of;
    for (const Subject& subject : subjects) {
      for (const auto& [length, file] : subject.info.files) {
        std::string small = file;
        std::ranges::transform(small, small.begin(), [](unsigned char c) { return std::tolower(c); });
        const std::string content = SerializeHeadPlan(*subject.plans.at(length));
        EXPECT_EQ(content_of.try_emplace(small, content).first->second, content) << file;
        EXPECT_LT(file.size(), 200U);
      }
    }
    if (kv_ratios.empty()) {
      EXPECT_EQ(content_of.size(), paths.size());
    }
  }
  EXPECT_EQ(Make(paths).front().info.files.at(0), "plans/a-b.json");
}

}  // namespace
}  // namespace headwise
