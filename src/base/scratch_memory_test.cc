#include "base/scratch_memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string_view>

#include "base/huge_pages.h"
#include "base/no_memory.h"

namespace headwise {
namespace {

TEST(ScratchMemory, IsAlignedAndAllWritable) {
  ScratchMemory memory("a test");
  for (const size_t bytes : {size_t{1}, size_t{1000}, size_t{600} << 10, size_t{5} << 20}) {
    std::byte* const data = memory.Reserve(bytes);
    ASSERT_NE(data, nullptr);
    const bool is_huge = bytes >= kHugePageBytes / 4;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % (is_huge ? kHugePageBytes : 64), 0) << bytes;
    std::memset(data, 1, bytes);
  }
}

TEST(ScratchMemory, StaysWhereItIsWhileItIsEnough) {
  ScratchMemory memory("a test");
  std::byte* const data = memory.Reserve(1000);
  data[999] = std::byte{7};
  EXPECT_EQ(memory.Reserve(10), data);
  EXPECT_EQ(memory.Reserve(1000), data);
  EXPECT_EQ(data[999], std::byte{7});
}

TEST(ScratchMemory, WhatTheSystemDoesNotHaveIsRefusedWithItsPurpose) {
  if (HEADWISE_SANITIZED) GTEST_SKIP() << "a sanitizer ends the process instead";
  ScratchMemory memory("a test");
  try {
    memory.Reserve(SIZE_MAX / 2);
    FAIL() << "granted";
  } catch (const NoMemory& error) {
    EXPECT_NE(std::string_view(error.what()).find("a test"), std::string_view::npos) << error.what();
  }
  // Nothing is left of it.
  std::byte* const data = memory.Reserve(100);
  ASSERT_NE(data, nullptr);
  std::memset(data, 1, 100);
}

TEST(ThreadScratchMemory, EachThreadHasItsOwn) {
  ThreadScratchMemory memory("a test");
  memory.Reserve(2, 100);
  memory.Reserve(3, 4000);
  for (int i = 0; i < 3; ++i) std::memset(memory.OfThread(i), i, 4000);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(memory.OfThread(i)[3999], std::byte(i));
}

}  // namespace
}  // namespace headwise
