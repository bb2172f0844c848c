// A fixed set of threads that run numbered tasks. Made for many short parallel regions: workers spin for a while before
// they sleep, because one decoded token has dozens of regions of a few microseconds each.
//
// Each thread begins with a share of neighbouring tasks, which it runs in order, and then helps the others from the
// ends of theirs: tasks that read memory one behind the other give every core one long stream, which its prefetcher
// follows. Which thread runs a task is not fixed; determinism comes from the callers, who cut work into pieces that do
// not depend on the number of threads and let each piece write its own output.
#ifndef HEADWISE_BASE_THREAD_POOL_H_
#define HEADWISE_BASE_THREAD_POOL_H_

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace headwise {

class ThreadPool {
 public:
  // The caller's thread is one of the `num_threads`. Where the system grants fewer (a limit on processes, say), the
  // pool does with those: num_threads() tells. Requires: num_threads >= 1.
  explicit ThreadPool(int num_threads);
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool();

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls task(task_idx, thread_idx) for every task_idx in [0, num_tasks), and returns when all are done. thread_idx is
  // in [0, num_threads()) and unique among tasks that run at the same time: an index for scratch memory.
  // What a task throws (out of memory, in practice) is thrown here, once no task runs any more: the first of several.
  // Tasks that nobody had begun by then are left out; the pool can be used again.
  // Requires: called from one thread at a time, never from inside a task; num_tasks < 2^31.
  template <typename Task>
  void ParallelFor(int64_t num_tasks, const Task& task) {
    Run(num_tasks, &task, [](const void* context, int64_t task_idx, int thread_idx) {
      (*static_cast<const Task*>(context))(task_idx, thread_idx);
    });
  }

  // Which of num_tasks tasks, sorted by what they cost, the largest first, is to be number `idx` of a ParallelFor:
  // every thread's share begins with large ones and ends with small ones, so that nobody starts a long task when the
  // others are done. A permutation of [0, num_tasks).
  int64_t InTurns(int64_t idx, int64_t num_tasks) const;

 private:
  using TaskFunction = void (*)(const void* context, int64_t task_idx, int thread_idx);

  void Run(int64_t num_tasks, const void* context, TaskFunction function);
  // num_threads, how many were asked for, is passed on because workers_ still grows when the first of them begin.
  // Shares of threads that there are not stay empty.
  void WorkerLoop(int thread_idx, int num_threads);
  // Claims and runs tasks until none is left: those of its own share first.
  void RunTasks(int thread_idx, int num_threads);
  void RunTask(int64_t task_idx, int thread_idx);
  // Throws what a task threw, if any did. Nothing runs.
  void Rethrow();

  // The tasks of a share that nobody has claimed: first (32 bits) | end (32). One word, so that a late worker that
  // claims a task decides from what it claimed alone whether the task exists: a region cannot end while one of its
  // tasks is unfinished, and when it ends all shares are empty.
  struct alignas(64) Share {
    std::atomic<uint64_t> tasks{0};
  };
  std::unique_ptr<Share[]> shares_;  // of each thread
  std::atomic<int64_t> num_done_{0};
  std::atomic<uint32_t> wake_{0};  // changes with every region; what idle workers sleep on
  std::atomic<bool> stop_{false};
  std::atomic<bool> has_failed_{false};  // a task of this region threw; who sets it writes failure_
  std::exception_ptr failure_;
  const void* context_ = nullptr;
  TaskFunction function_ = nullptr;
  std::vector<std::thread> workers_;
};

}  // namespace headwise

#endif  // HEADWISE_BASE_THREAD_POOL_H_
