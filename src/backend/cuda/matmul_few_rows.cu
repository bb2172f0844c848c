// Products of up to 32 rows with bf16 weights, out = x W^T + bias: decoding.
//
// Bound by reading the weights once, 2 N K bytes. Loads straight into the operands of mma.m16n8k16 keep too little on
// its way: what x has to go through stands in between. So weights pass through shared memory, some 20 KiB ahead for
// each of eight warps: a warp copies its own slices of K, 128 numbers of each of 16 rows at a time, and waits for
// nobody. Bulk copies of 2 KiB a row, by a warp for all, read 6 % less for as many consumers: a copy takes its
// engine 50 ns whatever it brings. The weights are the mma's 16 rows, rows of x its 8 columns. One block a
// multiprocessor takes every so many-th tile of 16 outputs. How a sum is put together depends on K alone, so its
// bits do not depend on who shares the step.
#include <algorithm>

#include "backend/cuda/async_copy.cuh"
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/norm.cuh"

namespace headwise::cuda {
namespace {

using Bf16 = __nv_bfloat16;

constexpr int kTileOutputs = 16;
constexpr int kRowsOfGroup = 8;  // of x
constexpr int kMaxGroups = 4;
constexpr int kMaxParts = 4;
constexpr int kDepthOfTurn = 32;  // 16 bytes of a weight row for a lane, operands of two products
constexpr int kTurns = 4;
constexpr int kDepthOfSlice = kTurns * kDepthOfTurn;
constexpr int kNumWarps = 8;  // they share K, slice by slice
constexpr int kThreads = kNumWarps * static_cast<int>(kWarp);
static_assert(kThreads == kNormThreads);
// 64 bytes more a row, so that two rows' 64 bytes lie in different banks.
constexpr int kRowBytes = kDepthOfSlice * 2 + 64;
constexpr int kStageBytes = kTileOutputs * kRowBytes;
// As many as an architecture has memory for: 200 KiB a block, or 96.
constexpr int kManyStages = 4;
constexpr int kFewStages = 2;

struct FewRowsParams {
  const float* x;  // [T, K]
  int num_rows, depth;
  // x / rms(x) * weight in place of x, where there is a weight: only where x is staged.
  const float* norm_weight;  // [K]
  float norm_eps;
  bool adds;
  bool is_gated;  // out of the second part = silu(first) * second; both have as many tiles
  int num_tiles;
  struct Part {
    const Bf16* weight;  // [N, K]
    const float* bias;   // or null
    float* out;          // [T, N]
    int num_outputs;
    int end_tile;
  } parts[kMaxParts];
};

struct Tile {
  FewRowsParams::Part part;
  int first_output;
};
__device__ Tile TileOf(const FewRowsParams& p, int tile) {
  int i = 0;
  while (tile >= p.parts[i].end_tile) ++i;
  return {p.parts[i], (tile - (i == 0 ? 0 : p.parts[i - 1].end_tile)) * kTileOutputs};
}
// A block takes every so many-th tile, or pair of tiles: one of the gate and the same of what it gates.
__device__ int TilesOfBlock(const FewRowsParams& p) {
  const int of_turn = p.is_gated ? 2 : 1;
  const int num_turns = p.num_tiles / of_turn;
  return (num_turns - static_cast<int>(blockIdx.x) + static_cast<int>(gridDim.x) - 1) / static_cast<int>(gridDim.x) *
         of_turn;
}
__device__ Tile TileOfBlock(const FewRowsParams& p, int i) {
  const auto tile = [](int turn) { return static_cast<int>(blockIdx.x) + turn * static_cast<int>(gridDim.x); };
  if (!p.is_gated) return TileOf(p, tile(i));
  return TileOf(p, tile(i / 2) + i % 2 * (p.num_tiles / 2));
}

// Eight numbers of a row of x in pairs and, where they are wanted exactly, what rounding left.
template <bool kExact>
__device__ void SplitX(const float4 (&x)[2], uint32_t (&high)[4], uint32_t (&low)[4]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float values[4] = {x[i].x, x[i].y, x[i].z, x[i].w};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float first = Round<Bf16>(values[2 * j]);
      const float second = Round<Bf16>(values[2 * j + 1]);
      high[2 * i + j] = Pack<Bf16>(first, second);
      if constexpr (kExact) low[2 * i + j] = Pack<Bf16>(values[2 * j] - first, values[2 * j + 1] - second);
    }
  }
}

// The warp's slices of all tiles of its block, one behind the other, each copied kStages - 1 before it is used.
template <int kStages>
struct WeightStream {
  const FewRowsParams& p;
  char* ring;     // the warp's [kStages][kStageBytes]
  int num_tiles;  // of the block
  int tile_idx = 0;
  int depth = 0;  // where the next slice begins
  int stage = 0;
  Tile tile;

