// What products of few rows are made of (matmul_few_rows.cu): which tiles a block does, weights on their way through
// shared memory, x as operands in it, and where sums meet.
#ifndef HEADWISE_BACKEND_CUDA_FEW_ROWS_CUH_
#define HEADWISE_BACKEND_CUDA_FEW_ROWS_CUH_

#include "backend/cuda/async_copy.cuh"
#include "backend/cuda/norm.cuh"

namespace headwise::cuda::few_rows {

using Bf16 = __nv_bfloat16;

inline constexpr int kTileOutputs = 16;
inline constexpr int kRowsOfGroup = 8;  // of x
inline constexpr int kMaxGroups = 4;
inline constexpr int kMaxColumns = kMaxGroups * kRowsOfGroup;  // that a kernel multiplies
inline constexpr int kMaxParts = 4;
inline constexpr int kDepthOfTurn = 32;  // 16 bytes of a weight row for a lane, operands of two products
inline constexpr int kTurns = 4;
inline constexpr int kDepthOfSlice = kTurns * kDepthOfTurn;
inline constexpr int kChunksOfSlice = kDepthOfSlice / 8;  // 16 bytes in bf16
inline constexpr int kNumShares = 8;                      // of K, slice by slice: a warp's work on a tile
inline constexpr int kThreads = kNumShares * static_cast<int>(kWarp);
static_assert(kThreads == kNormThreads);
inline constexpr int kRowBytes = kDepthOfSlice * 2;
inline constexpr int kStageBytes = kTileOutputs * kRowBytes;

struct FewRowsParams {
  const float* x;  // [T, K]
  int num_rows, depth;
  // x / rms(x) * weight in place of x, where there is a weight.
  const float* norm_weight;  // [K]
  float norm_eps;
  bool adds;
  bool is_gated;    // out of the second part = silu(first) * second; both have as many tiles
  bool is_exact;    // x as two numbers in bf16, what rounding leaves being the second
  int num_buffers;  // for sums: 2 where there is memory, so that who reads one does not hold up who writes the other
  int num_tiles;
  // Rows that are multiplied: those of x as rounded, then, where it is wanted exactly, those of what rounding left.
  __host__ __device__ int num_columns() const { return is_exact ? 2 * num_rows : num_rows; }
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
__device__ inline Tile TileOf(const FewRowsParams& p, int tile) {
  int i = 0;
  while (tile >= p.parts[i].end_tile) ++i;
  return {p.parts[i], (tile - (i == 0 ? 0 : p.parts[i - 1].end_tile)) * kTileOutputs};
}

// Which tiles a block does: every so many-th, so that blocks read beside each other, or pairs of them where gated, of
// the gate and the same of what it gates.
struct Tiles {
  const FewRowsParams& p;

  // Without divisions, which would stand between the kernel's beginning and its first copy.
  __device__ explicit Tiles(const FewRowsParams& params) : p(params) {}
  __device__ int half() const { return p.num_tiles >> 1; }
  __device__ int UnitOf(int i) const {
    return static_cast<int>(blockIdx.x) + (p.is_gated ? i >> 1 : i) * static_cast<int>(gridDim.x);
  }
  __device__ bool IsThere(int i) const { return UnitOf(i) < (p.is_gated ? half() : p.num_tiles); }
  __device__ bool IsGate(int i) const { return p.is_gated && (i & 1) == 0; }
  __device__ Tile Get(int i) const { return TileOf(p, UnitOf(i) + (p.is_gated && (i & 1) == 1 ? half() : 0)); }
};

// Eight numbers of a row of x, and what rounding left of them.
struct SplitNumbers {
  uint32_t high[4], low[4];
  __device__ explicit SplitNumbers(const float4 (&x)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float values[4] = {x[i].x, x[i].y, x[i].z, x[i].w};
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float first = Round<Bf16>(values[2 * j]);
        const float second = Round<Bf16>(values[2 * j + 1]);
        high[2 * i + j] = Pack<Bf16>(first, second);
        low[2 * i + j] = Pack<Bf16>(values[2 * j] - first, values[2 * j + 1] - second);
      }
    }
  }
};

