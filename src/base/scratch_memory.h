// Memory of its own for work that comes again and again: kept between calls, grown to what a call needs, not set to
// anything.
#ifndef HEADWISE_BASE_SCRATCH_MEMORY_H_
#define HEADWISE_BASE_SCRATCH_MEMORY_H_

#include <cstddef>
#include <memory>
#include <vector>

namespace headwise {

class ScratchMemory {
 public:
  // `purpose` is what NoMemory says it was for: "the scores of attention".
  explicit ScratchMemory(const char* purpose) : purpose_(purpose) {}

  // At least so many bytes, 64-byte aligned; on huge pages, if they fill a good part of one, where the system has them.
  // What was there before is lost when it grows. Throws NoMemory.
  std::byte* Reserve(size_t bytes);

 private:
  struct Delete {
    size_t alignment;
    void operator()(std::byte* memory) const;
  };

  const char* purpose_;
  std::unique_ptr<std::byte[], Delete> memory_;
  size_t bytes_ = 0;
};

// The same, a piece for each thread.
class ThreadScratchMemory {
 public:
  explicit ThreadScratchMemory(const char* purpose) : purpose_(purpose) {}

  // So many bytes for each of `num_threads`. Throws NoMemory.
  void Reserve(int num_threads, size_t bytes);
  // Requires: reserved for it.
  std::byte* OfThread(int thread_idx) { return pieces_[static_cast<size_t>(thread_idx)].Reserve(0); }

 private:
  const char* purpose_;
  std::vector<ScratchMemory> pieces_;
};

}  // namespace headwise

#endif  // HEADWISE_BASE_SCRATCH_MEMORY_H_
