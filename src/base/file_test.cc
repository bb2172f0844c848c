#include "base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <iterator>

#include "support/full_disk.h"

namespace {
std::atomic<int> g_num_umask_calls{0};
}

// In the place of the system's for this program: counts.
extern "C" mode_t umask(mode_t mask) noexcept {
  ++g_num_umask_calls;
  return static_cast<mode_t>(::syscall(SYS_umask, mask));
}

namespace headwise {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

fs::path TempPath(const std::string& name) {
  return fs::path(::testing::TempDir()) / name;
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

TEST(File, WhatIsReleasedCanBeReadAgain) {
  const auto path = TempPath("headwise_released_test");
  const std::string content(3 << 16, 'x');
  ASSERT_TRUE(WriteFileAtomically(path, content).ok());
  const auto mapped = MappedFile::Open(path);
  ASSERT_TRUE(mapped.ok());
  const auto text = [&] { return std::string(reinterpret_cast<const char*>(mapped->bytes().data()), content.size()); };
  EXPECT_EQ(text(), content);
  mapped->Release(mapped->bytes().subspan(100, content.size() - 200));
  mapped->Release(mapped->bytes().first(10));  // no whole page: nothing
  EXPECT_EQ(text(), content);
}

TEST(File, ACopyIsWhatTheFileWas) {
  const auto path = TempPath("headwise_copy_test");
  const std::string content(3 << 16, 'x');
  ASSERT_TRUE(WriteFileAtomically(path, content).ok());
  const auto copy = MappedFile::Open(path, FileAccess::kRead);
  ASSERT_TRUE(copy.ok()) << copy.status().message();
  EXPECT_EQ(PathOfMapping(copy->bytes().data()), nullptr);
  fs::resize_file(path, 0);
  copy->Release(copy->bytes());
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(copy->bytes().data()), copy->bytes().size()), content);
  EXPECT_TRUE(MappedFile::Open(path, FileAccess::kRead)->bytes().empty());
}

TEST(File, MappingsKnowTheirFiles) {
  const auto path = TempPath("headwise_mapping_test");
  ASSERT_TRUE(WriteFileAtomically(path, "one").ok());
  const std::byte* data = nullptr;
  {
    auto first = MappedFile::Open(path);
    const auto second = MappedFile::Open(path);
    ASSERT_TRUE(first.ok() && second.ok());
    data = first->bytes().data();
    EXPECT_STREQ(PathOfMapping(data), path.c_str());
    EXPECT_STREQ(PathOfMapping(data + 2), path.c_str());
    EXPECT_EQ(PathOfMapping(&path), nullptr);
    const MappedFile moved = *std::move(first);
    EXPECT_STREQ(PathOfMapping(data), path.c_str());
  }
  EXPECT_EQ(PathOfMapping(data), nullptr);
}

TEST(File, MissingFileAndFolderAreNamed) {
  EXPECT_EQ(ReadFile(TempPath("no_such_file")).status().code(), StatusCode::kNotFound);
  EXPECT_THAT(ReadFile(::testing::TempDir()).status().message(), HasSubstr("is a folder"));
}

// A FIFO without a writer would be waited for, and a device has no end.
TEST(File, OnlyRegularFilesAreRead) {
  const fs::path fifo = TempPath(fmt::format("headwise_fifo_{}", ::getpid()));
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const std::pair<fs::path, const char*> cases[] = {{fifo, ": is a FIFO, expected a file"},
                                                    {"/dev/zero", "/dev/zero: is a character device, expected a file"},
                                                    {::testing::TempDir(), ": is a folder, expected a file"}};
  for (const auto& [path, expected] : cases) {
    EXPECT_THAT(ReadFile(path).status().message(), HasSubstr(expected));
    EXPECT_THAT(MappedFile::Open(path).status().message(), HasSubstr(expected));
  }
  fs::remove(fifo);
}

class AtomicWrite : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = TempPath(fmt::format("headwise_{}_{}", test->name(), ::getpid()));
    fs::create_directories(folder_);
    ASSERT_TRUE(WriteFileAtomically(Path(), "old").ok());
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path Path() const { return folder_ / "plan.json"; }
  // The old file, and nothing beside it.
  void ExpectNothingHappened() const {
    EXPECT_EQ(ReadFile(Path()).value(), "old");
    EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
  }

  fs::path folder_;
};

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

TEST_F(AtomicWrite, PiecesAreOneFileOnceCommitted) {
  auto writer = AtomicFileWriter::Create(Path());
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE(writer->Write(Bytes("one ")).ok());
  AtomicFileWriter moved = *std::move(writer);
  ASSERT_TRUE(moved.Write(Bytes("two")).ok());
  EXPECT_EQ(ReadFile(Path()).value(), "old");
  ASSERT_TRUE(moved.Commit().ok());
  EXPECT_EQ(ReadFile(Path()).value(), "one two");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
}

TEST_F(AtomicWrite, ReadableUnderTheUmask) {
  fs::remove(Path());
  const mode_t mask = ::umask(027);
  const Status status = WriteFileAtomically(Path(), "new");
  ::umask(mask);
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(fs::status(Path()).permissions(), static_cast<fs::perms>(0640));
}

