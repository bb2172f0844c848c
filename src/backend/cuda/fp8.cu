// Rows as e4m3 with one scale each, for products of many rows in FP8 (Compute::kFp8): of numbers as they lie, or of
// what a norm or an activation gives, which is then not written elsewhere. x = scale * code, the row's largest
// magnitude at 448, the largest that e4m3 has.
//
// Bound by memory: numbers are read once, held in registers until their maximum is known, and a byte is written for
// each.
#include <cuda_fp8.h>

#include "backend/cuda/activation.cuh"
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/norm.cuh"

namespace headwise::cuda {
namespace {

constexpr int kThreads = 256;
static_assert(kThreads == kNormThreads);
constexpr float kLargestCode = 448.0f;
// Fours that a thread holds; those of longer rows are computed again.
constexpr int kHeldQuads = 8;

// The same in all threads. NaN of one is NaN of all: it shall not vanish behind a maximum.
__device__ float MaxOfBlock(float x) {
  __shared__ float largest[kThreads / kWarp];
  const bool has_nan = __syncthreads_or(x != x) != 0;  // the call before has been read, too
  x = MaxOfWarp(x);
  if (threadIdx.x % kWarp == 0) largest[threadIdx.x / kWarp] = x;
  __syncthreads();
  for (int i = 0; i < kThreads / static_cast<int>(kWarp); ++i) x = fmaxf(x, largest[i]);
  return has_nan ? NAN : x;
}

// fmaxf leaves NaN out.
__device__ float LargerOf(float largest, float x) {
  return largest != largest || x != x ? NAN : fmaxf(largest, fabsf(x));
}
__device__ float LargerOf(float largest, const float4& x) {
  return LargerOf(LargerOf(LargerOf(LargerOf(largest, x.x), x.y), x.z), x.w);
}

__device__ uint32_t CodesOf(const float4& x, float factor) {
  const auto low = __nv_cvt_float2_to_fp8x2({x.x * factor, x.y * factor}, __NV_SATFINITE, __NV_E4M3);
  const auto high = __nv_cvt_float2_to_fp8x2({x.z * factor, x.w * factor}, __NV_SATFINITE, __NV_E4M3);
  return static_cast<uint32_t>(low) | static_cast<uint32_t>(high) << 16;
}

// Writes the scale of the block's row; what its numbers are multiplied by to become codes.
__device__ float FactorOf(float largest, float* scales) {
  if (threadIdx.x == 0) scales[blockIdx.x] = largest == 0.0f ? 1.0f : largest / kLargestCode;
  return largest == 0.0f ? 1.0f : kLargestCode / largest;
}

// quad_at(i): four numbers of the block's row.
template <typename QuadAt>
__device__ void RowToFp8(int64_t num_quads, const Fp8Rows& to, const QuadAt& quad_at) {
  float4 held[kHeldQuads];
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kHeldQuads; ++i) {
    const int64_t quad = i * kThreads + threadIdx.x;
    held[i] = quad < num_quads ? quad_at(quad) : float4{0, 0, 0, 0};
    largest = LargerOf(largest, held[i]);
  }
  constexpr int64_t kHeld = int64_t{kHeldQuads} * kThreads;
  for (int64_t quad = kHeld + threadIdx.x; quad < num_quads; quad += kThreads) {
    largest = LargerOf(largest, quad_at(quad));
  }
  const float factor = FactorOf(MaxOfBlock(largest), to.scales);
  auto* const codes = static_cast<uint32_t*>(to.codes) + blockIdx.x * num_quads;
#pragma unroll
  for (int i = 0; i < kHeldQuads; ++i) {
    const int64_t quad = i * kThreads + threadIdx.x;
    if (quad < num_quads) codes[quad] = CodesOf(held[i], factor);
  }
  for (int64_t quad = kHeld + threadIdx.x; quad < num_quads; quad += kThreads) {
    codes[quad] = CodesOf(quad_at(quad), factor);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) RowsKernel(const T* rows, int64_t num_quads, Fp8Rows to) {
  RowToFp8(num_quads, to, [&](int64_t quad) -> float4 {
    alignas(16) T four[4];
    const T* const from = rows + (blockIdx.x * num_quads + quad) * 4;
    if constexpr (sizeof(T) == sizeof(float)) {
      *reinterpret_cast<float4*>(four) = *reinterpret_cast<const float4*>(from);
    } else {
      *reinterpret_cast<uint2*>(four) = *reinterpret_cast<const uint2*>(from);
    }
    return {ToFloat(four[0]), ToFloat(four[1]), ToFloat(four[2]), ToFloat(four[3])};
  });
}

template <ActivateArgs::Kind kKind>
__global__ void __launch_bounds__(kThreads)
    ActivateKernel(const float* gate, const float* x, int64_t num_quads, Fp8Rows to) {
  const int64_t first = blockIdx.x * num_quads;
  RowToFp8(num_quads, to, [&](int64_t quad) { return ActivatedQuad<kKind>(gate, x, first + quad); });
}

__global__ void __launch_bounds__(kThreads) NormKernel(NormParams all, Fp8Rows to) {
  const NormParams p = all.OfRow();
  float4 row[kNormQuads];
  NormRow(p, row);
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kNormQuads; ++i) {
    if (NormPlace(i) < p.dim) largest = LargerOf(largest, row[i]);
  }
  const float factor = FactorOf(MaxOfBlock(largest), to.scales);
  auto* const codes = static_cast<uint32_t*>(to.codes);
#pragma unroll
  for (int i = 0; i < kNormQuads; ++i) {
    if (NormPlace(i) < p.dim) codes[(blockIdx.x * p.dim + NormPlace(i)) / 4] = CodesOf(row[i], factor);
  }
}

__global__ void __launch_bounds__(kThreads) BiasKernel(const float* bias, int64_t num_outputs, bool adds, float* out) {
  float* const row = out + blockIdx.x * num_outputs;
  for (int64_t i = threadIdx.x; i < num_outputs; i += kThreads) row[i] = adds ? row[i] + bias[i] : bias[i];
}

}  // namespace

