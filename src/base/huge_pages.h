// Huge pages of the system's: what jumps about in much memory, or streams through it, waits for the addresses of 4 KiB
// pages, under virtualisation longer than for the memory itself.
#ifndef HEADWISE_BASE_HUGE_PAGES_H_
#define HEADWISE_BASE_HUGE_PAGES_H_

#include <sys/mman.h>

#include <cstddef>

namespace headwise {

inline constexpr size_t kHugePageBytes = size_t{2} << 20;

// Rounded up to whole huge pages. Requires: that does not overflow.
constexpr size_t WholeHugePages(size_t bytes) {
  return (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
}

// A wish: where the system has none, all works, slower. `memory`: of whole pages.
inline void AskForHugePages(void* memory, size_t bytes) {
  static_cast<void>(::madvise(memory, bytes, MADV_HUGEPAGE));
}

}  // namespace headwise

#endif  // HEADWISE_BASE_HUGE_PAGES_H_
