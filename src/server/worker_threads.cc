#include "server/worker_threads.h"

#include <utility>

namespace headwise {

WorkerThreads::WorkerThreads(int num_threads) {
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { Loop(); });
}

WorkerThreads::~WorkerThreads() {
  Stop();
}

bool WorkerThreads::Post(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  if (is_stopped_) return false;
  work_.push_back(std::move(work));
  changed_.notify_one();
  return true;
}

int64_t WorkerThreads::num_waiting() {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(work_.size());
}

void WorkerThreads::Stop() {
  std::deque<std::function<void()>> dropped;
  {
    const std::lock_guard lock(mutex_);
    is_stopped_ = true;
    dropped.swap(work_);
    changed_.notify_all();
  }
  const std::lock_guard lock(join_mutex_);
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void WorkerThreads::Loop() {
  while (true) {
    std::function<void()> work;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return is_stopped_ || !work_.empty(); });
      if (is_stopped_) return;
      work = std::move(work_.front());
      work_.pop_front();
    }
    work();
  }
}

}  // namespace headwise
