// Matrix products of the cpu backend: cuts the parts of one call into tasks and spreads them over the pool. Results do
// not depend on the number of threads, bit for bit.
#ifndef HEADWISE_BACKEND_CPU_MATMUL_H_
#define HEADWISE_BACKEND_CPU_MATMUL_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "backend/cpu/kernels/matmul_kernels.h"
#include "backend/ops.h"
#include "base/thread_pool.h"

namespace headwise::cpu {

// Outputs [first_output, first_output + num_outputs) of a part, for rows [first_row, first_row + num_rows) of x.
struct MatMulTask {
  size_t part_idx = 0;
  int64_t first_output = 0;
  int64_t num_outputs = 0;
  int64_t first_row = 0;
  int64_t num_rows = 0;
};

// Memory that matrix products keep between calls; grows to what a call needs.
class MatMulScratch {
 public:
  // kTileScratchBytes for each of `num_threads`.
  void ReserveTiles(int num_threads);
  float* TileOfThread(int thread_idx) { return tiles_[static_cast<size_t>(thread_idx)].get(); }
  // Room for that many floats, 64-byte aligned, shared by all threads.
  float* Shared(size_t floats);
  std::vector<MatMulTask>& tasks() { return tasks_; }

 private:
  struct AlignedDelete {
    void operator()(float* memory) const;
  };
  using Block = std::unique_ptr<float[], AlignedDelete>;
  static Block NewBlock(size_t bytes);

  std::vector<Block> tiles_;
  Block shared_;
  size_t shared_bytes_ = 0;
  std::vector<MatMulTask> tasks_;
};

// Requires: Validate(args) passed.
void RunMatMul(const MatMulArgs& args, const MatMulKernels& kernels, ThreadPool& pool, MatMulScratch& scratch);

}  // namespace headwise::cpu

#endif  // HEADWISE_BACKEND_CPU_MATMUL_H_
