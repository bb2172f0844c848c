#include "base/thread_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <string>
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

// Of the worker, of the caller, of both: the caller gets it, and the pool lives on.
TEST(ThreadPool, WhatATaskThrowsIsThrownToTheCaller) {
  ThreadPool pool(2);
  for (int region = 0; region < 200; ++region) {
    std::atomic<int> num_begun{0};
    std::string caught;
    try {
      pool.ParallelFor(2, [&](int64_t, int thread_idx) {
        for (++num_begun; num_begun < 2;) std::this_thread::yield();  // so that each thread has one task
        if (region % 3 != thread_idx) throw std::runtime_error("task");
      });
    } catch (const std::runtime_error& error) {
      caught = error.what();
    }
    ASSERT_EQ(caught, "task") << "region " << region;
    std::atomic<int> num_done{0};
    pool.ParallelFor(10, [&](int64_t, int) { ++num_done; });
    ASSERT_EQ(num_done, 10) << "region " << region;
  }
}

// As under a limit on processes: no memory for a stack is the same to a caller, and also holds for root.
class NoMoreThreads {
 public:
  NoMoreThreads() {
    EXPECT_EQ(pthread_getattr_default_np(&before_), 0);
    pthread_attr_t huge;
    EXPECT_EQ(pthread_attr_init(&huge), 0);
    EXPECT_EQ(pthread_attr_setstacksize(&huge, size_t{1} << 46), 0);
    EXPECT_EQ(pthread_setattr_default_np(&huge), 0);
    pthread_attr_destroy(&huge);
  }
  NoMoreThreads(const NoMoreThreads&) = delete;
  NoMoreThreads& operator=(const NoMoreThreads&) = delete;
  ~NoMoreThreads() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }

 private:
  pthread_attr_t before_;
};

TEST(ThreadPool, DoesWithTheThreadsThatTheSystemGrants) {
  const NoMoreThreads none;
  ThreadPool pool(4);
  EXPECT_EQ(pool.num_threads(), 1);
  std::vector<int> runs(100, 0);
  pool.ParallelFor(100, [&](int64_t task_idx, int thread_idx) {
    EXPECT_EQ(thread_idx, 0);
    ++runs[static_cast<size_t>(task_idx)];
  });
  for (const int n : runs) EXPECT_EQ(n, 1);
}

}  // namespace
}  // namespace headwise
