#include "eval/run_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <fstream>

#include "base/file.h"

namespace headwise {
namespace {

using testing::HasSubstr;
using Mode = RunFolder::Mode;

class RunFolderTest : public testing::Test {
 protected:
  RunFolderTest() {
    path_ = std::filesystem::path(testing::TempDir()) /
            (std::string("run_folder_") + testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(path_);
  }
  ~RunFolderTest() override { std::filesystem::remove_all(path_); }

  std::filesystem::path path_;
};

TEST_F(RunFolderTest, WritesEveryCaseAndResumes) {
  const Json manifest = {{"task", "lines"}, {"seed", 1}};
  {
    auto folder = RunFolder::Open(path_ / "deep", manifest, Mode::kNew);
    ASSERT_TRUE(folder.ok()) << folder.status().message();
    ASSERT_TRUE(folder->Append({{"case", 0}}).ok());
    ASSERT_TRUE(folder->Append({{"case", 1}, {"answer", "\xff"}}).ok());  // not UTF-8: still one line of JSON
  }
  std::ofstream(path_ / "deep" / "results.jsonl", std::ios::app) << "{\"case\": 2, \"ans";  // interrupted
  auto folder = RunFolder::Open(path_ / "deep", manifest, Mode::kResume);
  ASSERT_TRUE(folder.ok()) << folder.status().message();
  ASSERT_EQ(folder->finished().size(), 2U);
  EXPECT_EQ(folder->finished()[1]["case"], 1);
  ASSERT_TRUE(folder->Append({{"case", 2}}).ok());
  ASSERT_TRUE(folder->WriteSummary({{"total", 3}}).ok());
  auto again = RunFolder::Open(path_ / "deep", manifest, Mode::kResume);
  ASSERT_TRUE(again.ok()) << again.status().message();
  ASSERT_EQ(again->finished().size(), 3U);
  EXPECT_EQ(again->finished()[2]["case"], 2);
  EXPECT_THAT(*ReadFile(path_ / "deep" / "summary.json"), HasSubstr("\"total\": 3"));
}

TEST_F(RunFolderTest, RefusesToMixRuns) {
  ASSERT_TRUE(RunFolder::Open(path_, {{"task", "lines"}, {"seed", 1}}, Mode::kNew).ok());
  EXPECT_THAT(RunFolder::Open(path_, {{"task", "lines"}, {"seed", 1}}, Mode::kNew).status().message(),
              HasSubstr("already holds a run"));
  EXPECT_THAT(RunFolder::Open(path_, {{"task", "lines"}, {"seed", 2}}, Mode::kResume).status().message(),
              HasSubstr("\"seed\" 1, this one 2"));
}

TEST_F(RunFolderTest, RefusesAFolderOfOtherThings) {
  std::filesystem::create_directories(path_);
  std::ofstream(path_ / "thesis.txt") << "precious";
  EXPECT_THAT(RunFolder::Open(path_, Json::object(), Mode::kNew).status().message(), HasSubstr("is not empty"));
  EXPECT_THAT(RunFolder::Open(path_ / "thesis.txt", Json::object(), Mode::kNew).status().message(),
              HasSubstr("thesis.txt"));
}

TEST_F(RunFolderTest, AFailedWriteIsAnError) {
  auto folder = RunFolder::Open(path_, Json::object(), Mode::kNew);
  ASSERT_TRUE(folder.ok());
  // The nearest thing to a full disk that a process can arrange for itself.
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit none = {.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
  const Status status = folder->Append({{"case", 0}});
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_THAT(status.message(), HasSubstr("results.jsonl: cannot write: File too large"));
}

}  // namespace
}  // namespace headwise
