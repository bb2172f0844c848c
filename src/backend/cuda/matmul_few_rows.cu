// Products of up to 32 rows with bf16 weights, out = x W^T + bias: what decoding does. One launch for all parts. (f16
// weights would want x in f16, which cannot hold every activation.)
//
// Bound by reading the weights once, 2 N K bytes. A block takes 16 outputs; its eight warps share K in turns of 32, so
// that a row is read in runs of 512 bytes. Weights are the 16 rows of mma.m16n8k16, rows of x its 8 columns, up to four
// times. A sum does not mind the order of K, so a lane's 16 bytes of a weight row, as they lie in memory, are operands
// of two products. Where products in f32 are asked for, x is split in two numbers of 16 bits. A row's bits do not
// depend on how many others there are.
#include "backend/cuda/async_copy.cuh"
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/launch.cuh"

namespace headwise::cuda {
namespace {

constexpr int kOutputsOfBlock = 16;
constexpr int kWarpsOfBlock = 8;
constexpr int kThreads = kWarpsOfBlock * static_cast<int>(kWarp);
constexpr int kDepthOfTurn = 32;
constexpr int kRowsOfGroup = 8;
constexpr int kMaxGroups = 4;
constexpr int kMaxParts = 4;
constexpr int kTurnsInFlight = 4;

struct FewRowsParams {
  const float* x;  // [T, K]
  int num_rows, depth;
  bool adds;
  int num_parts;
  struct Part {
    const void* weight;  // [N, K]
    const float* bias;   // or null
    float* out;          // [T, N]
    int num_outputs;
    int end_block;
  } parts[kMaxParts];
};

// Eight numbers of a row of x, in halves and, where they are wanted exactly, in what rounding left.
template <typename T, bool kExact>
__device__ void LoadX(const float* x, bool is_row, uint32_t (&high)[4], uint32_t (&low)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) high[i] = low[i] = 0;
  if (!is_row) return;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float4 four = __ldg(reinterpret_cast<const float4*>(x) + i);
    const float values[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float first = Round<T>(values[2 * j]);
      const float second = Round<T>(values[2 * j + 1]);
      high[2 * i + j] = Pack<T>(first, second);
      if constexpr (kExact) low[2 * i + j] = Pack<T>(values[2 * j] - first, values[2 * j + 1] - second);
    }
  }
}

template <typename T, int kGroups, bool kExact>
__global__ void __launch_bounds__(kThreads) FewRowsMmaKernel(FewRowsParams p) {
  __shared__ float sums[kWarpsOfBlock][kOutputsOfBlock][kGroups * kRowsOfGroup + 1];
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  int part_idx = 0;
  while (static_cast<int>(blockIdx.x) >= p.parts[part_idx].end_block) ++part_idx;
  const FewRowsParams::Part part = p.parts[part_idx];
  const int first_block = part_idx == 0 ? 0 : p.parts[part_idx - 1].end_block;
  const int first_output = (static_cast<int>(blockIdx.x) - first_block) * kOutputsOfBlock;

  const auto* weight = static_cast<const T*>(part.weight);
  // Rows beyond the last are read as the last and not written.
  const auto row_at = [&](int output) {
    return weight + static_cast<int64_t>(min(first_output + output, part.num_outputs - 1)) * p.depth;
  };
  const int offset = lane % 4 * 8;
  const T* const upper = row_at(lane / 4) + offset;
  const T* const lower = row_at(lane / 4 + 8) + offset;

  float acc[kGroups][2][4] = {};
  constexpr int kTurn = kWarpsOfBlock * kDepthOfTurn;
  for (int first = warp * kDepthOfTurn; first < p.depth; first += kTurn * kTurnsInFlight) {
    uint4 w[kTurnsInFlight][2];
#pragma unroll
    for (int turn = 0; turn < kTurnsInFlight; ++turn) {
      const int k = first + turn * kTurn;
      w[turn][0] = w[turn][1] = {0, 0, 0, 0};
      if (k < p.depth) {
        w[turn][0] = __ldcs(reinterpret_cast<const uint4*>(upper + k));
        w[turn][1] = __ldcs(reinterpret_cast<const uint4*>(lower + k));
      }
    }
#pragma unroll
    for (int turn = 0; turn < kTurnsInFlight; ++turn) {
      const int k = first + turn * kTurn;
      if (k >= p.depth) break;
      const uint32_t first_half[4] = {w[turn][0].x, w[turn][1].x, w[turn][0].y, w[turn][1].y};
      const uint32_t second_half[4] = {w[turn][0].z, w[turn][1].z, w[turn][0].w, w[turn][1].w};
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        const int row = group * kRowsOfGroup + lane / 4;
        uint32_t high[4], low[4];
        LoadX<T, kExact>(p.x + static_cast<int64_t>(row) * p.depth + k + offset, row < p.num_rows, high, low);
        MultiplyAdd<T>(acc[group][0], first_half, high[0], high[1]);
        MultiplyAdd<T>(acc[group][0], second_half, high[2], high[3]);
        if constexpr (kExact) {
          MultiplyAdd<T>(acc[group][1], first_half, low[0], low[1]);
          MultiplyAdd<T>(acc[group][1], second_half, low[2], low[3]);
        }
      }
    }
  }
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = group * kRowsOfGroup + 2 * (lane % 4) + i % 2;
      sums[warp][lane / 4 + i / 2 * 8][row] = acc[group][0][i] + acc[group][1][i];
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kOutputsOfBlock * p.num_rows; i += kThreads) {
    const int output = i % kOutputsOfBlock;
    const int row = i / kOutputsOfBlock;
    if (first_output + output >= part.num_outputs) continue;
    float sum = part.bias == nullptr ? 0.0f : part.bias[first_output + output];
    for (int w = 0; w < kWarpsOfBlock; ++w) sum += sums[w][output][row];
    float& out = part.out[static_cast<int64_t>(row) * part.num_outputs + first_output + output];
    out = p.adds ? out + sum : sum;
  }
}

