// Products with weights, out = x W^T + bias.
//
// Up to 32 rows (decoding): a warp takes two outputs and up to eight rows; lanes go along K in steps of eight numbers,
// 16 bytes of a 16-bit weight. Bound by reading weights once per eight rows. A row's sum has one order whatever the
// number of rows, so its bits do not depend on who shares the step. More rows: tiles of 64 x 64 through shared memory,
// products by FMA.
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/launch.cuh"

namespace headwise::cuda {
namespace {

constexpr int64_t kMaxFewRows = 32;

struct MatMulParams {
  const float* x;  // [T, K]
  const void* weight;
  const float* bias;  // or null
  float* out;         // [T, N], rows out_stride apart
  int64_t num_rows, depth, num_outputs, out_stride;
  bool adds;         // to what is in `out`
  bool rounds_bf16;  // operands, as Compute::kBF16 says
};

__device__ float RoundToBf16(float x) {
  return __bfloat162float(__float2bfloat16_rn(x));
}

constexpr int kFewThreads = 256;
constexpr int kOutputsOfWarp = 2;
constexpr int kStep = 8;

// Eight numbers, or as many as there are: zeros behind them.
template <typename T>
__device__ void LoadStep(const T* from, int64_t k, int64_t depth, bool is_whole, float* values) {
  if (is_whole) {
    alignas(16) T raw[kStep];
    constexpr int kLoads = kStep * sizeof(T) / sizeof(uint4);
    for (int i = 0; i < kLoads; ++i) {
      reinterpret_cast<uint4*>(raw)[i] = reinterpret_cast<const uint4*>(from + k)[i];
    }
    for (int i = 0; i < kStep; ++i) values[i] = ToFloat(raw[i]);
    return;
  }
  for (int i = 0; i < kStep; ++i) values[i] = k + i < depth ? ToFloat(from[k + i]) : 0.0f;
}

// Rows [first, first + kRows) of x.
template <typename T, int kRows>
__device__ void FewRows(const MatMulParams& p, int64_t first, int64_t output) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const auto* weight = static_cast<const T*>(p.weight);
  const bool is_whole = p.depth % kStep == 0;
  float sums[kRows][kOutputsOfWarp] = {};
  for (int64_t k = lane * kStep; k < p.depth; k += kWarp * kStep) {
    float w[kOutputsOfWarp][kStep];
#pragma unroll
    for (int o = 0; o < kOutputsOfWarp; ++o) {
      const int64_t row = min(output + o, p.num_outputs - 1);
      LoadStep(weight + row * p.depth, k, p.depth, is_whole, w[o]);
      if (p.rounds_bf16) {
        for (int i = 0; i < kStep; ++i) w[o][i] = RoundToBf16(w[o][i]);
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float x[kStep];
      LoadStep(p.x + (first + r) * p.depth, k, p.depth, is_whole, x);
      if (p.rounds_bf16) {
        for (int i = 0; i < kStep; ++i) x[i] = RoundToBf16(x[i]);
      }
#pragma unroll
      for (int o = 0; o < kOutputsOfWarp; ++o) {
        for (int i = 0; i < kStep; ++i) sums[r][o] = fmaf(x[i], w[o][i], sums[r][o]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int o = 0; o < kOutputsOfWarp; ++o) {
      const float sum = SumOfWarp(sums[r][o]);
      if (lane > 0 || output + o >= p.num_outputs) continue;
      float& out = p.out[(first + r) * p.out_stride + output + o];
      const float value = p.bias == nullptr ? sum : sum + p.bias[output + o];
      out = p.adds ? out + value : value;
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kFewThreads) FewRowsKernel(MatMulParams p) {
  LetLaterBegin();
  WaitForEarlier();
  const int64_t warp = (blockIdx.x * static_cast<int64_t>(kFewThreads) + threadIdx.x) / kWarp;
  const int64_t output = warp * kOutputsOfWarp;
  if (output >= p.num_outputs) return;
  int64_t row = 0;
  for (; row + 8 <= p.num_rows; row += 8) FewRows<T, 8>(p, row, output);
  if (row + 4 <= p.num_rows) {
    FewRows<T, 4>(p, row, output);
    row += 4;
  }
  if (row + 2 <= p.num_rows) {
    FewRows<T, 2>(p, row, output);
    row += 2;
  }
  if (row < p.num_rows) FewRows<T, 1>(p, row, output);
}

constexpr int kTileSize = 64;
constexpr int kTileDepth = 16;
constexpr int kTileThreads = 256;
constexpr int kOfThread = 4;  // rows, and outputs, of a thread

template <typename T>
__global__ void __launch_bounds__(kTileThreads) TileKernel(MatMulParams p) {
  // One float more a row, so that a column does not lie in one bank.
  __shared__ float x_tile[kTileDepth][kTileSize + 1];
  __shared__ float w_tile[kTileDepth][kTileSize + 1];
  const auto* weight = static_cast<const T*>(p.weight);
  const int64_t first_output = static_cast<int64_t>(blockIdx.x) * kTileSize;
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * kTileSize;
  const int column = static_cast<int>(threadIdx.x % (kTileSize / kOfThread));
  const int line = static_cast<int>(threadIdx.x / (kTileSize / kOfThread));
  float sums[kOfThread][kOfThread] = {};
  for (int64_t begin = 0; begin < p.depth; begin += kTileDepth) {
    for (int i = static_cast<int>(threadIdx.x); i < kTileSize * kTileDepth; i += kTileThreads) {
      const int k = i % kTileDepth;
      const int j = i / kTileDepth;
      const bool is_inside = begin + k < p.depth;
      float x = is_inside && first_row + j < p.num_rows ? p.x[(first_row + j) * p.depth + begin + k] : 0.0f;
      float w = is_inside && first_output + j < p.num_outputs
                    ? ToFloat(weight[(first_output + j) * p.depth + begin + k])
                    : 0.0f;
      if (p.rounds_bf16) {
        x = RoundToBf16(x);
        w = RoundToBf16(w);
      }
      x_tile[k][j] = x;
      w_tile[k][j] = w;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kTileDepth; ++k) {
      float x[kOfThread], w[kOfThread];
      for (int i = 0; i < kOfThread; ++i) {
        x[i] = x_tile[k][line * kOfThread + i];
        w[i] = w_tile[k][column + i * (kTileSize / kOfThread)];
      }
      for (int i = 0; i < kOfThread; ++i) {
        for (int j = 0; j < kOfThread; ++j) sums[i][j] = fmaf(x[i], w[j], sums[i][j]);
      }
    }
    __syncthreads();
  }
  for (int i = 0; i < kOfThread; ++i) {
    const int64_t row = first_row + line * kOfThread + i;
    for (int j = 0; j < kOfThread; ++j) {
      const int64_t output = first_output + column + j * (kTileSize / kOfThread);
      if (row >= p.num_rows || output >= p.num_outputs) continue;
      float& out = p.out[row * p.out_stride + output];
      const float value = p.bias == nullptr ? sums[i][j] : sums[i][j] + p.bias[output];
      out = p.adds ? out + value : value;
    }
  }
}

}  // namespace

void MatMul(const MatMulArgs& args, CudaDevice& device, int64_t out_stride) {
  for (const MatMulPart& part : args.parts) {
    const MatMulParams params{.x = F32(args.x),
                              .weight = part.weight.rows().data,
                              .bias = F32(part.bias),
                              .out = F32(part.out),
                              .num_rows = args.x.shape[0],
                              .depth = args.x.shape[1],
                              .num_outputs = part.weight.shape[0],
                              .out_stride = out_stride > 0 ? out_stride : part.weight.shape[0],
                              .adds = args.write == MatMulArgs::Write::kAdd,
                              .rounds_bf16 = args.compute != Compute::kF32};
    if (!device.ok() || params.num_rows == 0) return;
    WithType(part.weight.dtype, [&](auto type) {
      using T = decltype(type);
      if (params.num_rows <= kMaxFewRows) {
        const unsigned num_blocks = Blocks(params.num_outputs, kOutputsOfWarp * kFewThreads / kWarp);
        Launch(device, "MatMul", Overlapping(num_blocks, kFewThreads), FewRowsKernel<T>, params);
      } else {
        const LaunchShape shape{.grid = dim3(Blocks(params.num_outputs, kTileSize), Blocks(params.num_rows, kTileSize)),
                                .threads = kTileThreads};
        Launch(device, "MatMul", shape, TileKernel<T>, params);
      }
    });
  }
}

}  // namespace headwise::cuda
