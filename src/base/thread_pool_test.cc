#include "base/thread_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace headwise {
namespace {

using ::testing::ElementsAre;

TEST(ThreadPool, RunsEveryTaskOnceInEveryRegion) {
  for (const int num_threads : {1, 2, 5}) {
    ThreadPool pool(num_threads);
    for (int region = 0; region < 2000; ++region) {
      const int num_tasks = region % 7;
      std::vector<int> runs(static_cast<size_t>(num_tasks), 0);
      pool.ParallelFor(num_tasks, [&](int64_t task_idx, int) { ++runs[static_cast<size_t>(task_idx)]; });
      for (const int n : runs) ASSERT_EQ(n, 1) << "region " << region;
    }
  }
}

TEST(ThreadPool, ThreadIndexIsUniqueAmongRunningTasks) {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> in_use(4);
  std::atomic<bool> clash{false};
  pool.ParallelFor(1000, [&](int64_t, int thread_idx) {
    if (in_use[static_cast<size_t>(thread_idx)].fetch_add(1) != 0) clash = true;
    in_use[static_cast<size_t>(thread_idx)].fetch_sub(1);
  });
  EXPECT_FALSE(clash);
}

TEST(ThreadPool, ThreadsBeginWithSharesOfNeighbours) {
  ThreadPool pool(3);
  std::atomic<int> num_begun{0};
  std::vector<int64_t> first_task(3, -1);
  pool.ParallelFor(32, [&](int64_t task_idx, int thread_idx) {
    int64_t& first = first_task[static_cast<size_t>(thread_idx)];
    if (first >= 0) return;
    first = task_idx;
    // Until every thread is here, none can help another.
    for (++num_begun; num_begun < 3;) std::this_thread::yield();
  });
  EXPECT_THAT(first_task, ElementsAre(0, 10, 21));
}

TEST(ThreadPool, TasksAreDealtInTurns) {
  for (const int num_threads : {1, 2, 3, 5}) {
    ThreadPool pool(num_threads);
    for (int64_t num_tasks = 0; num_tasks < 14; ++num_tasks) {
      std::vector<int64_t> tasks;
      for (int64_t i = 0; i < num_tasks; ++i) tasks.push_back(pool.InTurns(i, num_tasks));
      std::ranges::sort(tasks);
      for (int64_t i = 0; i < num_tasks; ++i) EXPECT_EQ(tasks[static_cast<size_t>(i)], i);
    }
  }
  ThreadPool pool(3);
  std::vector<int64_t> tasks;
  for (int64_t i = 0; i < 8; ++i) tasks.push_back(pool.InTurns(i, 8));
  EXPECT_THAT(tasks, ElementsAre(0, 3, 6, 1, 4, 7, 2, 5));
}

TEST(ThreadPool, WhoIsDoneHelpsTheOthersFromTheEndsOfTheirShares) {
  ThreadPool pool(2);
  std::atomic<bool> caller_is_busy{false};
  std::atomic<int> num_done{0};
  std::vector<int64_t> order;  // in which the worker runs tasks
  pool.ParallelFor(20, [&](int64_t task_idx, int thread_idx) {
    if (thread_idx == 1) order.push_back(task_idx);
    if (thread_idx == 0) caller_is_busy = true;
    // The caller's first task is the first to begin and the last to end, so the worker has all others.
    while (!caller_is_busy) std::this_thread::yield();
    while (thread_idx == 0 && num_done < 19) std::this_thread::yield();
    ++num_done;
  });
  EXPECT_THAT(order, ElementsAre(10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 9, 8, 7, 6, 5, 4, 3, 2, 1));
}

}  // namespace
}  // namespace headwise
