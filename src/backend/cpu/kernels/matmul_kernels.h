// Matrix products of one instruction set. y = x W^T (+ bias) (+ y); weights are row-major as in the file, never copied.
#ifndef HEADWISE_BACKEND_CPU_KERNELS_MATMUL_KERNELS_H_
#define HEADWISE_BACKEND_CPU_KERNELS_MATMUL_KERNELS_H_

#include <cstdint>

namespace headwise::cpu {

enum class WeightType : uint8_t { kF32, kF16, kBF16 };

// At most this many rows of x go through `few_rows`: it reads each weight once and is bound by memory.
inline constexpr int64_t kMaxFewRows = 8;

struct FewRowsArgs {
  const float* x;      // [num_rows, K]
  int64_t num_rows;    // 1 .. kMaxFewRows
  int64_t x_stride;    // floats
  const void* weight;  // first of num_outputs rows of K
  WeightType type;
  int64_t depth;        // K
  int64_t num_outputs;  // outputs of this piece
  const float* bias;    // [num_outputs] or null
  float* out;           // [num_rows, out_stride], first output of this piece
  int64_t out_stride;   // floats
  bool add;             // out += instead of out =
};

struct MatMulKernels {
  // Row r of the result does not depend on num_rows, bit for bit: a token decoded in a batch equals it alone.
  void (*few_rows)(const FewRowsArgs& args);
};

}  // namespace headwise::cpu

#endif  // HEADWISE_BACKEND_CPU_KERNELS_MATMUL_KERNELS_H_
