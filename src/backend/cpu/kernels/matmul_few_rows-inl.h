// Products of a few rows of x, as in decoding: dot products along K, each weight read once for all rows. Memory is the
// limit, so x stays f32 whatever the caller would allow.
#ifndef HEADWISE_BACKEND_CPU_KERNELS_MATMUL_FEW_ROWS_INL_H_
#define HEADWISE_BACKEND_CPU_KERNELS_MATMUL_FEW_ROWS_INL_H_

#include "backend/cpu/kernels/matmul_load-inl.h"

namespace headwise::cpu::HW_ISA {
namespace {

// Rows of x and outputs computed together. Every (row, output) has one accumulator and one order of additions, whatever
// its neighbours are; four independent chains hide the latency of a fused multiply-add well enough for weights that
// come from memory. Accumulators stay within the 32 (16) registers, with room for operands; with 16, more than 4 rows
// take a second pass over weights that are still in the cache.
constexpr int64_t kRowsTogether = kLanes == 16 ? kMaxFewRows : 4;
constexpr int64_t OutputsTogether(int64_t num_rows) {
  if (kLanes == 16) return num_rows <= 4 ? 4 : 3;
  return num_rows <= 2 ? 4 : num_rows <= 3 || kLanes == 8 ? 3 : 2;
}

// The products of one block of K, kFewRowsBlock elements.
template <WeightType kType, int64_t kRows, int64_t kOutputs>
HWY_INLINE void AddBlock(const Element<kType>* const (&weights)[kOutputs], const float* x, VF (&sum)[kOutputs][kRows]) {
  HW_UNROLL
  for (int64_t i = 0; i < kFewRowsBlock; i += kLanes) {
    VF w[kOutputs];
    HW_UNROLL
    for (int64_t o = 0; o < kOutputs; ++o) w[o] = LoadF32<kType>(weights[o] + i);
    HW_UNROLL
    for (int64_t r = 0; r < kRows; ++r) {
      VF x_vec = hn::Load(kDF, x + r * kFewRowsBlock + i);
      KeepInRegister(x_vec);
      HW_UNROLL
      for (int64_t o = 0; o < kOutputs; ++o) sum[o][r] = hn::MulAdd(w[o], x_vec, sum[o][r]);
    }
  }
}

// kOutputs rows of W are read side by side, and the bytes at `ahead`, the next rows of W, are asked for one after the
// other: memory sees a single stream, and the interleaved reads find it in the cache.
template <WeightType kType, int64_t kRows, int64_t kOutputs>
HWY_INLINE void DotProducts(const FewRowsArgs& args, int64_t first_row, int64_t output, const char* ahead) {
  using T = Element<kType>;
  constexpr int64_t kBlockBytes = kFewRowsBlock * static_cast<int64_t>(sizeof(T));
  const T* weights[kOutputs];
  VF sum[kOutputs][kRows];
  HW_UNROLL
  for (int64_t o = 0; o < kOutputs; ++o) {
    weights[o] = static_cast<const T*>(args.weight) + (output + o) * args.depth;
    HW_UNROLL
    for (int64_t r = 0; r < kRows; ++r) sum[o][r] = hn::Zero(kDF);
  }
  const float* x = args.x + first_row * kFewRowsBlock;
  int64_t k = 0;
  for (; k + kFewRowsBlock <= args.depth; k += kFewRowsBlock) {
    HW_UNROLL
    for (int64_t line = 0; line < kOutputs * kBlockBytes; line += 64) PrefetchToL2(ahead + line);
    ahead += kOutputs * kBlockBytes;
    AddBlock<kType, kRows, kOutputs>(weights, x, sum);
    HW_UNROLL
    for (int64_t o = 0; o < kOutputs; ++o) weights[o] += kFewRowsBlock;
    x += args.num_rows * kFewRowsBlock;
  }
  if (k < args.depth) {
    alignas(64) T tails[kOutputs][kFewRowsBlock];
    HW_UNROLL
    for (int64_t o = 0; o < kOutputs; ++o) {
      for (int64_t i = 0; i < kFewRowsBlock; ++i) tails[o][i] = k + i < args.depth ? weights[o][i] : T{0};
      weights[o] = tails[o];
    }
    AddBlock<kType, kRows, kOutputs>(weights, x, sum);
  }
  HW_UNROLL
  for (int64_t o = 0; o < kOutputs; ++o) {
    const float bias = args.bias != nullptr ? args.bias[output + o] : 0.0f;
    HW_UNROLL
    for (int64_t r = 0; r < kRows; ++r) {
      float* out = args.out + (first_row + r) * args.out_stride + output + o;
      const float value = hn::GetLane(hn::SumOfLanes(kDF, sum[o][r])) + bias;
      *out = args.add ? *out + value : value;
    }
  }
}

template <WeightType kType, int64_t kRows, int64_t kOutputs>
HWY_INLINE void AllRows(const FewRowsArgs& args, int64_t output, const char* ahead) {
  constexpr int64_t kFirst = kRows <= kRowsTogether ? kRows : (kRows + 1) / 2;
  DotProducts<kType, kFirst, kOutputs>(args, 0, output, ahead);
  if constexpr (kFirst < kRows) DotProducts<kType, kRows - kFirst, kOutputs>(args, kFirst, output, ahead);
}

template <WeightType kType, int64_t kRows>
void FewRowsOf(const FewRowsArgs& args) {
  constexpr int64_t kOutputs = OutputsTogether(kRows <= kRowsTogether ? kRows : (kRows + 1) / 2);
  const int64_t row_bytes = args.depth * static_cast<int64_t>(sizeof(Element<kType>));
  const auto* weight = static_cast<const char*>(args.weight);
  int64_t output = 0;
  for (; output + kOutputs <= args.num_outputs; output += kOutputs) {
    // Behind the piece lies, most often, what this thread reads next.
    AllRows<kType, kRows, kOutputs>(args, output, weight + (output + kOutputs) * row_bytes);
  }
  for (; output < args.num_outputs; ++output) AllRows<kType, kRows, 1>(args, output, weight + output * row_bytes);
}

template <WeightType kType>
constexpr void (*kFewRowsOf[kMaxFewRows])(const FewRowsArgs&) = {
    FewRowsOf<kType, 1>, FewRowsOf<kType, 2>, FewRowsOf<kType, 3>, FewRowsOf<kType, 4>,
    FewRowsOf<kType, 5>, FewRowsOf<kType, 6>, FewRowsOf<kType, 7>, FewRowsOf<kType, 8>};

}  // namespace
}  // namespace headwise::cpu::HW_ISA

#endif  // HEADWISE_BACKEND_CPU_KERNELS_MATMUL_FEW_ROWS_INL_H_
