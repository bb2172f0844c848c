// Loops that measure what one core of this machine can do at most; `bench` states every figure as a share of them.
#ifndef HEADWISE_BACKEND_CPU_KERNELS_PEAK_KERNELS_H_
#define HEADWISE_BACKEND_CPU_KERNELS_PEAK_KERNELS_H_

#include <cstdint>

namespace headwise::cpu {

// The compute loops touch no memory but `sink` [1], which receives a number that depends on every operation, so that
// none is left out. They return the operations done; a multiply-add counts as two.
struct PeakKernels {
  double (*f32_multiply_add)(int64_t num_iterations, float* sink);
  // Pairs of bf16, summed in f32: on tile registers where there are some. Without such an instruction: the emulation
  // that the other kernels use.
  double (*bf16_dot)(int64_t num_iterations, float* sink);
  // Four bytes, unsigned by signed, summed in 32 bits; the same.
  double (*int8_dot)(int64_t num_iterations, float* sink);
  // The same on tile registers; does nothing where there are none.
  double (*int8_tiles)(int64_t num_iterations, float* sink);
  // Sum of x [n]: reads every byte once, in order.
  float (*read_sum)(const float* x, int64_t n);
};

}  // namespace headwise::cpu

#endif  // HEADWISE_BACKEND_CPU_KERNELS_PEAK_KERNELS_H_
