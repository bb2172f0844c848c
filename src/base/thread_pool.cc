#include "base/thread_pool.h"

#include <new>
#include <system_error>
#include <utility>

#include "base/check.h"

namespace headwise {
namespace {

uint64_t TasksOf(int64_t first, int64_t end) {
  return static_cast<uint64_t>(first) << 32 | static_cast<uint64_t>(end);
}
int64_t FirstOf(uint64_t tasks) {
  return static_cast<int64_t>(tasks >> 32);
}
int64_t EndOf(uint64_t tasks) {
  return static_cast<int64_t>(tasks & 0xFFFFFFFFu);
}

// About 50 microseconds: longer than the serial stretches between two regions of a decode step, short enough that an
// idle engine does not keep the cores busy.
constexpr int kSpins = 2000;

void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  HW_CHECK(num_threads >= 1, "{} threads", num_threads);
  shares_ = std::make_unique<Share[]>(static_cast<size_t>(num_threads));
  workers_.reserve(static_cast<size_t>(num_threads - 1));
  try {
    for (int i = 1; i < num_threads; ++i) workers_.emplace_back([this, i, num_threads] { WorkerLoop(i, num_threads); });
  } catch (const std::system_error&) {  // a limit on threads or on memory: those that run do the work
  } catch (const std::bad_alloc&) {
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_release);
  wake_.fetch_add(1, std::memory_order_release);
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::Run(int64_t num_tasks, const void* context, TaskFunction function) {
  HW_CHECK(num_tasks >= 0 && num_tasks < (int64_t{1} << 31), "{} tasks", num_tasks);
  if (num_tasks <= 1 || workers_.empty()) {
    for (int64_t task_idx = 0; task_idx < num_tasks; ++task_idx) function(context, task_idx, 0);
    return;
  }
  context_ = context;
  function_ = function;
  num_done_.store(0, std::memory_order_relaxed);
  for (int i = 0; i < num_threads(); ++i) {
    const uint64_t tasks = TasksOf(i * num_tasks / num_threads(), (i + 1) * num_tasks / num_threads());
    shares_[static_cast<size_t>(i)].tasks.store(tasks, std::memory_order_release);
  }
  wake_.fetch_add(1, std::memory_order_release);
  wake_.notify_all();
  RunTasks(0, num_threads());
  for (int spins = 0; num_done_.load(std::memory_order_acquire) < num_tasks; ++spins) {
    if (spins < kSpins) {
      Pause();
    } else {
      std::this_thread::yield();
    }
  }
  if (has_failed_.load(std::memory_order_relaxed)) Rethrow();
}

void ThreadPool::Rethrow() {
  has_failed_.store(false, std::memory_order_relaxed);
  std::rethrow_exception(std::exchange(failure_, nullptr));
}

int64_t ThreadPool::InTurns(int64_t idx, int64_t num_tasks) const {
  // Like cards: the first `num_longer` hands have one more.
  const int64_t hand = num_tasks / num_threads();
  const int64_t num_longer = num_tasks % num_threads();
  const int64_t in_longer = num_longer * (hand + 1);
  if (idx < in_longer) return idx / (hand + 1) + idx % (hand + 1) * num_threads();
  return num_longer + (idx - in_longer) / hand + (idx - in_longer) % hand * num_threads();
}

void ThreadPool::RunTask(int64_t task_idx, int thread_idx) {
  if (!has_failed_.load(std::memory_order_relaxed)) {
    try {
      function_(context_, task_idx, thread_idx);
    } catch (...) {
      if (!has_failed_.exchange(true, std::memory_order_relaxed)) failure_ = std::current_exception();
    }
  }
  // Releases failure_ as well: the caller reads it only when every task is counted.
  num_done_.fetch_add(1, std::memory_order_release);
}

void ThreadPool::RunTasks(int thread_idx, int num_threads) {
  std::atomic<uint64_t>& own = shares_[static_cast<size_t>(thread_idx)].tasks;
  for (;;) {
    const uint64_t tasks = own.fetch_add(TasksOf(1, 0), std::memory_order_acq_rel);
    if (FirstOf(tasks) >= EndOf(tasks)) break;
    RunTask(FirstOf(tasks), thread_idx);
  }
  for (int i = 1; i < num_threads; ++i) {
    std::atomic<uint64_t>& other = shares_[static_cast<size_t>((thread_idx + i) % num_threads)].tasks;
    uint64_t tasks = other.load(std::memory_order_acquire);
    while (FirstOf(tasks) < EndOf(tasks)) {
      if (!other.compare_exchange_weak(tasks, tasks - 1, std::memory_order_acq_rel, std::memory_order_acquire))
        continue;
      RunTask(EndOf(tasks) - 1, thread_idx);
      tasks = other.load(std::memory_order_acquire);
    }
  }
}

void ThreadPool::WorkerLoop(int thread_idx, int num_threads) {
  uint32_t seen = 0;
  for (;;) {
    uint32_t wake = wake_.load(std::memory_order_acquire);
    for (int spins = 0; wake == seen && spins < kSpins; ++spins) {
      Pause();
      wake = wake_.load(std::memory_order_acquire);
    }
    if (wake == seen) {
      wake_.wait(seen, std::memory_order_acquire);
      continue;
    }
    seen = wake;
    if (stop_.load(std::memory_order_acquire)) return;
    RunTasks(thread_idx, num_threads);
  }
}

}  // namespace headwise
