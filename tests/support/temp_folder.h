// A folder of a test's own, empty at first, that goes with it.
#ifndef HEADWISE_TESTS_SUPPORT_TEMP_FOLDER_H_
#define HEADWISE_TESTS_SUPPORT_TEMP_FOLDER_H_

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

namespace headwise {

class TempFolder {
 public:
  TempFolder() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    path_ = std::filesystem::path(::testing::TempDir()) /
            fmt::format("headwise_{}_{}_{}", test->test_suite_name(), test->name(), ::getpid());
    std::filesystem::remove_all(path_);
    std::filesystem::create_directory(path_);
  }
  TempFolder(const TempFolder&) = delete;
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_TEMP_FOLDER_H_
