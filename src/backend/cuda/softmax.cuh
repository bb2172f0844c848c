// How a query's softmax ends, in every kernel of attention.
#ifndef HEADWISE_BACKEND_CUDA_SOFTMAX_CUH_
#define HEADWISE_BACKEND_CUDA_SOFTMAX_CUH_

#include "backend/cuda/launch.cuh"

namespace headwise::cuda {

// In one instruction; numbers below 2^-126 are zeros.
__device__ inline float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// A running maximum is raised where a score exceeds it by more: weights are up to 2^8 times its own then, for which
// 16-bit numbers have room, and most keys change nothing.
inline constexpr float kMaxSlack = 8.0f;

// Weights are 2^7 where a score is the running maximum, so that in 16 bits a million tokens beside one of a much larger
// weight, a sink, still count: f16 goes down to 2^-24, and up to the 2^15 of a score that is kMaxSlack above.
inline constexpr float kWeightBits = 7.0f;

// What outputs are multiplied with behind the last key, from the running maximum of scores in powers of two (the
// largest, or somewhat below it) and the sum of weights over it; the query head's sink logit joins here. `row`:
// of `p.lse`, which one of several threads writes.
template <typename Params>
__device__ inline float FactorOf(const Params& p, int64_t row, int q_head, float max, float sum, bool writes_lse) {
  float factor = 1.0f;
  if (p.sink_logits != nullptr) {
    const float logit = p.sink_logits[q_head] * kLog2E;
    const float larger = fmaxf(max, logit);
    factor = exp2f(max - larger);
    sum = sum * factor + exp2f(logit - larger);
    max = larger;
  }
  if (p.lse != nullptr && writes_lse) p.lse[row] = (max + log2f(sum)) * kLn2;
  return factor / sum;
}

}  // namespace headwise::cuda

#endif  // HEADWISE_BACKEND_CUDA_SOFTMAX_CUH_
