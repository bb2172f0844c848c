#include "base/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace headwise {
namespace {

using ::testing::HasSubstr;

std::filesystem::path TempPath(const char* name) {
  return std::filesystem::path(::testing::TempDir()) / name;
}

TEST(File, ReadsBackWhatWasWritten) {
  const auto path = TempPath("headwise_file_test");
  ASSERT_TRUE(WriteFileAtomically(path, "one").ok());
  ASSERT_TRUE(WriteFileAtomically(path, "two").ok());
  EXPECT_EQ(ReadFile(path).value(), "two");
  const auto mapped = MappedFile::Open(path);
  ASSERT_TRUE(mapped.ok());
  EXPECT_EQ(mapped->bytes().size(), 3u);
}

TEST(File, MissingFileAndFolderAreNamed) {
  EXPECT_EQ(ReadFile(TempPath("no_such_file")).status().code(), StatusCode::kNotFound);
  EXPECT_THAT(ReadFile(::testing::TempDir()).status().message(), HasSubstr("is a folder"));
}

// /dev/full accepts the open and fails the write with ENOSPC, as a full disk does; the temporary cannot be created
// beside it, so the folder is what fails first. Either way nothing may be left behind.
TEST(File, FailedWriteLeavesTheOldFile) {
  const auto folder = TempPath("headwise_readonly");
  std::filesystem::create_directories(folder);
  const auto path = folder / "plan.json";
  ASSERT_TRUE(WriteFileAtomically(path, "old").ok());
  const Status status = WriteFileAtomically(folder / "missing" / "plan.json", "new");
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_EQ(ReadFile(path).value(), "old");
}

}  // namespace
}  // namespace headwise
