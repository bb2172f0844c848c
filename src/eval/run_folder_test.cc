#include "eval/run_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <fstream>

#include "base/file.h"

namespace headwise {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Mode = RunFolder::Mode;

class RunFolderTest : public testing::Test {
 protected:
  RunFolderTest() {
    path_ = std::filesystem::path(testing::TempDir()) /
            (std::string("run_folder_") + testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(path_);
    info_.task = "lines";
    info_.title = "Lines";
    info_.model = "models/m";
    info_.metrics = {{.name = "accuracy", .label = "right answers", .unit = ""}};
    info_.plans = {{.name = "full", .method = "full", .kv_ratio = {}, .files = {}},
                   {.name = "duo@0.25", .method = "duo", .kv_ratio = 0.25, .files = {{4096, "plans/a.json"}}}};
    info_.lengths = {4096};
    info_.options = {{"seed", "1"}};
    info_.environment = {{"machine", "one"}};
  }
  ~RunFolderTest() override { std::filesystem::remove_all(path_); }

  Result<RunFolder> Open(Mode mode, const std::string& sub_folder = "") {
    return RunFolder::Open(path_ / sub_folder, info_, cases_, mode);
  }
  static CaseResult Case(int64_t case_idx) {
    CaseResult result;
    result.plan = "full";
    result.length = 4096;
    result.case_idx = case_idx;
    result.scores = {{"accuracy", 1.0}};
    result.tags = {{"depth", 0.25}};
    result.curves = {{"nll", {{1, 2.5}, {2, 2.25}}}};
    result.log_likelihoods = {-1.5, -3.25};
    return result;
  }

  std::filesystem::path path_;
  RunInfo info_;
  std::vector<CaseText> cases_ = {
      {.length = 4096, .case_idx = 0, .question_idx = 1, .prompt = "What?", .expected = {"12", "13"}}};
};

TEST_F(RunFolderTest, WritesEveryCaseAndResumes) {
  {
    auto folder = Open(Mode::kNew, "deep");
    ASSERT_TRUE(folder.ok()) << folder.status().message();
    ASSERT_TRUE(folder->Append(Case(0)).ok());
    CaseResult broken = Case(1);
    broken.answer = "\xff";  // not UTF-8: still one line of JSON
    ASSERT_TRUE(folder->Append(broken).ok());
  }
  std::ofstream(path_ / "deep" / "results.jsonl", std::ios::app) << "{\"case\": 2, \"ans";  // interrupted
  info_.environment = {{"machine", "another"}};
  {
    auto folder = Open(Mode::kResume, "deep");
    ASSERT_TRUE(folder.ok()) << folder.status().message();
    ASSERT_EQ(folder->finished().size(), 2U);
    EXPECT_EQ(folder->finished()[1].case_idx, 1);
    EXPECT_EQ(folder->finished()[1].log_likelihoods, Case(1).log_likelihoods);
    ASSERT_TRUE(folder->Append(Case(2)).ok());
    ASSERT_TRUE(folder->WriteSummary({{"total", 3}}).ok());
  }
  auto again = Open(Mode::kResume, "deep");
  ASSERT_TRUE(again.ok()) << again.status().message();
  ASSERT_EQ(again->finished().size(), 3U);
  EXPECT_EQ(again->finished()[2].case_idx, 2);
  EXPECT_THAT(*ReadFile(path_ / "deep" / "summary.json"), HasSubstr("\"total\": 3"));
}

TEST_F(RunFolderTest, WhatIsWrittenIsReadBack) {
  ASSERT_TRUE(Open(Mode::kNew)->Append(Case(7)).ok());
  const auto run = ReadRun(path_);
  ASSERT_TRUE(run.ok()) << run.status().message();
  EXPECT_EQ(ToJson(run->info), ToJson(info_));
  ASSERT_EQ(run->results.size(), 1U);
  EXPECT_EQ(ToJson(run->results[0]), ToJson(Case(7)));
  const auto texts = ReadCaseTexts(path_);
  ASSERT_TRUE(texts.ok()) << texts.status().message();
  ASSERT_EQ(texts->size(), 1U);
  EXPECT_EQ(ToJson((*texts)[0]), ToJson(cases_[0]));
}

// Folders from before there were studies say nothing of one.
TEST_F(RunFolderTest, AStudyIsKeptAndOnlyThen) {
  EXPECT_FALSE(ToJson(info_).contains("study"));
  ASSERT_TRUE(Open(Mode::kNew, "plain").ok());
  info_.study = "Windows";
  ASSERT_TRUE(Open(Mode::kNew, "ablation").ok());
  EXPECT_EQ(ReadRun(path_ / "ablation")->info.study, "Windows");
  EXPECT_EQ(ReadRun(path_ / "plain")->info.study, "");
}

TEST_F(RunFolderTest, BadLinesAreNamed) {
  ASSERT_TRUE(Open(Mode::kNew)->Append(Case(0)).ok());
  std::ofstream(path_ / "results.jsonl", std::ios::app) << "{\"plan\": 3}\n";
  EXPECT_THAT(ReadRun(path_).status().message(), HasSubstr("results.jsonl:2: \"plan\""));
  std::ofstream(path_ / "results.jsonl") << "nonsense\n";
  EXPECT_THAT(ReadRun(path_).status().message(), HasSubstr("results.jsonl:1"));
  EXPECT_THAT(ReadRun(path_ / "nowhere").status().message(), HasSubstr("manifest.json"));
}

TEST_F(RunFolderTest, RefusesToMixRuns) {
  ASSERT_TRUE(Open(Mode::kNew).ok());
  EXPECT_THAT(Open(Mode::kNew).status().message(), HasSubstr("already holds a run"));
  info_.options["seed"] = "2";
  EXPECT_THAT(Open(Mode::kResume).status().message(), HasSubstr("\"seed\" \"1\", this one \"2\""));
  info_.options["seed"] = "1";
  info_.lengths = {8192};
  EXPECT_THAT(Open(Mode::kResume).status().message(), HasSubstr("\"lengths\" [4096], this one [8192]"));
}

// Whoever asked for "auto" got what the machine of then was best at.
TEST_F(RunFolderTest, AnotherArithmeticIsRefusedWithTheFlagsThatMakeItTheSame) {
  info_.options["compute"] = "auto";
  info_.options[kArithmeticKey] = {{"isa", "avx512"}, {"compute", "bf16"}, {"chunk_tokens", 512}};
  ASSERT_TRUE(Open(Mode::kNew).ok());
  EXPECT_EQ(Open(Mode::kResume)->warning(), "");

  info_.options[kArithmeticKey] = {{"isa", "avx2"}, {"compute", "f32"}, {"chunk_tokens", 64}};
  const auto refused = Open(Mode::kResume);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(),
              AllOf(HasSubstr("manifest.json"), HasSubstr("compute \"bf16\""), HasSubstr("compute \"f32\""),
                    HasSubstr("--isa avx512"), HasSubstr("--compute bf16"), HasSubstr("--chunk-tokens 512")));

