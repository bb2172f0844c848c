// The products of matmul_few_rows.cu where bulk copies are, from sm_90 on: weights stream through shared memory.
//
// Bound by reading the weights once, 2 N K bytes. Loads straight into the operands of mma.m16n8k16 keep too little on
// its way: what x has to go through stands in between. So a producer warp copies 2 KiB of each of 16 rows at a time
// into a ring, 160 KiB ahead, over the ends of tiles; eight consumer warps share a chunk's K. A copy takes a
// multiprocessor's copy engine 50 ns whatever it brings: of half a KiB they read 1.5 TB/s on an H200, of one 2.7. One
// block a multiprocessor takes every so many-th tile of 16 outputs.
#include <algorithm>

#include "backend/cuda/async_copy.cuh"
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/few_rows.cuh"

namespace headwise::cuda {
namespace {

constexpr int kNumConsumers = 8;
constexpr int kConsumerThreads = kNumConsumers * static_cast<int>(kWarp);
constexpr int kThreads = kConsumerThreads + static_cast<int>(kWarp);
constexpr int kTurns = 4;  // of a warp in a chunk
constexpr int kDepthOfChunk = kNumConsumers * kTurns * kDepthOfTurn;
// 64 bytes more a row, so that two rows' 64 bytes lie in different banks.
constexpr int kRowBytes = kDepthOfChunk * 2 + 64;
constexpr int kStageBytes = kTileOutputs * kRowBytes;
constexpr int kStages = 5;

struct Shared {
  char* ring;
  uint64_t* full;
  uint64_t* empty;
};

__device__ void Produce(const FewRowsParams& p, const Shared& shared) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  int count = 0;
  for (int tile_idx = static_cast<int>(blockIdx.x); tile_idx < p.num_tiles; tile_idx += static_cast<int>(gridDim.x)) {
    const Tile tile = TileOf(p, tile_idx);
    // Rows beyond the last are read as the last and not written.
    const int row = min(tile.first_output + lane % kTileOutputs, tile.part.num_outputs - 1);
    const Bf16* from = tile.part.weight + static_cast<int64_t>(row) * p.depth;
    for (int k = 0; k < p.depth; k += kDepthOfChunk, ++count) {
      const int stage = count % kStages;
      const int bytes = min(kDepthOfChunk, p.depth - k) * 2;
      if (lane == 0) {
        if (count >= kStages) WaitFor(shared.empty + stage, (count / kStages - 1) & 1);
        ExpectBytes(shared.full + stage, kTileOutputs * bytes);
      }
      __syncwarp();
      if (lane < kTileOutputs) {
        BulkCopy(shared.ring + stage * kStageBytes + lane * kRowBytes, from + k, bytes, shared.full + stage);
      }
    }
  }
}

template <int kGroups, bool kExact>
__global__ void __launch_bounds__(kThreads, 1) StreamKernel(FewRowsParams p) {
  extern __shared__ __align__(1024) char memory[];
  __shared__ uint64_t barriers[2 * kStages];
  // Of one tile and the next, in turns: who reads the one does not hold up who writes the other.
  __shared__ float sums[2][kNumConsumers][kTileOutputs][kGroups * kRowsOfGroup + 1];
  const Shared shared = {memory, barriers, barriers + kStages};
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      InitBarrier(shared.full + i, 1);
      InitBarrier(shared.empty + i, kNumConsumers);
    }
    FenceBarrierInit();
  }
  __syncthreads();
  if (warp == kNumConsumers) return Produce(p, shared);

  const int offset = lane % 4 * 8;
  float4 x[kGroups][2];
  const auto load_x = [&](int k) {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int row = group * kRowsOfGroup + lane / 4;
      x[group][0] = x[group][1] = {0, 0, 0, 0};
      if (row >= p.num_rows || k >= p.depth) continue;
      const auto* from = reinterpret_cast<const float4*>(p.x + static_cast<int64_t>(row) * p.depth + k + offset);
      x[group][0] = __ldg(from);
      x[group][1] = __ldg(from + 1);
    }
  };
  int count = 0;
  int parity = 0;
  for (int tile_idx = static_cast<int>(blockIdx.x); tile_idx < p.num_tiles; tile_idx += static_cast<int>(gridDim.x)) {
    float acc[kGroups][2][4] = {};
    for (int chunk = 0; chunk < p.depth; chunk += kDepthOfChunk, ++count) {
      const int stage = count % kStages;
      const int in_chunk = warp * kTurns * kDepthOfTurn;
      const int first = chunk + in_chunk;
      load_x(first);
      WaitFor(shared.full + stage, count / kStages & 1);
      const char* from = shared.ring + stage * kStageBytes + lane / 4 * kRowBytes + (in_chunk + offset) * 2;
#pragma unroll
      for (int turn = 0; turn < kTurns; ++turn) {
        const int k = first + turn * kDepthOfTurn;
        if (k >= p.depth) break;
        const uint4 upper = *reinterpret_cast<const uint4*>(from + turn * kDepthOfTurn * 2);
        const uint4 lower = *reinterpret_cast<const uint4*>(from + turn * kDepthOfTurn * 2 + 8 * kRowBytes);
        const uint32_t first_half[4] = {upper.x, lower.x, upper.y, lower.y};
        const uint32_t second_half[4] = {upper.z, lower.z, upper.w, lower.w};
        uint32_t high[kGroups][4], low[kGroups][4];
#pragma unroll
        for (int group = 0; group < kGroups; ++group) SplitX<kExact>(x[group], high[group], low[group]);
        if (turn + 1 < kTurns) load_x(k + kDepthOfTurn);
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          MultiplyAdd<Bf16>(acc[group][0], first_half, high[group][0], high[group][1]);
          MultiplyAdd<Bf16>(acc[group][0], second_half, high[group][2], high[group][3]);
          if constexpr (kExact) {
            MultiplyAdd<Bf16>(acc[group][1], first_half, low[group][0], low[group][1]);
            MultiplyAdd<Bf16>(acc[group][1], second_half, low[group][2], low[group][3]);
          }
        }
      }
      __syncwarp();
      if (lane == 0) Arrive(shared.empty + stage);
    }
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = group * kRowsOfGroup + 2 * (lane % 4) + i % 2;
        sums[parity][warp][lane / 4 + i / 2 * 8][row] = acc[group][0][i] + acc[group][1][i];
      }
    }
    asm volatile("bar.sync 1, %0;" ::"n"(kConsumerThreads) : "memory");
    const Tile tile = TileOf(p, tile_idx);
    for (int i = static_cast<int>(threadIdx.x); i < kTileOutputs * p.num_rows; i += kConsumerThreads) {
      const int output = tile.first_output + i % kTileOutputs;
      const int row = i / kTileOutputs;
      if (output >= tile.part.num_outputs) continue;
      float sum = tile.part.bias == nullptr ? 0.0f : tile.part.bias[output];
      for (int w = 0; w < kNumConsumers; ++w) sum += sums[parity][w][i % kTileOutputs][row];
      float& out = tile.part.out[static_cast<int64_t>(row) * tile.part.num_outputs + output];
      out = p.adds ? out + sum : sum;
    }
    parity ^= 1;
  }
}

template <int kGroups>
void Launch(const FewRowsParams& params, bool is_exact, CudaDevice& device) {
  constexpr int kBytes = kStages * kStageBytes;
  const auto kernel = is_exact ? StreamKernel<kGroups, true> : StreamKernel<kGroups, false>;
  device.Note(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), "MatMul");
  if (!device.ok()) return;
  const int num_blocks = std::min(device.facts().num_multiprocessors, params.num_tiles);
  kernel<<<static_cast<unsigned>(num_blocks), kThreads, kBytes, device.stream()>>>(params);
  device.NoteLaunch("MatMul");
}

}  // namespace

void MatMulStream(const MatMulArgs& args, CudaDevice& device) {
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