  __device__ WeightStream(const FewRowsParams& params, char* memory, int warp, int tiles)
      : p(params), ring(memory + warp * kStages * kStageBytes), num_tiles(tiles), depth(FirstDepth()) {
    if (num_tiles > 0) tile = TileOfBlock(p, 0);
  }
  static __device__ int FirstDepth() { return static_cast<int>(threadIdx.x / kWarp) * kDepthOfSlice; }

  __device__ void CopyNext() {
    if (depth >= p.depth) {  // behind the last slice of the tile, or in a warp that has none
      depth = FirstDepth();
      if (depth < p.depth && ++tile_idx < num_tiles) tile = TileOfBlock(p, tile_idx);
    }
    if (depth < p.depth && tile_idx < num_tiles) {
      constexpr int kChunksOfRow = kDepthOfSlice * 2 / 16;
      const uint32_t to = SharedAddress(ring + stage * kStageBytes);
      const int lane = static_cast<int>(threadIdx.x % kWarp);
      const int chunk = lane % kChunksOfRow;
      const bool is_there = depth + chunk * 8 < p.depth;
#pragma unroll
      for (int row = lane / kChunksOfRow; row < kTileOutputs; row += static_cast<int>(kWarp) / kChunksOfRow) {
        // Rows beyond the last are read as the last and not written.
        const int output = min(tile.first_output + row, tile.part.num_outputs - 1);
        const Bf16* from = tile.part.weight + static_cast<int64_t>(output) * p.depth + depth + chunk * 8;
        CopyChunk(to + row * kRowBytes + chunk * 16, is_there ? from : nullptr);
      }
      depth += kNumWarps * kDepthOfSlice;
    }
    stage = stage + 1 < kStages ? stage + 1 : 0;
    CommitCopies();
  }
};

// Rows of x as operands, in shared memory: [T, K] in bf16, and behind it what rounding left where that is wanted. Where
// x is normalised on the way, this is where.
template <bool kExact>
__device__ void StageX(const FewRowsParams& p, uint4* staged) {
  const int num_chunks = p.depth / 8;
  for (int row = 0; row < p.num_rows; ++row) {
    const auto* x = reinterpret_cast<const float4*>(p.x + static_cast<int64_t>(row) * p.depth);
    const auto* weight = reinterpret_cast<const float4*>(p.norm_weight);
    float inverse = 1;
    if (weight != nullptr) {
      float squares = 0;
      for (int i = static_cast<int>(threadIdx.x); i < p.depth / 4; i += kThreads) squares = AddSquares(squares, x[i]);
      inverse = InverseRoot(SumOfBlock(squares), p.depth, p.norm_eps);
    }
    for (int i = static_cast<int>(threadIdx.x); i < num_chunks; i += kThreads) {
      float4 values[2] = {x[2 * i], x[2 * i + 1]};
      if (weight != nullptr) {
        for (int j = 0; j < 2; ++j) values[j] = Scaled(values[j], inverse, weight[2 * i + j]);
      }
      uint32_t high[4], low[4];
      SplitX<kExact>(values, high, low);
      staged[row * num_chunks + i] = {high[0], high[1], high[2], high[3]};
      if constexpr (kExact) staged[(p.num_rows + row) * num_chunks + i] = {low[0], low[1], low[2], low[3]};
    }
  }
  __syncthreads();
}