// One over the root mean square of a row, the same in all threads; 1 where there is no norm.
__device__ inline float InverseOfRow(const FewRowsParams& p, int row) {
  if (p.norm_weight == nullptr) return 1;
  const auto* x = reinterpret_cast<const float4*>(p.x + static_cast<int64_t>(row) * p.depth);
  float squares = 0;
  for (int i = static_cast<int>(threadIdx.x); i < p.depth / 4; i += kThreads) squares = AddSquares(squares, x[i]);
  return InverseRoot(SumOfBlock(squares), p.depth, p.norm_eps);
}
// Numbers [depth, depth + 8) of a row, zeros behind the last.
__device__ inline void LoadNumbers(const FewRowsParams& p, int row, int depth, float inverse, float4 (&values)[2]) {
  values[0] = values[1] = {0, 0, 0, 0};
  if (depth >= p.depth) return;
  const auto* from = reinterpret_cast<const float4*>(p.x + static_cast<int64_t>(row) * p.depth + depth);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    values[i] = from[i];
    if (p.norm_weight == nullptr) continue;
    values[i] = Scaled(values[i], inverse, reinterpret_cast<const float4*>(p.norm_weight + depth)[i]);
  }
}

// How x lies in a block's shared memory: its slices, of each four turns, of each the columns, of each the four chunks
// of 16 bytes that its lanes take.
struct StagedX {
  int num_columns;
  __host__ __device__ explicit StagedX(int columns) : num_columns(columns) {}
  static __host__ __device__ int NumSlices(int depth) { return (depth + kDepthOfSlice - 1) / kDepthOfSlice; }
  __host__ __device__ int num_chunks(int depth) const { return NumSlices(depth) * kChunksOfSlice * num_columns; }
  __device__ int IndexOf(int slice, int turn, int column) const {
    return ((slice * kTurns + turn) * num_columns + column) * 4;
  }
};
__device__ inline void StoreStaged(const FewRowsParams& p, const StagedX& to, int row, int chunk,
                                   const float4 (&values)[2], uint4* staged) {
  const SplitNumbers split(values);
  const int at = to.IndexOf(chunk / kChunksOfSlice, chunk % kChunksOfSlice / 4, row) + chunk % 4;
  staged[at] = {split.high[0], split.high[1], split.high[2], split.high[3]};
  if (p.is_exact) staged[at + p.num_rows * 4] = {split.low[0], split.low[1], split.low[2], split.low[3]};
}
__device__ inline void StageX(const FewRowsParams& p, uint4* staged) {
  const StagedX to(p.num_columns());
  const int num_chunks = StagedX::NumSlices(p.depth) * kChunksOfSlice;  // of a row
  const auto thread = static_cast<int>(threadIdx.x);
  if (p.norm_weight != nullptr) {
    for (int row = 0; row < p.num_rows; ++row) {
      const float inverse = InverseOfRow(p, row);
      for (int chunk = thread; chunk < num_chunks; chunk += kThreads) {
        float4 values[2];
        LoadNumbers(p, row, chunk * 8, inverse, values);
        StoreStaged(p, to, row, chunk, values, staged);
      }
    }
  } else {
    // So many loads at once of a thread.
    constexpr int kAtOnce = 8;
    const int count = num_chunks * p.num_rows;
    for (int first = thread; first < count; first += kAtOnce * kThreads) {
      float4 values[kAtOnce][2];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int i = first + j * kThreads;
        if (i < count) LoadNumbers(p, i / num_chunks, i % num_chunks * 8, 1, values[j]);
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int i = first + j * kThreads;
        if (i < count) StoreStaged(p, to, i / num_chunks, i % num_chunks, values[j], staged);
      }
    }
  }
  __syncthreads();
}

// A warp's ring of slices, each copied kStages - 1 before it is used: 16 rows of a matrix of K columns, of 128 of them.
template <int kStages>
struct SliceRing {
  char* const memory;  // [kStages][kStageBytes]
  int written = 0, read = 0;

  __device__ explicit SliceRing(char* begin) : memory(begin) {}
  // Chunks of odd rows change places, so that two rows' 64 bytes lie in different banks.
  static __device__ int OffsetOf(int row, int chunk) { return row * kRowBytes + (chunk ^ (row % 2 * 4)) * 16; }

  // Rows [first_row, first_row + 16) of [num_rows, K], those beyond the last as the last; columns beyond K as zeros.
  __device__ void Copy(const Bf16* matrix, int num_rows, int first_row, int num_columns, int column) {
    const uint32_t to = SharedAddress(memory + written * kStageBytes);
    const int lane = static_cast<int>(threadIdx.x % kWarp);
    const int chunk = lane % kChunksOfSlice;
    const bool is_there = column + chunk * 8 < num_columns;
#pragma unroll
    for (int row = lane / kChunksOfSlice; row < kTileOutputs; row += static_cast<int>(kWarp) / kChunksOfSlice) {
      const int64_t from = min(first_row + row, num_rows - 1);
      CopyChunk(to + OffsetOf(row, chunk), is_there ? matrix + from * num_columns + column + chunk * 8 : nullptr);
    }
  }
  // Behind each Copy, or in place of it where nothing is left.
  __device__ void Commit() {
    written = written + 1 < kStages ? written + 1 : 0;
    CommitCopies();
  }
  // The oldest slice, once it is there.
  __device__ const char* Wait() {
    WaitForCopies<kStages - 2>();
    __syncwarp();  // and every lane is done with the slice before
    return memory + read * kStageBytes;
  }
  __device__ void Release() {
    read = read + 1 < kStages ? read + 1 : 0;
  }
};

