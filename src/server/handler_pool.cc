#include "server/handler_pool.h"

#include <system_error>
#include <utility>

namespace headwise {

bool HandlerPool::Run(std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  if (is_finishing_) return false;
  if (num_idle_ <= tasks_.size() && threads_.size() < max_threads_) {
    try {
      threads_.emplace_back([this] { Loop(); });
    } catch (const std::system_error&) {
      // Those that there are take turns.
      if (threads_.empty()) return false;
    }
  }
  tasks_.push_back(std::move(task));
  changed_.notify_one();
  return true;
}

void HandlerPool::Finish() {
  std::vector<std::thread> threads;
  {
    const std::lock_guard lock(mutex_);
    is_finishing_ = true;
    threads.swap(threads_);
    changed_.notify_all();
  }
  for (std::thread& thread : threads) thread.join();
}

void HandlerPool::Loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    ++num_idle_;
    changed_.wait(lock, [&] { return !tasks_.empty() || is_finishing_; });
    --num_idle_;
    if (tasks_.empty()) return;
    {
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
    }
    lock.lock();
  }
}

}  // namespace headwise
