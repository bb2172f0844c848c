// Pieces of a softmax over rows of scores, for gradients that keep their tiles (grad/attention.h).
#ifndef HEADWISE_BACKEND_CPU_KERNELS_SOFTMAX_KERNELS_H_
#define HEADWISE_BACKEND_CPU_KERNELS_SOFTMAX_KERNELS_H_

#include <cstdint>

namespace headwise::cpu {

struct SoftmaxKernels {
  float (*max)(const float* x, int64_t n);  // Requires: n >= 1
  // x = e^(x - shift), for x at most a little above shift; 0 below e^-87. Returns the sum.
  float (*exp)(float* x, int64_t n, float shift);
  // g = p * (g - delta) * scale
  void (*gradient)(const float* p, float* g, int64_t n, float delta, float scale);
};

}  // namespace headwise::cpu

#endif  // HEADWISE_BACKEND_CPU_KERNELS_SOFTMAX_KERNELS_H_