  // Given those flags, what was asked for differs and what becomes of it does not.
  info_.options["compute"] = "bf16";
  info_.options[kArithmeticKey] = {{"isa", "avx512"}, {"compute", "bf16"}, {"chunk_tokens", 512}};
  const auto resumed = Open(Mode::kResume);
  ASSERT_TRUE(resumed.ok()) << resumed.status().message();
  EXPECT_EQ(resumed->warning(), "");
}

// Runs from when there was no such option did without.
TEST_F(RunFolderTest, BatchInvarianceIsPartOfTheArithmetic) {
  info_.options[kArithmeticKey] = {{"isa", "avx512"}};
  ASSERT_TRUE(Open(Mode::kNew).ok());
  info_.options[kArithmeticKey] = {{"isa", "avx512"}, {kBatchInvariantKey, false}};
  EXPECT_TRUE(Open(Mode::kResume).ok());
  info_.options[kArithmeticKey] = {{"isa", "avx512"}, {kBatchInvariantKey, true}};
  EXPECT_THAT(Open(Mode::kResume).status().message(),
              AllOf(HasSubstr("batch_invariant false, this one is with batch_invariant true"),
                    HasSubstr("give no --batch-invariant to go on")));
}

TEST_F(RunFolderTest, ARunThatDoesNotSayItsArithmeticGoesOnWithAWarning) {
  info_.options["compute"] = "auto";
  ASSERT_TRUE(Open(Mode::kNew).ok());
  info_.options[kArithmeticKey] = {{"isa", "avx2"}, {"compute", "f32"}};
  {
    const auto resumed = Open(Mode::kResume);
    ASSERT_TRUE(resumed.ok()) << resumed.status().message();
    EXPECT_THAT(resumed->warning(), AllOf(HasSubstr("manifest.json"), HasSubstr("avx2")));
  }
  // What was asked for is all that can be compared.
  info_.options["compute"] = "f32";
  EXPECT_THAT(Open(Mode::kResume).status().message(), HasSubstr("\"compute\" \"auto\", this one \"f32\""));
}

TEST_F(RunFolderTest, OneProcessAtATimeWritesARun) {
  auto first = Open(Mode::kNew);
  ASSERT_TRUE(first.ok());
  EXPECT_THAT(Open(Mode::kResume).status().message(), HasSubstr("another process is writing it"));
  ASSERT_TRUE(first->Append(Case(0)).ok());
  { const auto gone = std::move(first); }
  EXPECT_EQ(Open(Mode::kResume)->finished().size(), 1U);
}

TEST_F(RunFolderTest, RefusesAFolderOfOtherThings) {
  std::filesystem::create_directories(path_);
  std::ofstream(path_ / "thesis.txt") << "precious";
  EXPECT_THAT(Open(Mode::kNew).status().message(), HasSubstr("is not empty"));
  EXPECT_THAT(Open(Mode::kNew, "thesis.txt").status().message(), HasSubstr("thesis.txt"));
}

// Killed anywhere between two writes.
TEST_F(RunFolderTest, ARunThatWasKilledWhileItBeganGoesOn) {
  std::filesystem::create_directories(path_);
  std::ofstream(path_ / "manifest.json.0a1b2c3d") << "{\"task\": ";
  for (const Mode mode : {Mode::kNew, Mode::kResume}) {
    const auto folder = Open(mode);
    EXPECT_TRUE(folder.ok()) << folder.status().message();
    std::filesystem::remove(path_ / kManifestFile);
    std::filesystem::remove(path_ / kResultsFile);
    std::filesystem::remove(path_ / kCasesFile);
  }
  ASSERT_TRUE(Open(Mode::kNew).ok());
  for (const char* missing : {kResultsFile, kCasesFile}) {
    std::filesystem::remove(path_ / missing);
    ASSERT_TRUE(ReadRun(path_).ok());
    const auto folder = Open(Mode::kResume);
    EXPECT_TRUE(folder.ok()) << missing << ": " << folder.status().message();
    EXPECT_TRUE(std::filesystem::exists(path_ / missing));
  }
  std::filesystem::remove(path_ / kManifestFile);
  EXPECT_THAT(Open(Mode::kResume).status().message(), HasSubstr("is not empty"));
}

// Of a folder that someone sent nothing outside it is read, and nothing is written there.
TEST_F(RunFolderTest, FilesOfPlansLieInTheFolder) {
  for (const char* file : {"/etc/passwd", "../a.json", "plans/../../a.json", "..", ""}) {
    std::filesystem::remove_all(path_);
    info_.plans[1].files = {{4096, file}};
    ASSERT_TRUE(Open(Mode::kNew).ok());
    EXPECT_THAT(ReadRun(path_).status().message(),
                AllOf(HasSubstr("manifest.json: plans: files"), HasSubstr(std::string("\"") + file + "\""),
                      HasSubstr("expected a path inside")));
  }
}

TEST_F(RunFolderTest, AFailedWriteIsAnError) {
  auto folder = Open(Mode::kNew);
  ASSERT_TRUE(folder.ok());
  // The nearest thing to a full disk that a process can arrange for itself.
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit none = {.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
  const Status status = folder->Append(Case(0));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_THAT(status.message(), HasSubstr("results.jsonl: cannot write: File too large"));
}

}  // namespace
}  // namespace headwise