// It belongs to the process: whoever changes it, if only to read it, changes what every other thread's files become.
TEST_F(AtomicWrite, TheUmaskIsLeftAlone) {
  const int before = g_num_umask_calls;
  ASSERT_TRUE(WriteFileAtomically(Path(), "new").ok());
  EXPECT_EQ(g_num_umask_calls, before);
}

TEST_F(AtomicWrite, WithoutACommitNothingHappened) {
  {
    auto writer = AtomicFileWriter::Create(Path());
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE(writer->Write(Bytes("new")).ok());
  }
  ExpectNothingHappened();
}

TEST_F(AtomicWrite, AFullDiskLeavesTheOldFile) {
  Status status;
  {
    const FullDisk full(100);
    status = WriteFileAtomically(Path(), std::string(1000, 'x'));
  }
  EXPECT_EQ(status.code(), StatusCode::kIo);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("plan.json"), HasSubstr("cannot write")));
  ExpectNothingHappened();
}

TEST_F(AtomicWrite, ATargetThatCannotBeReplacedLeavesNoPartialFile) {
  const fs::path target = folder_ / "folder";
  {
    auto writer = AtomicFileWriter::Create(target);
    ASSERT_TRUE(writer.ok());
    fs::create_directories(target / "full");
    EXPECT_THAT(writer->Commit().message(), HasSubstr("cannot replace"));
  }
  fs::remove_all(target);
  ExpectNothingHappened();
}

// Those that files have on their way must not be longer.
TEST_F(AtomicWrite, NamesMayBeAsLongAsTheSystemTakes) {
  const fs::path path = folder_ / std::string(255, 'n');
  ASSERT_TRUE(CheckWritable(path).ok());
  const Status status = WriteFileAtomically(path, "new");
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(WriteFileAtomically(path, "newer").ok());
  EXPECT_EQ(fs::file_size(path), 5u);
  fs::remove(path);
  ExpectNothingHappened();
}

// Of a person's devices and pipes nothing is made.
TEST_F(AtomicWrite, WhatIsNoFileIsRefused) {
  const auto expect_refused = [&](const fs::path& path, const std::string& found) {
    const fs::file_type before = fs::status(path).type();
    EXPECT_THAT(WriteFileAtomically(path, "new").message(),
                AllOf(HasSubstr(path.filename().string() + ": is " + found), HasSubstr("expected a file")));
    EXPECT_EQ(CheckWritable(path).code(), StatusCode::kInvalidInput);
    EXPECT_EQ(fs::status(path).type(), before);
  };
  fs::create_directories(folder_ / "folder");
  expect_refused(folder_ / "folder", "a folder");
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0666), 0);
  expect_refused(folder_ / "pipe", "a FIFO");
  fs::create_symlink("pipe", folder_ / "to_pipe");
  expect_refused(folder_ / "to_pipe", "a FIFO");
  // Not /dev/null itself: a test that fails as root would cost the machine its own.
  const fs::path null = folder_ / "null";
  if (::mknod(null.c_str(), S_IFCHR | 0666, makedev(1, 3)) == 0) expect_refused(null, "a device");
  EXPECT_THAT(WriteFileAtomically("", "new").message(), HasSubstr("is empty"));
}

TEST_F(AtomicWrite, LinksAreFollowed) {
  fs::create_directories(folder_ / "deep");
  fs::create_symlink("../plan.json", folder_ / "deep" / "inner");
  fs::create_symlink(folder_ / "deep" / "inner", folder_ / "outer");
  ASSERT_TRUE(WriteFileAtomically(folder_ / "outer", "new").ok());
  EXPECT_TRUE(fs::is_symlink(folder_ / "outer"));
  EXPECT_EQ(ReadFile(Path()).value(), "new");
  // One that leads to a file which is not there yet.
  fs::create_symlink("later", folder_ / "dangling");
  ASSERT_TRUE(WriteFileAtomically(folder_ / "dangling", "new").ok());
  EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(folder_ / "later")));
  fs::create_symlink("ring", folder_ / "ring");
  EXPECT_THAT(WriteFileAtomically(folder_ / "ring", "new").message(), HasSubstr("ring: cannot write"));
}

TEST_F(AtomicWrite, TheModeIsKept) {
  for (const auto mode : {0600, 0644, 0666, 0755}) {
    fs::permissions(Path(), static_cast<fs::perms>(mode));
    ASSERT_TRUE(WriteFileAtomically(Path(), "new").ok());
    EXPECT_EQ(fs::status(Path()).permissions(), static_cast<fs::perms>(mode));
  }
}

TEST_F(AtomicWrite, AProcessThatIsKilledLeavesTheOldFileAlone) {
  const int probe = ::open(folder_.c_str(), O_WRONLY | O_TMPFILE, 0600);
  if (probe < 0) GTEST_SKIP() << "this file system has no files without names";
  ::close(probe);
  const pid_t child = ::fork();
  if (child == 0) {
    auto writer = AtomicFileWriter::Create(Path());
    if (writer.ok() && writer->Write(Bytes("new")).ok()) ::raise(SIGKILL);
    ::_exit(1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  ExpectNothingHappened();
}

TEST_F(AtomicWrite, AMissingFolderIsNamed) {
  const Status status = WriteFileAtomically(folder_ / "missing" / "plan.json", "new");
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("missing"));
  ExpectNothingHappened();
}

}  // namespace
}  // namespace headwise
