#include "engine/sequence.h"

namespace headwise {

void KvMemory::Acquire() {
  std::unique_lock lock(mutex_);
  released_.wait(lock, [&] { return !is_held_; });
  is_held_ = true;
}

void KvMemory::FreeAndRelease() {
  while (true) {
    std::vector<Freed> freed;
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

void KvMemory::Free(std::unique_ptr<KvCache> cache, int64_t num_reserved) {
  {
    const std::lock_guard lock(mutex_);
    freed_.push_back({std::move(cache), num_reserved});
    if (is_held_) return;
    is_held_ = true;
  }
  FreeAndRelease();
}

}  // namespace headwise
