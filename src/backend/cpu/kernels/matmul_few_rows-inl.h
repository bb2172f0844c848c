// Products of a few rows of x, as in decoding: dot products along K, each weight read once for all rows. Memory is the
// limit, so x stays f32 whatever the caller would allow.
#ifndef HEADWISE_BACKEND_CPU_KERNELS_MATMUL_FEW_ROWS_INL_H_
#define HEADWISE_BACKEND_CPU_KERNELS_MATMUL_FEW_ROWS_INL_H_

#include "backend/cpu/kernels/matmul_load-inl.h"

namespace headwise::cpu::HW_ISA {
namespace {

// Outputs computed together for so many rows of x. Every (row, output) has one accumulator and one order of additions,
// whatever its neighbours are; four independent chains hide the latency of a fused multiply-add well enough for weights
// that come from memory. Products of the two stay within the 32 (16) registers, with room for operands.
constexpr int64_t OutputsTogether(int64_t num_rows) {
  if (kLanes == 16) return num_rows <= 4 ? 4 : 3;
  return num_rows <= 2 ? 4 : num_rows <= 3 ? 3 : num_rows <= 6 ? 2 : 1;
}

// How far ahead of the reads to ask for weights, in bytes: farther than the hardware looks at the start of a row.
constexpr int64_t kPrefetchBytes = 2048;

struct XTails {
  alignas(64) float data[kMaxFewRows][kLanes];
};

template <WeightType kType, int64_t kRows, int64_t kOutputs>
HWY_INLINE void DotProducts(const FewRowsArgs& args, const XTails& x_tails, int64_t output) {
  using T = Element<kType>;
  const T* weights[kOutputs];
  VF sum[kOutputs][kRows];
  HW_UNROLL
  for (int64_t o = 0; o < kOutputs; ++o) {
    weights[o] = static_cast<const T*>(args.weight) + (output + o) * args.depth;
    HW_UNROLL
    for (int64_t r = 0; r < kRows; ++r) sum[o][r] = hn::Zero(kDF);
  }
  int64_t k = 0;
  for (; k + kLanes <= args.depth; k += kLanes) {
    VF w[kOutputs];
    HW_UNROLL
    for (int64_t o = 0; o < kOutputs; ++o) {
      w[o] = LoadF32<kType>(weights[o] + k);
      hwy::Prefetch(reinterpret_cast<const char*>(weights[o] + k) + kPrefetchBytes);
    }
    HW_UNROLL
    for (int64_t r = 0; r < kRows; ++r) {
      const VF x = hn::LoadU(kDF, args.x + r * args.x_stride + k);
      HW_UNROLL
      for (int64_t o = 0; o < kOutputs; ++o) sum[o][r] = hn::MulAdd(w[o], x, sum[o][r]);
    }
  }
  if (k < args.depth) {
    HW_UNROLL
    for (int64_t o = 0; o < kOutputs; ++o) {
      const Tail<T, kLanes> tail(weights[o] + k, args.depth - k);
      const VF w = LoadF32<kType>(tail.data);
      HW_UNROLL
      for (int64_t r = 0; r < kRows; ++r) sum[o][r] = hn::MulAdd(w, hn::Load(kDF, x_tails.data[r]), sum[o][r]);
    }
  }
  HW_UNROLL
  for (int64_t o = 0; o < kOutputs; ++o) {
    const float bias = args.bias != nullptr ? args.bias[output + o] : 0.0f;
    HW_UNROLL
    for (int64_t r = 0; r < kRows; ++r) {
      float* out = args.out + r * args.out_stride + output + o;
      const float value = hn::GetLane(hn::SumOfLanes(kDF, sum[o][r])) + bias;
      *out = args.add ? *out + value : value;
    }
  }
}

template <WeightType kType, int64_t kRows>
void FewRowsOf(const FewRowsArgs& args) {
  XTails x_tails;
  const int64_t tail = args.depth % kLanes;
  for (int64_t r = 0; r < kRows && tail > 0; ++r) {
    const float* from = args.x + r * args.x_stride + args.depth - tail;
    for (int64_t i = 0; i < kLanes; ++i) x_tails.data[r][i] = i < tail ? from[i] : 0.0f;
  }
  constexpr int64_t kOutputs = OutputsTogether(kRows);
  int64_t output = 0;
  for (; output + kOutputs <= args.num_outputs; output += kOutputs) {
    DotProducts<kType, kRows, kOutputs>(args, x_tails, output);
  }
  for (; output < args.num_outputs; ++output) DotProducts<kType, kRows, 1>(args, x_tails, output);
}

template <WeightType kType>
constexpr void (*kFewRowsOf[kMaxFewRows])(const FewRowsArgs&) = {
    FewRowsOf<kType, 1>, FewRowsOf<kType, 2>, FewRowsOf<kType, 3>, FewRowsOf<kType, 4>,
    FewRowsOf<kType, 5>, FewRowsOf<kType, 6>, FewRowsOf<kType, 7>, FewRowsOf<kType, 8>};

}  // namespace
}  // namespace headwise::cpu::HW_ISA

#endif  // HEADWISE_BACKEND_CPU_KERNELS_MATMUL_FEW_ROWS_INL_H_
