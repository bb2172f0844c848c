// Rotary positions [RoFormer §3.2.2]: pairs of numbers, half of the rotated dimensions apart. One way, so that bits are
// the same whichever kernel rotates.
#ifndef HEADWISE_BACKEND_CUDA_ROTATION_CUH_
#define HEADWISE_BACKEND_CUDA_ROTATION_CUH_

#include "backend/cuda/launch.cuh"

namespace headwise::cuda {

// The pair (x, y), and a cosine with its sine.
__device__ inline float2 Rotated(float x, float y, float2 angle) {
  return {fmaf(x, angle.x, -__fmul_rn(y, angle.y)), fmaf(y, angle.x, __fmul_rn(x, angle.y))};
}

}  // namespace headwise::cuda

#endif  // HEADWISE_BACKEND_CUDA_ROTATION_CUH_
