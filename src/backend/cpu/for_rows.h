// Elementwise work of the cpu backend, spread over the pool by rows.
#ifndef HEADWISE_BACKEND_CPU_FOR_ROWS_H_
#define HEADWISE_BACKEND_CPU_FOR_ROWS_H_

#include <algorithm>
#include <cstdint>

#include "base/round_up.h"
#include "base/thread_pool.h"

namespace headwise::cpu {

// body(row) for every row, several to a task where they are short: so many elements are worth a thread.
template <typename Body>
void ForRows(int64_t num_rows, int64_t row_elements, ThreadPool& pool, const Body& body) {
  constexpr int64_t kTaskElements = 16 << 10;
  const int64_t rows_per_task = std::max<int64_t>(1, kTaskElements / std::max<int64_t>(1, row_elements));
  pool.ParallelFor(CeilDiv(num_rows, rows_per_task), [&](int64_t task_idx, int) {
    const int64_t end = std::min(num_rows, (task_idx + 1) * rows_per_task);
    for (int64_t row = task_idx * rows_per_task; row < end; ++row) body(row);
  });
}

}  // namespace headwise::cpu

#endif  // HEADWISE_BACKEND_CPU_FOR_ROWS_H_
