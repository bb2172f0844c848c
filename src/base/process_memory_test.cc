#include "base/process_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>

namespace headwise {
namespace {

TEST(ProcessMemory, SeesMemoryComeAndGo) {
  constexpr size_t kBytes = size_t{64} << 20;
  const ProcessMemory before = ReadProcessMemory();
  ASSERT_GT(before.resident_bytes, 0);
  void* block = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(block, MAP_FAILED);
  std::memset(block, 1, kBytes);
  const ProcessMemory during = ReadProcessMemory();
  munmap(block, kBytes);
  const ProcessMemory after = ReadProcessMemory();
  constexpr int64_t kMost = int64_t{60} << 20;
  EXPECT_GT(during.resident_bytes - before.resident_bytes, kMost);
  EXPECT_GT(during.resident_anon_bytes - before.resident_anon_bytes, kMost);
  EXPECT_GT(during.resident_bytes - after.resident_bytes, kMost);
  EXPECT_GT(after.peak_resident_bytes, kMost);
}

TEST(ProcessMemory, ThePeakBeginsAgain) {
  constexpr size_t kBytes = size_t{64} << 20;
  void* block = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(block, MAP_FAILED);
  std::memset(block, 1, kBytes);
  munmap(block, kBytes);
  const int64_t before = ReadProcessMemory().peak_resident_bytes;
  ResetPeakResident();
  const int64_t after = ReadProcessMemory().peak_resident_bytes;
  if (after == before) GTEST_SKIP() << "this system does not reset the peak";
  EXPECT_GT(before - after, int64_t{60} << 20);
}

}  // namespace
}  // namespace headwise
