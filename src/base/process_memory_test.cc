#include "base/process_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <unistd.h>

#include <cstring>

#include "base/cpu_info.h"

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

TEST(ProcessMemory, CountsPagesThatAreInMemory) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  void* block = mmap(nullptr, 8 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(block, MAP_FAILED);
  auto* bytes = static_cast<char*>(block);
  std::memset(bytes + 2 * page, 1, 3 * page);
  EXPECT_EQ(ResidentBytes(bytes, static_cast<int64_t>(8 * page)), static_cast<int64_t>(3 * page));
  // From inside the second page that is there to inside one that is not.
  EXPECT_EQ(ResidentBytes(bytes + 3 * page + 10, static_cast<int64_t>(3 * page)), static_cast<int64_t>(2 * page - 10));
  EXPECT_EQ(ResidentBytes(bytes, 0), 0);
  munmap(block, 8 * page);
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

TEST(ProcessMemory, WhatIsAvailableIsOfTheMachine) {
  EXPECT_GT(AvailableMemoryBytes(), 0);
  EXPECT_LT(AvailableMemoryBytes(), PhysicalMemoryBytes());
}

}  // namespace
}  // namespace headwise
