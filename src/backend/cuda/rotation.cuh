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

// Four pairs, by the cosines and sines of the first two and of the others.
__device__ inline void RotateQuads(float4& low, float4& high, const float4& first, const float4& second) {
  const float2 pairs[] = {Rotated(low.x, high.x, {first.x, first.y}), Rotated(low.y, high.y, {first.z, first.w}),
                          Rotated(low.z, high.z, {second.x, second.y}), Rotated(low.w, high.w, {second.z, second.w})};
  low = {pairs[0].x, pairs[1].x, pairs[2].x, pairs[3].x};
  high = {pairs[0].y, pairs[1].y, pairs[2].y, pairs[3].y};
}

}  // namespace headwise::cuda

#endif  // HEADWISE_BACKEND_CUDA_ROTATION_CUH_
