#include "base/cpu_info.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif
#endif

namespace headwise {

#if defined(__x86_64__)
namespace {

struct CpuidWords {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

// All zero where the processor has no such leaf.
CpuidWords Cpuid(uint32_t leaf, uint32_t subleaf) {
  CpuidWords words;
  if (__get_cpuid_count(leaf, subleaf, &words.eax, &words.ebx, &words.ecx, &words.edx) == 0) return {};
  return words;
}

// Register states that the operating system saves. Requires: OSXSAVE.
uint32_t Xcr0() {
  uint32_t low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

constexpr bool HasAll(uint32_t word, uint32_t bits) {
  return (word & bits) == bits;
}
constexpr uint32_t Bit(int idx) {
  return uint32_t{1} << idx;
}

}  // namespace

// By CPUID, because the compilers' own queries do not know every feature in the versions that must build this.
CpuFeatures DetectCpuFeatures() {
  const CpuidWords basic = Cpuid(1, 0);
  const uint32_t fma = Bit(12), osxsave = Bit(27), avx = Bit(28), f16c = Bit(29);
  if (!HasAll(basic.ecx, fma | osxsave | avx | f16c)) return {};
  const uint32_t xcr0 = Xcr0();
  const uint32_t ymm_state = Bit(1) | Bit(2);
  const uint32_t zmm_state = ymm_state | Bit(5) | Bit(6) | Bit(7);
  if (!HasAll(xcr0, ymm_state)) return {};

  const CpuidWords extended = Cpuid(7, 0);
  CpuFeatures features;
  const uint32_t avx2 = Bit(5), bmi2 = Bit(8);
  features.avx2 = HasAll(extended.ebx, avx2 | bmi2);
  const uint32_t avx512f = Bit(16), avx512dq = Bit(17), avx512cd = Bit(28), avx512bw = Bit(30), avx512vl = Bit(31);
  features.avx512 = features.avx2 && HasAll(xcr0, zmm_state) &&
                    HasAll(extended.ebx, avx512f | avx512dq | avx512cd | avx512bw | avx512vl);
  features.avx512_vnni = features.avx512 && HasAll(extended.ecx, Bit(11));
  // Leaf 7's EAX is the number of its last subleaf.
  features.avx512_bf16 = features.avx512 && extended.eax >= 1 && HasAll(Cpuid(7, 1).eax, Bit(5));
  const uint32_t amx_bf16 = Bit(22), amx_tile = Bit(24), amx_int8 = Bit(25);
  const uint32_t tile_state = Bit(17) | Bit(18);
  features.amx = HasAll(xcr0, tile_state) && HasAll(extended.edx, amx_bf16 | amx_tile | amx_int8);
  return features;
}

bool AskForTiles() {
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM of asm/prctl.h, which older systems lack
  constexpr long kTileData = 18;               // the state component
  static const bool may = ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return may;
#else
  return false;
#endif
}
#else
CpuFeatures DetectCpuFeatures() {
  return {};
}
bool AskForTiles() {
  return false;
}
#endif

int NumUsableCores() {
  // Machines with more than 1024 processors need a larger set than cpu_set_t.
  for (size_t num_sets = 1; num_sets <= 64; num_sets *= 2) {
    std::vector<cpu_set_t> sets(num_sets);
    const size_t size_bytes = num_sets * sizeof(cpu_set_t);
    if (sched_getaffinity(0, size_bytes, sets.data()) == 0) {
      return std::max(1, static_cast<int>(CPU_COUNT_S(size_bytes, sets.data())));
    }
  }
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

// sysconf is not asked: of a cache in parts, each in front of a few cores, it may name the sum.
int64_t LastLevelCacheBytes() {
  constexpr int64_t kOtherwise = int64_t{32} << 20;
  int64_t largest = 0;
  for (int idx = 0; idx < 8; ++idx) {
    std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(idx) + "/size");
    int64_t size = 0;
    char unit = 0;
    if (!(file >> size)) continue;
    file >> unit;
    largest = std::max(largest, unit == 'K' ? size << 10 : unit == 'M' ? size << 20 : size);
  }
  return largest > 0 ? largest : kOtherwise;
}

Status CheckNumThreads(int num_threads) {
  constexpr int kMost = 1024;
  if (num_threads >= 0 && num_threads <= kMost) return Status::Ok();
  return Status::InvalidInput(fmt::format("num_threads is {}, expected 0 to {}", num_threads, kMost));
}

int64_t PhysicalMemoryBytes() {
  const int64_t num_pages = ::sysconf(_SC_PHYS_PAGES);
  const int64_t page_bytes = ::sysconf(_SC_PAGESIZE);
  return num_pages > 0 && page_bytes > 0 ? num_pages * page_bytes : 0;
}

std::string CpuModelName() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  std::string line;
  while (std::getline(cpuinfo, line)) {
    if (line.rfind("model name", 0) != 0) continue;
    const size_t colon = line.find(':');
    if (colon != std::string::npos && colon + 2 < line.size()) return line.substr(colon + 2);
  }
  return "unknown";
}

}  // namespace headwise
