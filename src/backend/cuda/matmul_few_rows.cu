// Products of up to 32 rows with bf16 weights, out = x W^T + bias: what decoding does. One launch for all parts. (f16
// weights would want x in f16, which cannot hold every activation.)
//
// Bound by reading the weights once, 2 N K bytes. A block takes 16 outputs; its eight warps share K in turns of 32, so
// that a row is read in runs of 512 bytes. Weights are the 16 rows of mma.m16n8k16, rows of x its 8 columns, up to four
// times. A sum does not mind the order of K, so a lane's 16 bytes of a weight row, as they lie in memory, are operands
// of two products. Where products in f32 are asked for, x is split in two numbers of 16 bits. A row's bits do not
// depend on how many others there are.
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/few_rows.cuh"

namespace headwise::cuda {
namespace {

constexpr int kWarpsOfBlock = 8;
constexpr int kThreads = kWarpsOfBlock * static_cast<int>(kWarp);
constexpr int kTurnsInFlight = 4;

template <int kGroups, bool kExact>
__global__ void __launch_bounds__(kThreads) FewRowsMmaKernel(FewRowsParams p) {
  __shared__ float sums[kWarpsOfBlock][kTileOutputs][kGroups * kRowsOfGroup + 1];
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  const auto [part, first_output] = TileOf(p, static_cast<int>(blockIdx.x));

  // Rows beyond the last are read as the last and not written.
  const auto row_at = [&, &part = part, first_output = first_output](int output) {
    return part.weight + static_cast<int64_t>(min(first_output + output, part.num_outputs - 1)) * p.depth;
  };
  const int offset = lane % 4 * 8;
  const Bf16* const upper = row_at(lane / 4) + offset;
  const Bf16* const lower = row_at(lane / 4 + 8) + offset;

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
        float4 x[2] = {};
        if (row < p.num_rows) {
          const auto* from = reinterpret_cast<const float4*>(p.x + static_cast<int64_t>(row) * p.depth + k + offset);
          x[0] = __ldg(from);
          x[1] = __ldg(from + 1);
        }
        uint32_t high[4], low[4];
        SplitX<kExact>(x, high, low);
        MultiplyAdd<Bf16>(acc[group][0], first_half, high[0], high[1]);
        MultiplyAdd<Bf16>(acc[group][0], second_half, high[2], high[3]);
        if constexpr (kExact) {
          MultiplyAdd<Bf16>(acc[group][1], first_half, low[0], low[1]);
          MultiplyAdd<Bf16>(acc[group][1], second_half, low[2], low[3]);
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
  for (int i = static_cast<int>(threadIdx.x); i < kTileOutputs * p.num_rows; i += kThreads) {
    const int output = i % kTileOutputs;
    const int row = i / kTileOutputs;
    if (first_output + output >= part.num_outputs) continue;
    float sum = part.bias == nullptr ? 0.0f : part.bias[first_output + output];
    for (int w = 0; w < kWarpsOfBlock; ++w) sum += sums[w][output][row];
    float& out = part.out[static_cast<int64_t>(row) * part.num_outputs + first_output + output];
    out = p.adds ? out + sum : sum;
  }
}

template <int kGroups>
void Launch(const FewRowsParams& params, bool is_exact, CudaDevice& device) {
  const auto kernel = is_exact ? FewRowsMmaKernel<kGroups, true> : FewRowsMmaKernel<kGroups, false>;
  kernel<<<static_cast<unsigned>(params.num_tiles), kThreads, 0, device.stream()>>>(params);
  device.NoteLaunch("MatMul");
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
  const FewRowsParams params = FewRowsParamsOf(args);
  const bool is_exact = args.compute == Compute::kF32;
  switch ((params.num_rows + kRowsOfGroup - 1) / kRowsOfGroup) {
    case 1:
      return Launch<1>(params, is_exact, device);
    case 2:
      return Launch<2>(params, is_exact, device);
    case 3:
      return Launch<3>(params, is_exact, device);
    default:
      return Launch<4>(params, is_exact, device);
  }
}

}  // namespace headwise::cuda