// kStaged: x fits into shared memory (one group of rows); else it comes from the second-level cache for every tile.
template <int kGroups, bool kExact, int kStages, bool kStaged>
__global__ void __launch_bounds__(kThreads, 1) FewRowsMmaKernel(const __grid_constant__ FewRowsParams p) {
  extern __shared__ __align__(1024) char memory[];
  // Of one tile and the next, in turns, where there is memory for both: who reads the one does not hold up who writes
  // the other.
  constexpr int kBuffers = kStages > kFewStages ? 2 : 1;
  __shared__ float sums[kBuffers][kNumWarps][kTileOutputs][kGroups * kRowsOfGroup + 1];
  LetLaterBegin();
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  const int num_tiles = TilesOfBlock(p);
  WeightStream<kStages> weights(p, memory, warp, num_tiles);
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) weights.CopyNext();

  const int offset = lane % 4 * 8;
  // x of the next turns, on its way from the second-level cache.
  constexpr int kAhead = kGroups <= 2 ? kTurns : kGroups == kMaxGroups && kExact ? 1 : kTurns / 2;
  float4 x[kAhead][kGroups][2];
  const auto load_x = [&](int i, int k) {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int row = group * kRowsOfGroup + lane / 4;
      x[i][group][0] = x[i][group][1] = {0, 0, 0, 0};
      if (row >= p.num_rows || k >= p.depth) continue;
      const auto* from = reinterpret_cast<const float4*>(p.x + static_cast<int64_t>(row) * p.depth + k + offset);
      x[i][group][0] = from[0];
      x[i][group][1] = from[1];
    }
  };
  auto* const staged = reinterpret_cast<uint4*>(memory + kNumWarps * kStages * kStageBytes);
  WaitForEarlier();
  if constexpr (kStaged) StageX<kExact>(p, staged);
  const int first_depth = warp * kDepthOfSlice;
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    if constexpr (!kStaged) load_x(i, first_depth + i * kDepthOfTurn);
  }
  // Of the tile of the gate, kept until that of what it gates is there.
  constexpr int kOutputsOfThread = (kTileOutputs * kGroups * kRowsOfGroup + kThreads - 1) / kThreads;
  float gates[kOutputsOfThread];
  int stage = 0;
  for (int tile_idx = 0; tile_idx < num_tiles; ++tile_idx) {
    float acc[kGroups][2][4] = {};
    for (int first = first_depth; first < p.depth; first += kNumWarps * kDepthOfSlice) {
      // Behind the last slice the next tile's first.
      const int next = first + kNumWarps * kDepthOfSlice < p.depth ? first + kNumWarps * kDepthOfSlice : first_depth;
      WaitForCopies<kStages - 2>();
      __syncwarp();  // and every lane is done with the slice before
      weights.CopyNext();
      const char* from = weights.ring + stage * kStageBytes + lane / 4 * kRowBytes + offset * 2;
#pragma unroll
      for (int turn = 0; turn < kTurns; ++turn) {
        const int i = turn % kAhead;
        const uint4 upper = *reinterpret_cast<const uint4*>(from + turn * kDepthOfTurn * 2);
        const uint4 lower = *reinterpret_cast<const uint4*>(from + turn * kDepthOfTurn * 2 + 8 * kRowBytes);
        const uint32_t first_half[4] = {upper.x, lower.x, upper.y, lower.y};
        const uint32_t second_half[4] = {upper.z, lower.z, upper.w, lower.w};
        uint32_t high[kGroups][4], low[kGroups][4];
        if constexpr (kStaged) {
          // Rows beyond the last are zeros.
          const int k = first + turn * kDepthOfTurn + offset;
          uint4 of_row[2] = {};
          if (lane / 4 < p.num_rows && k < p.depth) {
            for (int j = 0; j < (kExact ? 2 : 1); ++j) {
              of_row[j] = staged[((j * p.num_rows + lane / 4) * p.depth + k) / 8];
            }
          }
          high[0][0] = of_row[0].x, high[0][1] = of_row[0].y, high[0][2] = of_row[0].z, high[0][3] = of_row[0].w;
          low[0][0] = of_row[1].x, low[0][1] = of_row[1].y, low[0][2] = of_row[1].z, low[0][3] = of_row[1].w;
        } else {
#pragma unroll
          for (int group = 0; group < kGroups; ++group) SplitX<kExact>(x[i][group], high[group], low[group]);
          load_x(i, turn + kAhead < kTurns ? first + (turn + kAhead) * kDepthOfTurn
                                           : next + (turn + kAhead - kTurns) * kDepthOfTurn);
        }
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
      stage = stage + 1 < kStages ? stage + 1 : 0;
    }
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = group * kRowsOfGroup + 2 * (lane % 4) + i % 2;
        sums[tile_idx % kBuffers][warp][lane / 4 + i / 2 * 8][row] = acc[group][0][i] + acc[group][1][i];
      }
    }
    __syncthreads();
    const Tile tile = TileOfBlock(p, tile_idx);
#pragma unroll
    for (int j = 0; j < kOutputsOfThread; ++j) {
      const int i = static_cast<int>(threadIdx.x) + j * kThreads;
      const int output = tile.first_output + i % kTileOutputs;
      const int row = i / kTileOutputs;
      if (row >= p.num_rows || output >= tile.part.num_outputs) continue;
      float sum = tile.part.bias == nullptr ? 0.0f : tile.part.bias[output];
      for (int w = 0; w < kNumWarps; ++w) sum += sums[tile_idx % kBuffers][w][i % kTileOutputs][row];
      if (p.is_gated && tile_idx % 2 == 0) {
        gates[j] = sum;
        continue;
      }
      if (p.is_gated) sum *= gates[j] / (1.0f + expf(-gates[j]));
      float& out = tile.part.out[static_cast<int64_t>(row) * tile.part.num_outputs + output];
      out = p.adds ? out + sum : sum;
    }
    if constexpr (kBuffers == 1) __syncthreads();
  }
}