template <typename T, int kGroups>
void Launch(const FewRowsParams& params, bool is_exact, unsigned num_blocks, CudaDevice& device) {
  const auto kernel = is_exact ? FewRowsMmaKernel<T, kGroups, true> : FewRowsMmaKernel<T, kGroups, false>;
  kernel<<<num_blocks, kThreads, 0, device.stream()>>>(params);
}

template <typename T>
void Launch(const FewRowsParams& params, bool is_exact, unsigned num_blocks, CudaDevice& device) {
  switch ((params.num_rows + kRowsOfGroup - 1) / kRowsOfGroup) {
    case 1:
      return Launch<T, 1>(params, is_exact, num_blocks, device);
    case 2:
      return Launch<T, 2>(params, is_exact, num_blocks, device);
    case 3:
      return Launch<T, 3>(params, is_exact, num_blocks, device);
    default:
      return Launch<T, 4>(params, is_exact, num_blocks, device);
  }
}

}  // namespace

bool HasFewRows(const MatMulArgs& args) {
  const DType dtype = args.parts.front().weight.dtype;
  if (args.x.shape[0] > kMaxGroups * kRowsOfGroup || args.x.shape[1] % kDepthOfTurn != 0) return false;
  if (args.parts.size() > kMaxParts || dtype != DType::kBF16) return false;
  for (const MatMulPart& part : args.parts) {
    if (part.weight.dtype != dtype) return false;
  }
  return true;
}

void MatMulFewRows(const MatMulArgs& args, CudaDevice& device) {
  if (!device.ok() || args.x.shape[0] == 0) return;
  FewRowsParams params{.x = F32(args.x),
                       .num_rows = static_cast<int>(args.x.shape[0]),
                       .depth = static_cast<int>(args.x.shape[1]),
                       .adds = args.write == MatMulArgs::Write::kAdd,
                       .num_parts = static_cast<int>(args.parts.size()),
                       .parts = {}};
  int num_blocks = 0;
  for (size_t i = 0; i < args.parts.size(); ++i) {
    const MatMulPart& part = args.parts[i];
    num_blocks += static_cast<int>(Blocks(part.weight.shape[0], kOutputsOfBlock));
    params.parts[i] = {.weight = part.weight.rows().data,
                       .bias = F32(part.bias),
                       .out = F32(part.out),
                       .num_outputs = static_cast<int>(part.weight.shape[0]),
                       .end_block = num_blocks};
  }
  const bool is_exact = args.compute == Compute::kF32;
  Launch<__nv_bfloat16>(params, is_exact, static_cast<unsigned>(num_blocks), device);
  device.NoteLaunch("MatMul");
}

}  // namespace headwise::cuda
