#include "base/cpu_info.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <fstream>
#include <sstream>
#include <string>

namespace headwise {
namespace {

// The kernel's own list of flags, which also takes into account what it saves on a context switch.
std::string KernelFlags() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  std::string line;
  while (std::getline(cpuinfo, line)) {
    if (line.rfind("flags", 0) == 0) return line + " ";
  }
  return "";
}

TEST(CpuInfo, AgreesWithTheKernel) {
  const std::string flags = KernelFlags();
  if (flags.empty()) GTEST_SKIP() << "no flags in /proc/cpuinfo";
  const auto has = [&](const char* names) {
    std::istringstream words(names);
    for (std::string name; words >> name;) {
      if (flags.find(" " + name + " ") == std::string::npos) return false;
    }
    return true;
  };
  const CpuFeatures features = DetectCpuFeatures();
  EXPECT_EQ(features.avx2, has("avx2 fma f16c bmi2"));
  EXPECT_EQ(features.avx512, has("avx2 fma f16c bmi2 avx512f avx512cd avx512bw avx512dq avx512vl"));
  EXPECT_EQ(features.avx512_vnni, features.avx512 && has("avx512_vnni"));
  EXPECT_EQ(features.avx512_bf16, features.avx512 && has("avx512_bf16"));
  EXPECT_EQ(features.amx, has("amx_tile amx_int8 amx_bf16"));
}

TEST(CpuInfo, CountsOnlyCoresThatItMayUse) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  EXPECT_EQ(NumUsableCores(), CPU_COUNT(&before));
  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(NumUsableCores(), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
}

TEST(CpuInfo, CachesAreSmallerThanMemory) {
  EXPECT_GE(LastLevelCacheBytes(), int64_t{32} << 10);
  EXPECT_LT(LastLevelCacheBytes(), PhysicalMemoryBytes());
}

TEST(CpuInfo, HasAName) {
  EXPECT_FALSE(CpuModelName().empty());
}

}  // namespace
}  // namespace headwise
