#include "base/scratch_memory.h"

#include <cstdint>
#include <new>

#include "base/huge_pages.h"
#include "base/no_memory.h"

namespace headwise {
namespace {

constexpr size_t kLineBytes = 64;
// From here on a whole huge page is worth it: so much in pages of 4 KiB is more of their addresses than a core keeps at
// hand.
constexpr size_t kMinHugeBytes = kHugePageBytes / 4;

}  // namespace

void ScratchMemory::Delete::operator()(std::byte* memory) const {
  ::operator delete[](memory, std::align_val_t{alignment});
}

std::byte* ScratchMemory::Reserve(size_t bytes) {
  if (bytes <= bytes_) return memory_.get();
  memory_.reset();
  bytes_ = 0;
  const bool is_huge = bytes >= kMinHugeBytes && bytes <= SIZE_MAX - kHugePageBytes;
  const size_t alignment = is_huge ? kHugePageBytes : kLineBytes;
  const size_t whole = is_huge ? WholeHugePages(bytes) : bytes;
  void* memory = ::operator new[](whole, std::align_val_t{alignment}, std::nothrow);
  if (memory == nullptr) throw NoMemory(bytes, purpose_);
  if (is_huge) AskForHugePages(memory, whole);
  memory_ = {static_cast<std::byte*>(memory), Delete{alignment}};
  bytes_ = whole;
  return memory_.get();
}

void ThreadScratchMemory::Reserve(int num_threads, size_t bytes) {
  while (pieces_.size() < static_cast<size_t>(num_threads)) pieces_.emplace_back(purpose_);
  for (int i = 0; i < num_threads; ++i) pieces_[static_cast<size_t>(i)].Reserve(bytes);
}

}  // namespace headwise
