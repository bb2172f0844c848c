// Matrix products of the cpu backend: cuts the parts of one call into tasks and spreads them over the pool. Results do
// not depend on the number of threads, bit for bit.
#ifndef HEADWISE_BACKEND_CPU_MATMUL_H_
#define HEADWISE_BACKEND_CPU_MATMUL_H_

#include "backend/cpu/kernels/matmul_kernels.h"
#include "backend/cpu/matmul_input.h"
#include "backend/cpu/row_sums.h"
#include "backend/ops.h"
#include "base/thread_pool.h"

namespace headwise::cpu {

// Requires: Validate(args) passed.
void RunMatMul(const MatMulArgs& args, const MatMulKernels& kernels, ThreadPool& pool, MatMulScratch& scratch,
               RowSums sums = RowSums::kFastest);

// Which way a number of rows goes. Ranges of one job have one.
enum class RowsClass { kFew, kSome, kMany };
inline RowsClass RowsClassOf(int64_t num_rows) {
  if (num_rows <= kMaxFewRows) return RowsClass::kFew;
  return num_rows < kMinRegisterRows ? RowsClass::kSome : RowsClass::kMany;
}
// The same for parts with rows of their own: what Validate asks, but for the numbers of rows. Requires: the ranges are
// of one class, and begin with multiples of kTileRangeUnit rows unless they take the way of few.
// Of kFew that is not those in bf16 whose sums are to be alike.
void RunMatMulJob(const MatMulJob& job, const MatMulKernels& kernels, ThreadPool& pool, MatMulScratch& scratch,
                  RowSums sums);
// The same for `then` behind it, whose x is what comes out of `job`'s last part, which need not be written. Requires:
// neither has ranges or gathered rows, `then` has no norm, and where `job` has an activation its parts are one task's.
void RunMatMulJobs(const MatMulJob& job, const MatMulJob& then, const MatMulKernels& kernels, ThreadPool& pool,
                   MatMulScratch& scratch, RowSums sums);

}  // namespace headwise::cpu

#endif  // HEADWISE_BACKEND_CPU_MATMUL_H_
