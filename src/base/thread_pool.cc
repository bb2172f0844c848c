#include "base/thread_pool.h"

#include "base/check.h"

namespace headwise {
namespace {

constexpr int kFieldBits = 24;
constexpr uint64_t kFieldMask = (uint64_t{1} << kFieldBits) - 1;

uint64_t EpochOf(uint64_t claim) {
  return claim >> (2 * kFieldBits);
}
uint64_t NumTasksOf(uint64_t claim) {
  return (claim >> kFieldBits) & kFieldMask;
}
uint64_t NextTaskOf(uint64_t claim) {
  return claim & kFieldMask;
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
  for (int i = 1; i < num_threads; ++i) workers_.emplace_back([this, i] { WorkerLoop(i); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_release);
  wake_.fetch_add(1, std::memory_order_release);
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::Run(int64_t num_tasks, const void* context, TaskFunction function) {
  HW_CHECK(num_tasks >= 0 && num_tasks < (int64_t{1} << (kFieldBits - 1)), "{} tasks", num_tasks);
  if (num_tasks <= 1 || workers_.empty()) {
    for (int64_t task_idx = 0; task_idx < num_tasks; ++task_idx) function(context, task_idx, 0);
    return;
  }
  context_ = context;
  function_ = function;
  num_done_.store(0, std::memory_order_relaxed);
  const uint64_t epoch = (EpochOf(claim_.load(std::memory_order_relaxed)) + 1) & 0xFFFF;
  claim_.store(epoch << (2 * kFieldBits) | static_cast<uint64_t>(num_tasks) << kFieldBits, std::memory_order_release);
  wake_.fetch_add(1, std::memory_order_release);
  wake_.notify_all();
  RunTasks(0);
  for (int spins = 0; num_done_.load(std::memory_order_acquire) < num_tasks; ++spins) {
    if (spins < kSpins) {
      Pause();
    } else {
      std::this_thread::yield();
    }
  }
}

void ThreadPool::RunTasks(int thread_idx) {
  for (;;) {
    const uint64_t claim = claim_.fetch_add(1, std::memory_order_acq_rel);
    if (NextTaskOf(claim) >= NumTasksOf(claim)) return;
    function_(context_, static_cast<int64_t>(NextTaskOf(claim)), thread_idx);
    num_done_.fetch_add(1, std::memory_order_release);
  }
}

void ThreadPool::WorkerLoop(int thread_idx) {
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
    RunTasks(thread_idx);
  }
}

}  // namespace headwise
