#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace headwise {
namespace {

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

}  // namespace
}  // namespace headwise
