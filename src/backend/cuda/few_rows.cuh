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
inline constexpr int kMaxRows = kMaxGroups * kRowsOfGroup;
inline constexpr int kMaxParts = 4;
inline constexpr int kDepthOfTurn = 32;  // 16 bytes of a weight row for a lane, operands of two products
inline constexpr int kTurns = 4;
inline constexpr int kDepthOfSlice = kTurns * kDepthOfTurn;
inline constexpr int kChunksOfSlice = kDepthOfSlice / 8;  // 16 bytes in bf16
inline constexpr int kNumShares = 8;                      // of K, slice by slice: a warp's work on a tile
inline constexpr int kNumWarps = kNumShares;
inline constexpr int kMultiplyThreads = kNumWarps * static_cast<int>(kWarp);
static_assert(kMultiplyThreads == kNormThreads);
inline constexpr int kMultiplyBarrier = kNormBarrier;
inline constexpr int kMaxRanks = 8;
inline constexpr int kRowBytes = kDepthOfSlice * 2;
inline constexpr int kStageBytes = kTileOutputs * kRowBytes;

struct FewRowsParams {
  const float* x;  // [T, K]
  int num_rows, depth;
  // x / rms(x) * weight in place of x, where there is a weight: only where x lies in one block.
  const float* norm_weight;  // [K]
  float norm_eps;
  bool adds;
  bool is_gated;    // out of the second part = silu(first) * second; both have as many tiles
  int num_buffers;  // for sums: 2 where there is memory, so that who reads one does not hold up who writes the other
  int num_ranks;    // blocks of a cluster, up to kMaxRanks
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
__device__ inline Tile TileOf(const FewRowsParams& p, int tile) {
  int i = 0;
  while (tile >= p.parts[i].end_tile) ++i;
  return {p.parts[i], (tile - (i == 0 ? 0 : p.parts[i - 1].end_tile)) * kTileOutputs};
}

// Which tiles a cluster does: every so many-th set of one for each rank, or pair of sets, of the gate and the same of
// what it gates. A block alone is a cluster of one.
struct Tiles {
  const FewRowsParams& p;
  int cluster, num_clusters;
  int limit;  // tiles of which sets are made

  __device__ explicit Tiles(const FewRowsParams& params)
      : p(params),
        cluster(static_cast<int>(blockIdx.x) / params.num_ranks),
        num_clusters(static_cast<int>(gridDim.x) / params.num_ranks),
        limit(params.is_gated ? params.num_tiles / 2 : params.num_tiles) {}
  __device__ int count() const {
    const int num_sets = (limit + p.num_ranks - 1) / p.num_ranks;
    return (num_sets - cluster + num_clusters - 1) / num_clusters * (p.is_gated ? 2 : 1);
  }
  __device__ int IndexOf(int i, int rank) const {
    return (cluster + (p.is_gated ? i / 2 : i) * num_clusters) * p.num_ranks + rank;
  }
  __device__ bool IsThere(int i, int rank) const { return IndexOf(i, rank) < limit; }
  __device__ bool IsGate(int i) const { return p.is_gated && i % 2 == 0; }
  // The last one in place of one that is not there: read, not written.
  __device__ Tile Get(int i, int rank) const {
    return TileOf(p, min(IndexOf(i, rank), limit - 1) + (p.is_gated && i % 2 == 1 ? limit : 0));
  }
};

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

// A warp's slices of all its tiles, one behind the other, each copied kStages - 1 before it is used.
template <int kStages>
struct WeightStream {
  const Tiles& tiles;
  const int depth_of_tile, share, rank;  // of the tiles
  const int num_tiles;
  char* const ring;  // the warp's [kStages][kStageBytes]
  int tile_idx = 0;
  int depth;  // where the next slice begins
  int stage = 0;
  Tile tile;

  __device__ WeightStream(const Tiles& its_tiles, char* memory, int its_share, int its_rank)
      : tiles(its_tiles),
        depth_of_tile(its_tiles.p.depth),
        share(its_share),
        rank(its_rank),
        num_tiles(its_tiles.count()),
        ring(memory),
        depth(its_share * kDepthOfSlice) {
    if (num_tiles > 0) tile = tiles.Get(0, rank);
  }

