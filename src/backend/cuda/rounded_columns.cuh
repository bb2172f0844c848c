// x of a product of few rows as it is multiplied (matmul_few_rows.cu), left by whoever makes x: so the product has no
// kernel between it and that one.
#ifndef HEADWISE_BACKEND_CUDA_ROUNDED_COLUMNS_CUH_
#define HEADWISE_BACKEND_CUDA_ROUNDED_COLUMNS_CUH_

#include <cuda_bf16.h>

#include <cstdint>

#include "backend/cuda/async_copy.cuh"

namespace headwise::cuda {

// Four numbers rounded to bf16; what is left of them stays in x.
__device__ inline uint2 TakeRounded(float4& x) {
  using Bf16 = __nv_bfloat16;
  const float4 rounded = {Round<Bf16>(x.x), Round<Bf16>(x.y), Round<Bf16>(x.z), Round<Bf16>(x.w)};
  x = {x.x - rounded.x, x.y - rounded.y, x.z - rounded.z, x.w - rounded.w};
  return {Pack<Bf16>(rounded.x, rounded.y), Pack<Bf16>(rounded.z, rounded.w)};
}

// Rows as rounded to bf16, then what rounding left of them, rounded, and so on.
struct RoundedColumns {
  __nv_bfloat16* data;  // [num_parts, T, K], or null: nobody wants them
  int num_parts;
  int64_t part_numbers;  // T K

  // Number `at` of [T, K].
  __device__ void Store(int64_t at, float x) const {
    __nv_bfloat16* to = data + at;
#pragma unroll 1
    for (int part = 0; part < num_parts; ++part, to += part_numbers) {
      *to = __float2bfloat16_rn(x);
      x -= Round<__nv_bfloat16>(x);
    }
  }
  // Numbers 4 quad to 4 quad + 3.
  __device__ void StoreQuad(int64_t quad, float4 x) const {
#pragma unroll 1
    for (int part = 0; part < num_parts; ++part) {
      reinterpret_cast<uint2*>(data + part * part_numbers)[quad] = TakeRounded(x);
    }
  }
};

}  // namespace headwise::cuda

#endif  // HEADWISE_BACKEND_CUDA_ROUNDED_COLUMNS_CUH_
