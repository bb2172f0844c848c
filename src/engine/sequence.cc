#include "engine/sequence.h"

namespace headwise {

void KvMemory::Acquire() {
  std::unique_lock lock(mutex_);
  released_.wait(lock, [&] { return !is_held_; });
  is_held_ = true;
}

void KvMemory::FreeAndRelease() noexcept {
  while (true) {
    std::list<Freed> freed;
    {
      const std::lock_guard lock(mutex_);
      freed.swap(freed_);
      if (freed.empty()) {
        is_held_ = false;
        released_.notify_one();
        return;
      }
    }
    for (Freed& each : freed) {
      each.cache.reset();
      Reserve(-each.reserved_bytes);
    }
  }
}

void KvMemory::Free(std::list<Freed> freed) noexcept {
  {
    const std::lock_guard lock(mutex_);
    freed_.splice(freed_.end(), freed);
    if (is_held_) return;
    is_held_ = true;
  }
  FreeAndRelease();
}

}  // namespace headwise
