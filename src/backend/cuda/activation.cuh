// Activations of one number, wherever they are computed: in a kernel of their own and behind a product alike, bit for
// bit.
#ifndef HEADWISE_BACKEND_CUDA_ACTIVATION_CUH_
#define HEADWISE_BACKEND_CUDA_ACTIVATION_CUH_

namespace headwise::cuda {

__device__ inline float Silu(float x) {
  return x / (1.0f + expf(-x));
}
__device__ inline float Gelu(float x) {
  return 0.5f * x * (1.0f + erff(x * 0.70710678f));
}
__device__ inline float GeluTanh(float x) {
  return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
}
// In any unit that `cap` has too.
__device__ inline float SoftCapped(float x, float cap) {
  return cap * tanhf(x / cap);
}

}  // namespace headwise::cuda

#endif  // HEADWISE_BACKEND_CUDA_ACTIVATION_CUH_