bool HasManyStages(const CudaDevice& device) {
  return device.facts().shared_bytes_of_block >= size_t{200} << 10;
}
size_t RingBytes(const CudaDevice& device) {
  return size_t{kNumWarps} * (HasManyStages(device) ? kManyStages : kFewStages) * kStageBytes;
}
size_t StagedBytes(int64_t num_rows, int64_t depth, bool is_exact) {
  return static_cast<size_t>(num_rows * depth) * (is_exact ? 4 : 2);
}
bool CanStage(int64_t num_rows, int64_t depth, bool is_exact, const CudaDevice& device) {
  constexpr size_t kBesides = size_t{12} << 10;  // sums, and what a block has anyway
  return num_rows <= kRowsOfGroup &&
         RingBytes(device) + StagedBytes(num_rows, depth, is_exact) + kBesides <= device.facts().shared_bytes_of_block;
}

template <int kGroups, bool kExact, bool kStaged>
void LaunchFor(const FewRowsParams& params, CudaDevice& device) {
  const bool has_many = HasManyStages(device);
  const auto kernel = has_many ? FewRowsMmaKernel<kGroups, kExact, kManyStages, kStaged>
                               : FewRowsMmaKernel<kGroups, kExact, kFewStages, kStaged>;
  const size_t bytes = RingBytes(device) + (kStaged ? StagedBytes(params.num_rows, params.depth, kExact) : 0);
  const int num_turns = params.is_gated ? params.num_tiles / 2 : params.num_tiles;
  Launch(device, "MatMul", Overlapping(std::min(device.facts().num_multiprocessors, num_turns), kThreads, bytes),
         kernel, params);
}

template <int kGroups, bool kStaged = false>
void LaunchFor(const FewRowsParams& params, bool is_exact, CudaDevice& device) {
  if (is_exact) return LaunchFor<kGroups, true, kStaged>(params, device);
  LaunchFor<kGroups, false, kStaged>(params, device);
}

}  // namespace

bool HasFewRows(const LinearArgs& args, const CudaDevice& device) {
  const MatMulArgs& product = args.product;
  const int64_t depth = product.x.shape[1];
  if (product.x.shape[0] > kMaxGroups * kRowsOfGroup || depth % kDepthOfTurn != 0) return false;
  if (args.activation && args.activation->kind != ActivateArgs::Kind::kGatedSilu) return false;
  if (args.norm) {
    const bool is_rms = args.norm->kind == NormArgs::Kind::kRms && !args.norm->bias.present();
    const bool is_aligned = reinterpret_cast<uintptr_t>(args.norm->weight.data) % sizeof(float4) == 0;
    const bool is_exact = product.compute == Compute::kF32;
    // A norm's bits are those of the kernel that does it alone.
    if (!is_rms || !is_aligned || depth > kMaxNormDim) return false;
    if (!CanStage(product.x.shape[0], depth, is_exact, device)) return false;
  }
  return product.parts.size() <= kMaxParts &&
         std::all_of(product.parts.begin(), product.parts.end(),
                     [](const MatMulPart& part) { return part.weight.dtype == DType::kBF16; });
}

void MatMulFewRows(const LinearArgs& linear, CudaDevice& device) {
  const MatMulArgs& args = linear.product;
  if (!device.ok() || args.x.shape[0] == 0) return;
  FewRowsParams params{.x = F32(linear.norm ? linear.norm->x : args.x),
                       .num_rows = static_cast<int>(args.x.shape[0]),
                       .depth = static_cast<int>(args.x.shape[1]),
                       .norm_weight = linear.norm ? F32(linear.norm->weight) : nullptr,
                       .norm_eps = linear.norm ? linear.norm->eps : 0.0f,
                       .adds = args.write == MatMulArgs::Write::kAdd,
                       .is_gated = linear.activation.has_value(),
                       .num_tiles = 0,
                       .parts = {}};
  for (size_t i = 0; i < args.parts.size(); ++i) {
    const MatMulPart& part = args.parts[i];
    params.num_tiles += static_cast<int>(Blocks(part.weight.shape[0], kTileOutputs));
    params.parts[i] = {.weight = static_cast<const Bf16*>(part.weight.rows().data),
                       .bias = F32(part.bias),
                       .out = F32(part.out),
                       .num_outputs = static_cast<int>(part.weight.shape[0]),
                       .end_tile = params.num_tiles};
  }
  const bool is_exact = args.compute == Compute::kF32;
  if (CanStage(params.num_rows, params.depth, is_exact, device)) return LaunchFor<1, true>(params, is_exact, device);
  switch ((params.num_rows + kRowsOfGroup - 1) / kRowsOfGroup) {
    case 1:
      return LaunchFor<1>(params, is_exact, device);
    case 2:
      return LaunchFor<2>(params, is_exact, device);
    case 3:
      return LaunchFor<3>(params, is_exact, device);
    default:
      return LaunchFor<4>(params, is_exact, device);
  }
}

}  // namespace headwise::cuda
