// Norms, rotations and activations of one instruction set, a row at a time.
#ifndef HEADWISE_BACKEND_CPU_KERNELS_ELEMENTWISE_KERNELS_H_
#define HEADWISE_BACKEND_CPU_KERNELS_ELEMENTWISE_KERNELS_H_

#include <cstdint>

namespace headwise::cpu {

struct NormRowArgs {
  const float* x;       // [n]
  const float* weight;  // [n]
  const float* bias;    // [n] or null
  float* out;           // [n], may be x
  int64_t n;
  float eps;
  bool subtract_mean;  // LayerNorm; else RMSNorm
  bool adds;           // out += ...
};

struct RopeRowArgs {
  const float* x;       // [D] one head of one token
  float* out;           // [D], may be x
  const float* angles;  // [half, 2] cos, sin
  int64_t half;         // R / 2
  int64_t dim;          // D
};

struct ElementwiseKernels {
  void (*norm_row)(const NormRowArgs& args);
  void (*rope_row)(const RopeRowArgs& args);
  void (*gated_silu)(const float* gate, float* x, int64_t n);  // x = silu(gate) * x
  void (*gated_gelu_tanh)(const float* gate, float* x, int64_t n);
  // x = (clamp(x, -limit, limit) + 1) * g * sigmoid(slope * g), g = min(gate, limit)
  void (*gated_silu_clamped)(const float* gate, float* x, int64_t n, float limit, float slope);
  void (*gelu)(float* x, int64_t n);  // exact: 0.5 x (1 + erf(x / sqrt 2))
  void (*gelu_tanh)(float* x, int64_t n);
  void (*scale_by_sigmoid)(float gate, float* x, int64_t n);  // x *= sigmoid(gate)
  void (*clamp)(float* x, int64_t n, float limit);
  void (*soft_cap)(float* x, int64_t n, float cap);                         // x = cap * tanh(x / cap)
  void (*add_scaled)(const float* x, float factor, float* sum, int64_t n);  // sum += factor * x
};

}  // namespace headwise::cpu

#endif  // HEADWISE_BACKEND_CPU_KERNELS_ELEMENTWISE_KERNELS_H_
