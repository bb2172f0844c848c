// Activations of the cpu backend, a row at a time: by themselves, or of products on their way out (MatMulJob).
#ifndef HEADWISE_BACKEND_CPU_ACTIVATION_H_
#define HEADWISE_BACKEND_CPU_ACTIVATION_H_

#include <cstdint>

#include "backend/cpu/kernels/elementwise_kernels.h"
#include "backend/ops.h"

namespace headwise::cpu {

struct Activation {
  const ElementwiseKernels& kernels;
  ActivateArgs::Kind kind;

  bool is_gated() const { return IsGated(kind); }
  // What ActivateArgs says of [n] elements; `gate` is null unless gated. The same bits in pieces, all but the last of
  // which are multiples of 16 elements.
  void Row(const float* gate, float* x, int64_t n) const;
};

}  // namespace headwise::cpu

#endif  // HEADWISE_BACKEND_CPU_ACTIVATION_H_