  // Chunks of odd rows change places, so that two rows' 64 bytes lie in different banks.
  static __device__ int OffsetOf(int row, int chunk) { return row * kRowBytes + (chunk ^ (row % 2 * 4)) * 16; }

  __device__ void CopyNext() {
    if (depth >= depth_of_tile) {  // behind the last slice of the tile, or of a share that has none
      depth = share * kDepthOfSlice;
      if (depth < depth_of_tile && ++tile_idx < num_tiles) tile = tiles.Get(tile_idx, rank);
    }
    if (depth < depth_of_tile && tile_idx < num_tiles) {
      const uint32_t to = SharedAddress(ring + stage * kStageBytes);
      const int lane = static_cast<int>(threadIdx.x % kWarp);
      const int chunk = lane % kChunksOfSlice;
      const bool is_there = depth + chunk * 8 < depth_of_tile;
#pragma unroll
      for (int row = lane / kChunksOfSlice; row < kTileOutputs; row += static_cast<int>(kWarp) / kChunksOfSlice) {
        // Rows beyond the last are read as the last and not written.
        const int output = min(tile.first_output + row, tile.part.num_outputs - 1);
        const Bf16* from = tile.part.weight + static_cast<int64_t>(output) * depth_of_tile + depth + chunk * 8;
        CopyChunk(to + OffsetOf(row, chunk), is_there ? from : nullptr);
      }
      depth += kNumShares * kDepthOfSlice;
    }
    stage = stage + 1 < kStages ? stage + 1 : 0;
    CommitCopies();
  }
};

// How x lies in a block's shared memory: the slices of its shares, of each four turns, of each the rows, of each the
// four chunks of 16 bytes that its lanes take. Behind all of it, where x is wanted exactly, what rounding left.
struct StagedX {
  int num_rows, num_shares, num_slices;  // of the block

  __host__ __device__ StagedX(int rows, int depth, int num_ranks)
      : num_rows(rows),
        num_shares(kNumShares / num_ranks),
        num_slices((depth + kNumShares * kDepthOfSlice - 1) / (kNumShares * kDepthOfSlice) * num_shares) {}
  __host__ __device__ int num_chunks() const { return num_slices * kChunksOfSlice * num_rows; }
  __device__ int IndexOf(int slice, int turn, int row) const { return ((slice * kTurns + turn) * num_rows + row) * 4; }
};

// Where x is normalised on the way, this is where.
template <bool kExact>
__device__ void StageX(const FewRowsParams& p, int rank, uint4* staged) {
  constexpr int kAtOnce = 8;
  const StagedX to(p.num_rows, p.depth, p.num_ranks);
  const int chunks_of_row = to.num_slices * kChunksOfSlice;
  const auto* weight = reinterpret_cast<const float4*>(p.norm_weight);
  const auto depth_of = [&](int chunk) {
    const int slice = chunk / kChunksOfSlice;
    const int of_text = slice / to.num_shares * kNumShares + rank * to.num_shares + slice % to.num_shares;
    return of_text * kDepthOfSlice + chunk % kChunksOfSlice * 8;
  };
  const auto store = [&](int row, int chunk, const float4(&values)[2]) {
    uint32_t high[4], low[4];
    SplitX<kExact>(values, high, low);
    const int slice = chunk / kChunksOfSlice;
    const int i = to.IndexOf(slice, chunk % kChunksOfSlice / 4, row) + chunk % 4;
    staged[i] = {high[0], high[1], high[2], high[3]};
    if constexpr (kExact) staged[to.num_chunks() + i] = {low[0], low[1], low[2], low[3]};
  };
  if (weight == nullptr) {
    const int count = chunks_of_row * p.num_rows;
    for (int first = static_cast<int>(threadIdx.x); first < count; first += kAtOnce * kMultiplyThreads) {
      float4 values[kAtOnce][2] = {};
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int i = first + j * kMultiplyThreads;
        const int depth = depth_of(i % chunks_of_row);
        if (i >= count || depth >= p.depth) continue;
        const auto* from =
            reinterpret_cast<const float4*>(p.x + static_cast<int64_t>(i / chunks_of_row) * p.depth + depth);
        values[j][0] = from[0];
        values[j][1] = from[1];
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int i = first + j * kMultiplyThreads;
        if (i < count) store(i / chunks_of_row, i % chunks_of_row, values[j]);
      }
    }
  }
  for (int row = 0; weight != nullptr && row < p.num_rows; ++row) {
    const auto* x = reinterpret_cast<const float4*>(p.x + static_cast<int64_t>(row) * p.depth);
    float squares = 0;
    for (int i = static_cast<int>(threadIdx.x); i < p.depth / 4; i += kMultiplyThreads)
      squares = AddSquares(squares, x[i]);
    const float inverse = InverseRoot(SumOfBlock(squares), p.depth, p.norm_eps);
    for (int chunk = static_cast<int>(threadIdx.x); chunk < chunks_of_row; chunk += kMultiplyThreads) {
      float4 values[2] = {};
      const int i = depth_of(chunk) / 4;
      for (int j = 0; j < 2 && 4 * i < p.depth; ++j) values[j] = Scaled(x[i + j], inverse, weight[i + j]);
      store(row, chunk, values);
    }
  }
  SyncThreads(kMultiplyBarrier, kMultiplyThreads);
}