void RowsToFp8(const ConstTensorView& rows, const Fp8Rows& to, CudaDevice& device) {
  const int64_t num_rows = rows.shape[0];
  if (!device.ok() || num_rows == 0) return;
  WithType(rows.dtype, [&](auto type) {
    Launch(device, "RowsToFp8", {.grid = dim3(Blocks(num_rows, 1)), .threads = kThreads}, RowsKernel<decltype(type)>,
           static_cast<const decltype(type)*>(rows.data), rows.shape[1] / 4, to);
  });
}

void NormToFp8(const NormArgs& args, const Fp8Rows& to, CudaDevice& device) {
  if (!device.ok() || args.x.shape[0] == 0) return;
  if (HasNormQuads(args) && args.write == NormArgs::Write::kStore) {
    return Launch(device, "Norm", {.grid = dim3(Blocks(args.x.shape[0], 1)), .threads = kThreads}, NormKernel,
                  NormParamsOf(args), to);
  }
  Norm(args, device);
  RowsToFp8(args.out, to, device);
}

void ActivateToFp8(const ActivateArgs& args, const Fp8Rows& to, CudaDevice& device) {
  const int64_t num_rows = args.x.shape[0];
  if (!device.ok() || num_rows == 0) return;
  WithKind(args.kind, [&](auto kind) {
    Launch(device, "Activate", {.grid = dim3(Blocks(num_rows, 1)), .threads = kThreads},
           ActivateKernel<decltype(kind)::value>, F32(args.gate), F32(args.x), args.x.shape[1] / 4, to);
  });
}

void WriteBias(const MatMulPart& part, MatMulArgs::Write write, CudaDevice& device) {
  const int64_t num_rows = part.out.shape[0];
  if (!device.ok() || num_rows == 0) return;
  Launch(device, "MatMul: bias", {.grid = dim3(Blocks(num_rows, 1)), .threads = kThreads}, BiasKernel, F32(part.bias),
         part.weight.shape[0], write == MatMulArgs::Write::kAdd, F32(part.out));
}

}  // namespace headwise::cuda
