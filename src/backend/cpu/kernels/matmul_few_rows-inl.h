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

// The lanes of each row's vector, added up; several rows at once give the bits of one.
template <int64_t kRows>
HWY_INLINE void SumEachRow(const VF (&sum)[kRows], float (&values)[kRows]) {
  constexpr int64_t kTogether = 4;
  int64_t r = 0;
  HW_UNROLL
  for (; r + kTogether <= kRows; r += kTogether) {
    const VF rows[kTogether] = {sum[r], sum[r + 1], sum[r + 2], sum[r + 3]};
    float four[kTogether];
    SumOfEach(rows, four);
    for (int64_t i = 0; i < kTogether; ++i) values[r + i] = four[i];
  }
  for (; r < kRows; ++r) values[r] = hn::GetLane(hn::SumOfLanes(kDF, sum[r]));
}

// The sums of one output.
template <int64_t kRows>
HWY_INLINE void StoreOutput(const VF (&sum)[kRows], const FewRowsArgs& args, int64_t first_row, int64_t output) {
  const float bias = args.bias != nullptr ? args.bias[output] : 0.0f;
  float values[kRows];
  SumEachRow(sum, values);
  HW_UNROLL
  for (int64_t r = 0; r < kRows; ++r) {
    float* out = args.out + (first_row + r) * args.out_stride + output;
    const float value = values[r] + bias;
    *out = args.add ? *out + value : value;
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
  for (int64_t o = 0; o < kOutputs; ++o) StoreOutput(sum[o], args, first_row, output + o);
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

// ---- many rows, by the same sums -----------------------------------------------------------------------------------

// Rows of weights in scratch, whole cache lines and one more: powers of two apart they would push each other out.
constexpr int64_t kManyRowsStride = (kManyRowsBlocks + 1) * kFewRowsBlock;

// Elements [begin, begin + num) of the rows of W as f32, 0 behind K.
template <WeightType kType>
void UnpackWeights(const FewRowsArgs& args, int64_t begin, int64_t num) {
  using T = Element<kType>;
  for (int64_t o = 0; o < args.num_outputs; ++o) {
    const T* from = static_cast<const T*>(args.weight) + o * args.depth + begin;
    float* to = args.scratch + o * kManyRowsStride;
    const int64_t left = args.depth - begin;
    int64_t k = 0;
    for (; k + kLanes <= left && k < num; k += kLanes) hn::Store(LoadF32<kType>(from + k), kDF, to + k);
    for (; k < num; k += kLanes) {
      const Tail<T, kLanes> tail(from + k, left - k);
      hn::Store(LoadF32<kType>(tail.data), kDF, to + k);
    }
  }
}

// sums [kOutputs][kMaxFewRows][kLanes] of kRows rows go on over num_blocks blocks of K.
template <int64_t kRows, int64_t kOutputs>
HWY_INLINE void AddBlocks(const float* weight, const float* x, int64_t num_blocks, float* sums) {
  const float* weights[kOutputs];
  VF sum[kOutputs][kRows];
  HW_UNROLL
  for (int64_t o = 0; o < kOutputs; ++o) {
    weights[o] = weight + o * kManyRowsStride;
    HW_UNROLL
    for (int64_t r = 0; r < kRows; ++r) sum[o][r] = hn::Load(kDF, sums + (o * kMaxFewRows + r) * kLanes);
  }
  for (int64_t block = 0; block < num_blocks; ++block) {
    AddBlock<WeightType::kF32, kRows, kOutputs>(weights, x, sum);
    HW_UNROLL
    for (int64_t o = 0; o < kOutputs; ++o) weights[o] += kFewRowsBlock;
    x += kMaxFewRows * kFewRowsBlock;
  }
  HW_UNROLL
  for (int64_t o = 0; o < kOutputs; ++o) {
    HW_UNROLL
    for (int64_t r = 0; r < kRows; ++r) hn::Store(sum[o][r], kDF, sums + (o * kMaxFewRows + r) * kLanes);
  }
}

// The sums of a whole group of rows go on over the weights in scratch.
HWY_INLINE void AddToGroup(const FewRowsArgs& args, const float* x, int64_t num_blocks, float* sums) {
  constexpr int64_t kOutputs = OutputsTogether(kRowsTogether);
  for (int64_t row = 0; row < kMaxFewRows; row += kRowsTogether) {
    const float* x_rows = x + row * kFewRowsBlock;
    const auto sums_of = [&](int64_t output) { return sums + (output * kMaxFewRows + row) * kLanes; };
    int64_t o = 0;
    for (; o + kOutputs <= args.num_outputs; o += kOutputs) {
      AddBlocks<kRowsTogether, kOutputs>(args.scratch + o * kManyRowsStride, x_rows, num_blocks, sums_of(o));
    }
    for (; o < args.num_outputs; ++o) {
      AddBlocks<kRowsTogether, 1>(args.scratch + o * kManyRowsStride, x_rows, num_blocks, sums_of(o));
    }
  }
}

HWY_INLINE void StoreGroup(const FewRowsArgs& args, int64_t first_row, const float* sums) {
  for (int64_t o = 0; o < args.num_outputs; ++o) {
    VF sum[kMaxFewRows];
    HW_UNROLL
    for (int64_t r = 0; r < kMaxFewRows; ++r) sum[r] = hn::Load(kDF, sums + (o * kMaxFewRows + r) * kLanes);
    StoreOutput(sum, args, first_row, o);
  }
}

template <WeightType kType>
void ManyRowsOf(const FewRowsArgs& args) {
  const int64_t num_blocks = (args.depth + kFewRowsBlock - 1) / kFewRowsBlock;
  const int64_t row_floats = num_blocks * kFewRowsBlock;  // of x
  const int64_t group_floats = args.num_outputs * kMaxFewRows * kLanes;
  const int64_t num_whole = args.num_rows / kMaxFewRows * kMaxFewRows;
  float* const all_sums = args.scratch + args.num_outputs * kManyRowsStride;
  // One pass even without blocks: the bias has to be written.
  for (int64_t block = 0; block == 0 || block < num_blocks; block += kManyRowsBlocks) {
    const int64_t num = num_blocks - block < kManyRowsBlocks ? num_blocks - block : kManyRowsBlocks;
    const bool is_last = block + num >= num_blocks;
    UnpackWeights<kType>(args, block * kFewRowsBlock, num * kFewRowsBlock);
    for (int64_t row = 0; row < num_whole; row += kMaxFewRows) {
      // Sums that no other block goes on with stay where they are in the cache.
      float* sums = all_sums + (num_blocks > kManyRowsBlocks ? row / kMaxFewRows * group_floats : 0);
      if (block == 0) {
        for (int64_t i = 0; i < group_floats; i += kLanes) hn::Store(hn::Zero(kDF), kDF, sums + i);
      }
      AddToGroup(args, args.x + row * row_floats + block * kMaxFewRows * kFewRowsBlock, num, sums);
      if (is_last) StoreGroup(args, row, sums);
    }
  }
  if (num_whole == args.num_rows) return;
  FewRowsArgs rest = args;
  rest.x += num_whole * row_floats;
  rest.num_rows -= num_whole;
  rest.out += num_whole * args.out_stride;
  kFewRowsOf<kType>[rest.num_rows - 1](rest);
}

}  // namespace
}  // namespace headwise::cpu::HW_ISA

#endif  // HEADWISE_BACKEND_CPU_KERNELS_MATMUL_FEW_ROWS_INL_H_
