// y = x W^T + b with frozen weights, and the gradient to x. Weights keep their own dtype in memory; one matrix at a
// time is widened.
#ifndef HEADWISE_GRAD_LINEAR_H_
#define HEADWISE_GRAD_LINEAR_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/thread_pool.h"
#include "grad/rows.h"
#include "model/model_weights.h"

namespace headwise {

// Runs body(begin, end) over runs of rows whose size does not depend on the number of threads.
template <typename Body>
void ForRows(ThreadPool& pool, int64_t num_rows, const Body& body) {
  constexpr int64_t kRows = 32;
  pool.ParallelFor((num_rows + kRows - 1) / kRows,
                   [&](int64_t task, int) { body(task * kRows, std::min((task + 1) * kRows, num_rows)); });
}

// One matrix [rows, columns] of the model, widened to Real. Thread-safety: none.
template <typename Real>
class LinearRunner {
 public:
  explicit LinearRunner(ThreadPool& pool) : pool_(&pool) {}

  // y [num_rows, M] = or += x [num_rows, K] W^T + b, W [M, K].
  void Forward(const LinearWeights& linear, const Real* x, int64_t num_rows, RowWrite write, Real* y);
  // d_x [num_rows, K] = or += d_y [num_rows, M] W.
  void Backward(const LinearWeights& linear, const Real* d_y, int64_t num_rows, RowWrite write, Real* d_x);

  int64_t num_widened() const { return static_cast<int64_t>(widened_.size()); }

 private:
  const Real* Widen(const ConstTensorView& weight);

  ThreadPool* pool_;
  std::vector<Real> widened_;
};

// Elements [begin, begin + count) of a tensor of any format, as it lies in a file; whole blocks.
template <typename Real>
void WidenElements(const ConstTensorView& tensor, int64_t begin, int64_t count, Real* out);

}  // namespace headwise

#endif  // HEADWISE_GRAD_LINEAR_H_
