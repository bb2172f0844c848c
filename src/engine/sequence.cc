#include "engine/sequence.h"

namespace headwise {

void KvMemory::Acquire() {
  std::unique_lock lock(mutex_);
  released_.wait(lock, [&] { return !is_held_; });
  is_held_ = true;
}

void KvMemory::FreeAndRelease() noexcept {
  bool has_freed = false;
  std::shared_ptr<const std::function<void()>> on_freed;
  while (true) {
    std::list<Freed> freed;
    {
      const std::lock_guard lock(mutex_);
      freed.swap(freed_);
      if (freed.empty()) {
        is_held_ = false;
        released_.notify_one();
        on_freed = on_freed_;
        break;
      }
    }
    for (Freed& each : freed) {
      each.cache.reset();
      each.saved.reset();
      Reserve(-each.reserved_bytes);
      host_bytes -= each.host_bytes;
    }
    has_freed = true;
  }
  if (has_freed && on_freed != nullptr) (*on_freed)();
}

void KvMemory::OnFreed(std::function<void()> on_freed) {
  auto shared = std::make_shared<const std::function<void()>>(std::move(on_freed));
  const std::lock_guard lock(mutex_);
  on_freed_ = std::move(shared);
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
