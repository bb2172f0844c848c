// A heap that refuses: in a program that has this header in one of its files, every operator new asks first. Of all
// threads: what a request takes on the engine's own or on a worker's counts too.
#ifndef HEADWISE_TESTS_SUPPORT_REFUSING_HEAP_H_
#define HEADWISE_TESTS_SUPPORT_REFUSING_HEAP_H_

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <new>

namespace headwise {

// Allocations that are granted, then so many that are refused, then all are granted again.
class RefusingHeap {
 public:
  static constexpr int64_t kAll = std::numeric_limits<int64_t>::max() / 2;

  RefusingHeap(int64_t num_granted, int64_t num_refused) {
    begin_ = num_granted;
    end_ = num_granted + num_refused;
    num_asked_ = 0;
    is_on_ = true;
  }
  RefusingHeap(const RefusingHeap&) = delete;
  ~RefusingHeap() { is_on_ = false; }

  // Whether it has come to a refusal.
  bool has_refused() const { return num_asked_ > begin_; }

  static void* Take(size_t bytes, size_t alignment) {
    if (is_on_) {
      const int64_t idx = num_asked_++;
      if (idx >= begin_ && idx < end_) return nullptr;
    }
    void* memory = nullptr;
    if (alignment <= alignof(std::max_align_t)) return std::malloc(bytes == 0 ? 1 : bytes);
    return ::posix_memalign(&memory, alignment, bytes) == 0 ? memory : nullptr;
  }
  static void* TakeOrThrow(size_t bytes, size_t alignment) {
    void* memory = Take(bytes, alignment);
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
  }

 private:
  static inline std::atomic<bool> is_on_ = false;
  static inline std::atomic<int64_t> num_asked_ = 0, begin_ = 0, end_ = 0;
};

}  // namespace headwise

// GCC takes free() for a mistake where it sees operator new beside it, but not that it was replaced.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
#endif

void* operator new(size_t bytes) {
  return headwise::RefusingHeap::TakeOrThrow(bytes, 1);
}
void* operator new[](size_t bytes) {
  return headwise::RefusingHeap::TakeOrThrow(bytes, 1);
}
void* operator new(size_t bytes, std::align_val_t alignment) {
  return headwise::RefusingHeap::TakeOrThrow(bytes, static_cast<size_t>(alignment));
}
void* operator new[](size_t bytes, std::align_val_t alignment) {
  return headwise::RefusingHeap::TakeOrThrow(bytes, static_cast<size_t>(alignment));
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return headwise::RefusingHeap::Take(bytes, 1);
}
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept {
  return headwise::RefusingHeap::Take(bytes, 1);
}
void* operator new(size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return headwise::RefusingHeap::Take(bytes, static_cast<size_t>(alignment));
}
void* operator new[](size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return headwise::RefusingHeap::Take(bytes, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, size_t, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, const std::nothrow_t&) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, const std::nothrow_t&) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t, const std::nothrow_t&) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::align_val_t, const std::nothrow_t&) noexcept {
  std::free(memory);
}

#endif  // HEADWISE_TESTS_SUPPORT_REFUSING_HEAP_H_
