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

}  // namespace headwise::cpu

#endif  // HEADWISE_BACKEND_CPU_MATMUL_H_
