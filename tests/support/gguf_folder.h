// A folder of its own for each test that writes a GGUF file.
#ifndef HEADWISE_TESTS_SUPPORT_GGUF_FOLDER_H_
#define HEADWISE_TESTS_SUPPORT_GGUF_FOLDER_H_

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace headwise {

class GgufFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::path(::testing::TempDir()) / fmt::format("headwise_{}_{}", test->name(), ::getpid());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Path() const { return (folder_ / "x.gguf").string(); }
  void Write(const std::string& content) const { std::ofstream(Path(), std::ios::binary) << content; }

  std::filesystem::path folder_;
};

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_GGUF_FOLDER_H_