// Where in x the next products are: a turn of a slice.
struct Turn {
  int slice;              // of the block's
  int idx;                // of the slice
  int depth, next_depth;  // where the slice begins, and the warp's next one
};

// x as operands, from shared memory: rows beyond the last are zeros.
template <int kGroups, bool kExact>
struct XFromShared {
  const StagedX layout;
  const uint4* const staged;
  const int lane = static_cast<int>(threadIdx.x % kWarp);

  __device__ XFromShared(const FewRowsParams& p, const uint4* memory)
      : layout(p.num_rows, p.depth, p.num_ranks), staged(memory) {}
  __device__ void Take(const Turn& turn, uint32_t (&high)[kGroups][4], uint32_t (&low)[kGroups][4]) {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int row = group * kRowsOfGroup + lane / 4;
      uint4 of_row[2] = {};
      if (row < layout.num_rows) {
        const int at = layout.IndexOf(turn.slice, turn.idx, row) + lane % 4;
        of_row[0] = staged[at];
        if constexpr (kExact) of_row[1] = staged[layout.num_chunks() + at];
      }
      high[group][0] = of_row[0].x, high[group][1] = of_row[0].y;
      high[group][2] = of_row[0].z, high[group][3] = of_row[0].w;
      low[group][0] = of_row[1].x, low[group][1] = of_row[1].y;
      low[group][2] = of_row[1].z, low[group][3] = of_row[1].w;
    }
  }
};

// The same from the second-level cache, some turns ahead.
template <int kGroups, bool kExact>
struct XFromCache {
  static constexpr int kAhead = kGroups == 1 ? kTurns : kGroups == kMaxGroups && kExact ? 1 : kTurns / 2;
  const FewRowsParams& p;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  float4 x[kAhead][kGroups][2];

  __device__ XFromCache(const FewRowsParams& params, int first_depth) : p(params) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) Load(i, first_depth + i * kDepthOfTurn);
  }
  __device__ void Load(int i, int depth) {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int row = group * kRowsOfGroup + lane / 4;
      x[i][group][0] = x[i][group][1] = {0, 0, 0, 0};
      if (row >= p.num_rows || depth >= p.depth) continue;
      const float* const from = p.x + static_cast<int64_t>(row) * p.depth + depth + lane % 4 * 8;
      x[i][group][0] = reinterpret_cast<const float4*>(from)[0];
      x[i][group][1] = reinterpret_cast<const float4*>(from)[1];
    }
  }
  __device__ void Take(const Turn& turn, uint32_t (&high)[kGroups][4], uint32_t (&low)[kGroups][4]) {
    const int i = turn.idx % kAhead;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) SplitX<kExact>(x[i][group], high[group], low[group]);
    const int later = turn.idx + kAhead;
    Load(i, later < kTurns ? turn.depth + later * kDepthOfTurn : turn.next_depth + (later - kTurns) * kDepthOfTurn);
  }
};

