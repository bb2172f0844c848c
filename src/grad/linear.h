// y = x W^T + b with frozen weights, and the gradient to x. Weights keep their own dtype in memory; one matrix at a
// time is widened. Products are in Real, or, of float, in bf16 with sums in f32.
#ifndef HEADWISE_GRAD_LINEAR_H_
#define HEADWISE_GRAD_LINEAR_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "backend/cpu/kernels/kernels.h"
#include "backend/ops.h"
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

// Products of bf16 on the kernels of the cpu backend.
class BF16Products;

// Thread-safety: none.
template <typename Real>
class LinearRunner {
 public:
  // kF32: in Real. kBF16, of float alone: x, d_y and W are rounded to bf16, and their products summed in f32, by
  // `kernels` or, null, this machine's best; where those have no such products, or fewer rows than are worth it, they
  // are of f32.
  explicit LinearRunner(ThreadPool& pool, Compute compute = Compute::kF32, const cpu::KernelTable* kernels = nullptr);
  ~LinearRunner();

  // y [num_rows, M] = or += x [num_rows, K] W^T + b, W [M, K].
  void Forward(const LinearWeights& linear, const Real* x, int64_t num_rows, RowWrite write, Real* y);
  // d_x [num_rows, K] = or += d_y [num_rows, M] W.
  void Backward(const LinearWeights& linear, const Real* d_y, int64_t num_rows, RowWrite write, Real* d_x);

  int64_t num_widened() const { return static_cast<int64_t>(widened_.size()); }

 private:
  void Reserve(int64_t num_elements);
  const Real* Widen(const ConstTensorView& weight);
  const Real* WidenTransposed(const ConstTensorView& weight);

  ThreadPool* pool_;
  std::unique_ptr<BF16Products> bf16_;  // or null
  std::vector<Real> widened_;           // the matrix at hand, or, for the way back in bf16, its transpose
};

// Elements [begin, begin + count) of a tensor of any format, as it lies in a file; whole blocks.
template <typename Real>
void WidenElements(const ConstTensorView& tensor, int64_t begin, int64_t count, Real* out);

}  // namespace headwise

#endif  // HEADWISE_GRAD_LINEAR_H_
