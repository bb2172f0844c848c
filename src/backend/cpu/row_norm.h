// Norms of the cpu backend, a row at a time: by themselves, or of x on its way into a product (MatMulJob).
#ifndef HEADWISE_BACKEND_CPU_ROW_NORM_H_
#define HEADWISE_BACKEND_CPU_ROW_NORM_H_

#include <cstdint>

#include "backend/cpu/kernels/elementwise_kernels.h"
#include "backend/ops.h"

namespace headwise::cpu {

struct RowNorm {
  const ElementwiseKernels& kernels;
  const NormArgs& args;

  // What NormArgs says of row `row`, in `out`, [E].
  void Row(int64_t row, float* out) const;
};

}  // namespace headwise::cpu

#endif  // HEADWISE_BACKEND_CPU_ROW_NORM_H_
