// The root mean square of a row by a block of 256 threads, in one order wherever it is computed: a norm's bits are the
// same in a kernel of its own and on the way into a product.
#ifndef HEADWISE_BACKEND_CUDA_NORM_CUH_
#define HEADWISE_BACKEND_CUDA_NORM_CUH_

#include "backend/cuda/launch.cuh"

namespace headwise::cuda {

inline constexpr int kNormThreads = 256;
// Rows are summed in fours, a thread's one behind the other, up to this length; longer ones by AnyNormKernel alone.
inline constexpr int kNormQuads = 8;
inline constexpr int64_t kMaxNormDim = int64_t{4} * kNormQuads * kNormThreads;

// The same in all threads.
__device__ inline float SumOfBlock(float x) {
  __shared__ float sums[kNormThreads / kWarp];
  x = SumOfWarp(x);
  __syncthreads();  // sums of the call before are read
  if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp] = x;
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < kNormThreads / static_cast<int>(kWarp); ++i) sum += sums[i];
  return sum;
}

__device__ inline float AddSquares(float sum, const float4& x) {
  return fmaf(x.w, x.w, fmaf(x.z, x.z, fmaf(x.y, x.y, fmaf(x.x, x.x, sum))));
}
__device__ inline float InverseRoot(float sum_of_squares, int64_t dim, float eps) {
  return 1.0f / sqrtf(sum_of_squares / static_cast<float>(dim) + eps);
}
__device__ inline float4 Sum(const float4& a, const float4& b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}
__device__ inline float4 Scaled(const float4& x, float factor, const float4& weight) {
  return {__fmul_rn(__fmul_rn(x.x, factor), weight.x), __fmul_rn(__fmul_rn(x.y, factor), weight.y),
          __fmul_rn(__fmul_rn(x.z, factor), weight.z), __fmul_rn(__fmul_rn(x.w, factor), weight.w)};
}

}  // namespace headwise::cuda

#endif  // HEADWISE_BACKEND_CUDA_NORM_CUH_