// Operands of a slice's turn: weights are the 16 rows of a product, x its 8 columns.
struct WeightOperands {
  uint32_t first_half[4], second_half[4];
  __device__ WeightOperands(const char* slice, int turn) {
    const int lane = static_cast<int>(threadIdx.x % kWarp);
    const int chunk = turn * 4 + lane % 4;
    const uint4 upper = *reinterpret_cast<const uint4*>(slice + SliceRing<2>::OffsetOf(lane / 4, chunk));
    const uint4 lower = *reinterpret_cast<const uint4*>(slice + SliceRing<2>::OffsetOf(lane / 4 + 8, chunk));
    first_half[0] = upper.x, first_half[1] = lower.x, first_half[2] = upper.y, first_half[3] = lower.y;
    second_half[0] = upper.z, second_half[1] = lower.z, second_half[2] = upper.w, second_half[3] = lower.w;
  }
};
__device__ inline void MultiplyTurn(float (&acc)[4], const WeightOperands& weights, const uint4& x) {
  MultiplyAdd<Bf16>(acc, weights.first_half, x.x, x.y);
  MultiplyAdd<Bf16>(acc, weights.second_half, x.z, x.w);
}

// Sums of a tile's shares, [kNumShares][kTileOutputs][rows], rows in an order that keeps both who writes pairs of them
// and who reads one row of all outputs in different banks.
template <int kGroups>
struct Sums {
  static constexpr int kRows = kGroups * kRowsOfGroup;
  static constexpr int kFloats = kNumShares * kTileOutputs * kRows;
  static __device__ int IndexOf(int share, int output, int row) {
    const int turned = (output % 4 / (kMaxGroups / kGroups) * 8) ^ (output / 4 * 2);
    return (share * kTileOutputs + output) * kRows + (row ^ turned);
  }
};

// What the warp has of a tile.
template <int kGroups>
__device__ void StoreShare(int share, const float (&acc)[kGroups][4], float* sums) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int to = Sums<kGroups>::IndexOf(share, lane / 4 + half * 8, group * kRowsOfGroup + 2 * (lane % 4));
      *reinterpret_cast<float2*>(sums + to) = {acc[group][2 * half], acc[group][2 * half + 1]};
    }
  }
}

// What a thread writes of one tile after the other.
template <int kGroups>
struct TileWriter {
  static constexpr int kSumsOfThread = (kTileOutputs * Sums<kGroups>::kRows + kThreads - 1) / kThreads;
  const FewRowsParams& p;
  float gates[kSumsOfThread];  // of the tile of the gate, kept until that of what it gates is there

  __device__ explicit TileWriter(const FewRowsParams& params) : p(params) {}

  // Shares are added in their order, to the bias.
  __device__ void Write(const Tile& tile, bool is_gate, const float* sums) {
    using TileSums = Sums<kGroups>;
#pragma unroll
    for (int j = 0; j < kSumsOfThread; ++j) {
      const int i = static_cast<int>(threadIdx.x) + j * kThreads;
      const int column = i % kTileOutputs;
      const int output = tile.first_output + column;
      const int row = i / kTileOutputs;
      if (row >= p.num_rows || output >= tile.part.num_outputs) continue;
      float sum = tile.part.bias == nullptr ? 0.0f : tile.part.bias[output];
      float of_share[kNumShares];  // one round of loads, for which all warps wait
#pragma unroll
      for (int share = 0; share < kNumShares; ++share) of_share[share] = sums[TileSums::IndexOf(share, column, row)];
      if (p.is_exact) {
#pragma unroll
        for (int share = 0; share < kNumShares; ++share) {
          of_share[share] += sums[TileSums::IndexOf(share, column, row + p.num_rows)];
        }
      }
#pragma unroll
      for (int share = 0; share < kNumShares; ++share) sum += of_share[share];
      if (is_gate) {
        gates[j] = sum;
        continue;
      }
      if (p.is_gated) sum *= gates[j] / (1.0f + expf(-gates[j]));
      float& out = tile.part.out[static_cast<int64_t>(row) * tile.part.num_outputs + output];
      out = p.adds ? out + sum : sum;
    }
  }
};

}  // namespace headwise::cuda::few_rows

#endif  // HEADWISE_BACKEND_CUDA_FEW_ROWS_CUH_
