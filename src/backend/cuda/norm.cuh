// The root mean square of a row by a block of 256 threads, in one order: a norm's bits are the same whatever is done
// with its rows on the way. (Products of few rows, which divide their sums by it, add up squares in another one:
// few_rows.cuh.)
#ifndef HEADWISE_BACKEND_CUDA_NORM_CUH_
#define HEADWISE_BACKEND_CUDA_NORM_CUH_

#include "backend/cuda/launch.cuh"
#include "backend/ops.h"

namespace headwise::cuda {

inline constexpr int kNormThreads = 256;
// Rows are summed in fours, a thread's one behind the other, up to this length; longer ones by AnyNormKernel alone.
inline constexpr int kNormQuads = 8;
inline constexpr int64_t kMaxNormDim = int64_t{4} * kNormQuads * kNormThreads;

// Until so many threads of the block are here, those of the `team`-th such number of them.
__device__ inline void SyncTeam(int team) {
  asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "n"(kNormThreads) : "memory");
}

// The same in all threads.
__device__ inline float SumOfBlock(float x) {
  __shared__ float sums[kNormThreads / kWarp];
  x = SumOfWarp(x);
  SyncTeam(0);  // sums of the call before are read
  if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp] = x;
  SyncTeam(0);
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

struct NormParams {
  const float* x;
  const float* weight;  // [num_weights, dim]
  const float* bias;    // the same, or null
  int64_t num_weights, dim;
  float eps;
  bool subtracts_mean, adds;
  float* out;

  // Moved on to the block's row.
  __device__ NormParams OfRow() const {
    NormParams p = *this;
    const int64_t weight_row = num_weights == 1 ? 0 : blockIdx.x % num_weights;
    p.x += blockIdx.x * dim;
    p.out += blockIdx.x * dim;
    p.weight += weight_row * dim;
    if (bias != nullptr) p.bias += weight_row * dim;
    return p;
  }
};

inline NormParams NormParamsOf(const NormArgs& args) {
  return {.x = F32(args.x),
          .weight = F32(args.weight),
          .bias = F32(args.bias),
          .num_weights = args.num_weights(),
          .dim = args.x.shape[1],
          .eps = args.eps,
          .subtracts_mean = args.kind == NormArgs::Kind::kLayer,
          .adds = args.write == NormArgs::Write::kAdd,
          .out = F32(args.out)};
}

// Whether rows are such that NormRow takes. Weights may lie anywhere in memory that a device reads where it is.
inline bool HasNormQuads(const NormArgs& args) {
  const int64_t dim = args.x.shape[1];
  const auto is_aligned = [](const ConstTensorView& view) { return reinterpret_cast<uintptr_t>(view.data) % 16 == 0; };
  return dim % 4 == 0 && dim <= kMaxNormDim && is_aligned(args.weight) && is_aligned(args.bias);
}

// Where the i-th quad of a thread begins in its row.
__device__ inline int64_t NormPlace(int i) {
  return (static_cast<int64_t>(i) * kNormThreads + threadIdx.x) * 4;
}
// The row of `p` (NormParams::OfRow), normed: of a block's thread kNormQuads times four numbers at most, the others of
// which are left open. Requires: HasNormQuads.
__device__ inline void NormRow(const NormParams& p, float4 (&row)[kNormQuads]) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kNormQuads; ++i) {
    row[i] = NormPlace(i) < p.dim ? *reinterpret_cast<const float4*>(p.x + NormPlace(i)) : float4{0, 0, 0, 0};
    sum += row[i].x + row[i].y + row[i].z + row[i].w;
  }
  const float mean = p.subtracts_mean ? SumOfBlock(sum) / static_cast<float>(p.dim) : 0.0f;
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kNormQuads; ++i) {
    if (NormPlace(i) >= p.dim) continue;
    row[i] = {row[i].x - mean, row[i].y - mean, row[i].z - mean, row[i].w - mean};
    squares = AddSquares(squares, row[i]);
  }
  const float inverse = InverseRoot(SumOfBlock(squares), p.dim, p.eps);
#pragma unroll
  for (int i = 0; i < kNormQuads; ++i) {
    const int64_t at = NormPlace(i);
    if (at >= p.dim) continue;
    row[i] = Scaled(row[i], inverse, *reinterpret_cast<const float4*>(p.weight + at));
    if (p.bias != nullptr) row[i] = Sum(row[i], *reinterpret_cast<const float4*>(p.bias + at));
  }
}

}  // namespace headwise::cuda

#endif  // HEADWISE_BACKEND_CUDA_NORM_CUH_