// The warp's share of a tile: two sums, of x as rounded and of what rounding left.
template <int kGroups, bool kExact, int kStages, typename X>
__device__ void MultiplyTile(WeightStream<kStages>& weights, X& x, int& stage, int num_shares,
                             float (&acc)[kGroups][2][4]) {
  constexpr int kStep = kNumShares * kDepthOfSlice;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int first = weights.share * kDepthOfSlice;
  int slice = weights.share % num_shares;
  for (int depth = first; depth < weights.depth_of_tile; depth += kStep, slice += num_shares) {
    // Behind the last slice the next tile's first.
    const int next = depth + kStep < weights.depth_of_tile ? depth + kStep : first;
    WaitForCopies<kStages - 2>();
    __syncwarp();  // and every lane is done with the slice before
    weights.CopyNext();
    const char* const from = weights.ring + stage * kStageBytes;
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      const int chunk = turn * 4 + lane % 4;
      const uint4 upper = *reinterpret_cast<const uint4*>(from + weights.OffsetOf(lane / 4, chunk));
      const uint4 lower = *reinterpret_cast<const uint4*>(from + weights.OffsetOf(lane / 4 + 8, chunk));
      const uint32_t first_half[4] = {upper.x, lower.x, upper.y, lower.y};
      const uint32_t second_half[4] = {upper.z, lower.z, upper.w, lower.w};
      uint32_t high[kGroups][4], low[kGroups][4];
      x.Take({slice, turn, depth, next}, high, low);
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

// store(index in Sums, two rows' sums) for all that the warp has of a tile.
template <int kGroups, typename Store>
__device__ void StoreShare(int share, const float (&acc)[kGroups][2][4], const Store& store) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      store(Sums<kGroups>::IndexOf(share, lane / 4 + half * 8, group * kRowsOfGroup + 2 * (lane % 4)),
            float2{acc[group][0][2 * half] + acc[group][1][2 * half],
                   acc[group][0][2 * half + 1] + acc[group][1][2 * half + 1]});
    }
  }
}

// What a thread of kNumThreads writes of one tile after the other.
template <int kGroups, int kNumThreads>
struct TileWriter {
  static constexpr int kNumSums = kTileOutputs * Sums<kGroups>::kRows;
  static constexpr int kSumsOfThread = (kNumSums + kNumThreads - 1) / kNumThreads;
  const FewRowsParams& p;
  const int thread;
  float sums[kSumsOfThread];
  float gates[kSumsOfThread];  // of the tile of the gate, kept until that of what it gates is there

  __device__ TileWriter(const FewRowsParams& params, int its_thread) : p(params), thread(its_thread) {}

  // From biases on, shares in their order.
  __device__ void Begin(const Tile& tile) {
#pragma unroll
    for (int j = 0; j < kSumsOfThread; ++j) {
      const int output = tile.first_output + (thread + j * kNumThreads) % kTileOutputs;
      sums[j] = tile.part.bias == nullptr || output >= tile.part.num_outputs ? 0.0f : tile.part.bias[output];
    }
  }
  __device__ void AddShares(const float* from) {
#pragma unroll
    for (int j = 0; j < kSumsOfThread; ++j) {
      const int i = thread + j * kNumThreads;
      if (kNumSums % kNumThreads != 0 && i >= kNumSums) continue;
      for (int share = 0; share < kNumShares; ++share) {
        sums[j] += from[Sums<kGroups>::IndexOf(share, i % kTileOutputs, i / kTileOutputs)];
      }
    }
  }
  __device__ void Write(const Tile& tile, bool is_gate) {
#pragma unroll
    for (int j = 0; j < kSumsOfThread; ++j) {
      const int i = thread + j * kNumThreads;
      const int output = tile.first_output + i % kTileOutputs;
      const int row = i / kTileOutputs;
      if (is_gate) {
        gates[j] = sums[j];
        continue;
      }
      if (row >= p.num_rows || output >= tile.part.num_outputs) continue;
      if (p.is_gated) sums[j] *= gates[j] / (1.0f + expf(-gates[j]));
      float& out = tile.part.out[static_cast<int64_t>(row) * tile.part.num_outputs + output];
      out = p.adds ? out + sums[j] : sums[j];
    }
  }
};

}  // namespace headwise::cuda::few_rows

#endif  // HEADWISE_BACKEND_CUDA_FEW_ROWS_CUH_
