// The kernel of matmul_few_rows_blocks.cu for 9 to 32 rows: 16 warps a block, and K of a tile among the blocks of a
// cluster, so that the part of x that a block multiplies lies in its shared memory.
#ifndef HEADWISE_BACKEND_CUDA_FEW_ROWS_CLUSTERS_CUH_
#define HEADWISE_BACKEND_CUDA_FEW_ROWS_CLUSTERS_CUH_

#include "backend/cuda/few_rows_blocks.cuh"

namespace headwise::cuda::few_rows {

// Sums of up to 32 rows leave no room for a ring of several slices beside x of 4,096 numbers, and with eight warps, two
// for each scheduler, all wait too often. So a cluster of 2^log_blocks blocks shares K out: a block has so many of the
// eight shares of every tile, and a warp for each of them and each of the tiles that the cluster does at once. Those
// are two for each block, which adds up what all blocks leave of its two, each by one of its teams of eight warps.
struct ClusterShape {
  int log_blocks;
  __host__ __device__ int num_blocks() const { return 1 << log_blocks; }
  __host__ __device__ int shares_of_block() const { return kNumShares >> log_blocks; }
  __host__ __device__ int tiles_at_once() const { return kTeamsOfCluster << log_blocks; }
  static constexpr int kTeamsOfCluster = 2;  // of each of its blocks
};
inline constexpr int kClusterThreads = ClusterShape::kTeamsOfCluster * kThreads;
inline constexpr int kMaxLogBlocks = 3;

// Slices of a warp's ring: one that is multiplied, and what is on its way, of short ones two where they fit.
inline constexpr int kClusterStages = 2;
constexpr int MostClusterStages(DType dtype) {
  return OrderOf(dtype).slice_elements() < 256 ? 3 : kClusterStages;
}

// x of a slice by itself, as XBytes of so many turns.
inline XBytes SliceOfX(const XBytes& layout, DType dtype) {
  return {.num_columns = layout.num_columns, .num_turns = OrderOf(dtype).runs / 2, .has_sums = layout.has_sums};
}

// It, by a warp.
template <int kTurns>
__device__ void CopySliceOfX(const XBytes& layout, const char* rounded, int slice_idx, char* to) {
  const int at = static_cast<int>(threadIdx.x % kWarp) * 16;
  const auto copy = [&](const char* from, int bytes) {
    for (int i = at; i < bytes; i += 16 * static_cast<int>(kWarp)) CopyChunk(SharedAddress(to + i), from + i);
    to += bytes;
  };
  const int codes_bytes = kTurns * layout.num_columns * 64;
  const int scales_bytes = kTurns * layout.num_pairs() * 16;
  const char* const scales = rounded + layout.scales_at() + slice_idx * scales_bytes;
  copy(rounded + slice_idx * codes_bytes, codes_bytes);
  copy(scales, scales_bytes);
  if (layout.has_sums) copy(scales + layout.scales_bytes(), scales_bytes);
}

// ---- clusters; before sm_90 a block is one ----------------------------------------------------------------------

// Until all threads of the cluster have come here.
__device__ inline void SyncCluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
// Where there are no barriers for who writes and who reads sums, all threads of the block wait for each other.
__device__ inline void SyncWithoutClusters() {
#if __CUDA_ARCH__ < 900
  __syncthreads();
#endif
}
// A place of shared memory in another block of the cluster.
__device__ inline uint32_t InBlock(const void* shared, int rank) {
  uint32_t address = 0;
#if __CUDA_ARCH__ >= 900
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(SharedAddress(shared)), "r"(rank));
#endif
  return address;
}
// Arrives at a block's barrier: what the thread has read until here may be overwritten by who waits for it there.
// Without a fence of the cluster, which would wait for the thread's copies that are on their way.
__device__ inline void ArriveInBlock(uint64_t* barrier, int rank) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(InBlock(barrier, rank)) : "memory");
#endif
}
// ---- sums ---------------------------------------------------------------------------------------------------------

// Where the warp's part of a tile's sums goes, as StoreShare has it, with few instructions.
template <int kGroups>
struct ShareAt {
  uint32_t of_half[2];  // addresses
  uint32_t turn;        // of groups

  __device__ ShareAt(int share, uint32_t sums) {
    using SumsOfTile = Sums<kGroups>;
    const int output = static_cast<int>(threadIdx.x % kWarp) / 4;
    const int row = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int its_output = output + half * 8;
      const int within = row ^ SumsOfTile::TurnOf(its_output) % kRowsOfGroup;
      const int at = (share * kTileOutputs + its_output) * SumsOfTile::kRows + within;
      of_half[half] = sums + 4u * static_cast<uint32_t>(at);
    }
    turn = 4u * static_cast<uint32_t>(SumsOfTile::TurnOf(output) / kRowsOfGroup * kRowsOfGroup);
  }
  __device__ uint32_t Of(int group, int half) const {
    return of_half[half] + (turn ^ 4u * static_cast<uint32_t>(group * kRowsOfGroup));
  }
};
// store(address, x, y) for each two sums of the warp's lanes.
template <int kGroups, typename Store>
__device__ void ForSums(const ShareAt<kGroups>& to, const float (&acc)[kGroups][4], const Store& store) {
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      store(to.Of(group, half), acc[group][2 * half], acc[group][2 * half + 1]);
    }
  }
}
// Into this block's memory.
template <int kGroups>
__device__ void PutShare(int share, const float (&acc)[kGroups][4], float* sums) {
  ForSums<kGroups>(ShareAt<kGroups>(share, SharedAddress(sums)), acc, [](uint32_t to, float x, float y) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(x), "f"(y) : "memory");
  });
}
// Into a block's of the cluster. Its barrier counts the bytes.
template <int kGroups>
__device__ void SendShare(int share, const float (&acc)[kGroups][4], float* sums, uint64_t* barrier, int rank) {
#if __CUDA_ARCH__ >= 900
  const uint32_t its_barrier = InBlock(barrier, rank);
  ForSums<kGroups>(ShareAt<kGroups>(share, InBlock(sums, rank)), acc, [&](uint32_t to, float x, float y) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(to), "f"(x),
                 "f"(y), "r"(its_barrier)
                 : "memory");
  });
#endif
}

// What a thread of a team writes of its tiles: an output of one row, or of two neighbouring ones. As TileWriter, for
// products that leave nothing for the next one.
template <int kGroups>
struct ClusterWriter {
  using SumsOfTile = Sums<kGroups>;
  static constexpr int kRowsOfThread = SumsOfTile::kRows * kTileOutputs / kThreads;
  static_assert(kRowsOfThread == 1 || kRowsOfThread == 2);
  const FewRowsParams& p;
  const float* const inverses;  // 1 / rms of rows, where sums are multiplied by it
  float gates[kRowsOfThread];   // of the tile of the gate, until that of what it gates is there

  static __device__ int Column() { return static_cast<int>(threadIdx.x) % kTileOutputs; }
  static __device__ int Row() { return static_cast<int>(threadIdx.x) % kThreads / kTileOutputs * kRowsOfThread; }
  __device__ ClusterWriter(const FewRowsParams& params, const float* inverses_of_rows)
      : p(params), inverses(inverses_of_rows) {}
  // `wait`: until sums are there.
  template <typename Wait>
  __device__ void Write(const Tile& tile, bool is_gate, const float* sums, const Wait& wait) {
    const int row = Row();
    const int output = tile.first_output + Column();
    float* const out = tile.part.out + static_cast<int64_t>(row) * tile.part.num_outputs + output;
    const bool has_output = output < tile.part.num_outputs;
    float old[kRowsOfThread];
    if (p.adds) {
#pragma unroll
      for (int i = 0; i < kRowsOfThread; ++i) {
        if (has_output && row + i < p.num_rows) old[i] = out[i * static_cast<int64_t>(tile.part.num_outputs)];
      }
    }
    wait();
    float x[kRowsOfThread] = {};
#pragma unroll
    for (int share = 0; share < kNumShares; ++share) {
      const float* const from = sums + SumsOfTile::IndexOf(share, Column(), row);
      if constexpr (kRowsOfThread == 2) {
        const float2 both = *reinterpret_cast<const float2*>(from);
        x[0] += both.x;
        x[1] += both.y;
      } else {
        x[0] += *from;
      }
    }
    const float bias = tile.part.bias == nullptr ? 0 : tile.part.bias[min(output, tile.part.num_outputs - 1)];
#pragma unroll
    for (int i = 0; i < kRowsOfThread; ++i) {
      if (p.divides_sums()) x[i] = __fmul_rn(x[i], inverses[min(row + i, p.num_rows - 1)]);
      if (tile.part.bias != nullptr) x[i] += bias;
      if (is_gate) gates[i] = x[i];
      if (!is_gate && p.is_gated) x[i] *= p.has_gelu ? GeluTanh(gates[i]) : Silu(gates[i]);
      if (p.adds) x[i] = old[i] + x[i];
      if (!is_gate && has_output && row + i < p.num_rows) out[i * static_cast<int64_t>(tile.part.num_outputs)] = x[i];
    }
  }
};

// ---- the kernel -------------------------------------------------------------------------------------------------

template <DType kType, int kGroups, int kStages>
__global__ void __launch_bounds__(kClusterThreads, 1)
    ClusterKernel(const __grid_constant__ FewRowsParams p, const __grid_constant__ XBytes layout,
                  const __grid_constant__ XBytes of_slice, const char* rounded, ClusterShape shape) {
  constexpr BlockOrder kOrder = OrderOf(kType);
  constexpr int kSliceBytes = kOrder.slice_bytes();
  constexpr int kWarps = kClusterThreads / static_cast<int>(kWarp);
  // Copies of 16 bytes by eight lanes are one access where they are one line.
  extern __shared__ __align__(128) char memory_of_lines[];
  char* const memory = memory_of_lines;
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  const int team = warp / kNumShares;
  const int cluster = static_cast<int>(blockIdx.x) >> shape.log_blocks;
  const int rank = static_cast<int>(blockIdx.x) & (shape.num_blocks() - 1);
  const int num_clusters = static_cast<int>(gridDim.x) >> shape.log_blocks;
  const int shares = shape.shares_of_block();
  const int log_shares = kMaxLogBlocks - shape.log_blocks;
  const int share = rank * shares + (warp & (shares - 1));
  const int place = warp >> log_shares;  // of the warp's tile among those at once
  const auto tiles_at = [&](int at) {
    return Tiles(p, cluster + at * num_clusters, num_clusters * shape.tiles_at_once());
  };
  const Tiles first_tiles = tiles_at(0);
  const Tiles tiles = tiles_at(place);
  const Tiles written = tiles_at((team << shape.log_blocks) + rank);  // by the team

  // Of each team's sums of a set of tiles, in turns in two buffers: all of its tile's shares are there; and of a set:
  // all of the cluster's teams have read theirs.
  constexpr int kTeams = ClusterShape::kTeamsOfCluster;
  __shared__ uint64_t are_there[2][kTeams], are_read;
  const bool is_alone = shape.log_blocks == 0;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2 * kTeams; ++i) InitBarrier(&are_there[0][0] + i, is_alone ? kNumShares : 1);
    InitBarrier(&are_read, shape.tiles_at_once() * kNumShares);
    FenceBarrierInit();
  }
  if (!is_alone) SyncCluster();  // ahead of copies, which it would wait for

  const auto num_slices = static_cast<int>(kOrder.NumSlices(p.depth));
  BlockRing<kSliceBytes, kStages> ring(memory + warp * kStages * kSliceBytes);
  ShareCopies<decltype(ring)> copies(ring, share, num_slices);
  const auto copy_next = [&] {
    copies.CopyNext([&](int i) { return FirstSliceOf<kSliceBytes>(tiles, i, share, num_slices); });
  };
#pragma unroll 1
  for (int i = 0; i < kStages - 1; ++i) copy_next();

  auto* const sums = reinterpret_cast<float*>(memory + kWarps * kStages * kSliceBytes);
  char* const x =
      reinterpret_cast<char*>(sums + p.num_buffers * ClusterShape::kTeamsOfCluster * Sums<kGroups>::kFloats);
  const int x_bytes = of_slice.bytes();
  __shared__ float inverses_of_teams[ClusterShape::kTeamsOfCluster][kMaxColumns];
  float* const inverses = inverses_of_teams[team];
  WaitForEarlier();
  LetLaterBegin();
  for (int at = warp; (at >> log_shares) * kNumShares < num_slices; at += kWarps) {
    const int slice_idx = (at >> log_shares) * kNumShares + rank * shares + (at & (shares - 1));
    if (slice_idx < num_slices) CopySliceOfX<kOrder.runs / 2>(layout, rounded, slice_idx, x + at * x_bytes);
  }
  CommitCopies();
  if (p.divides_sums()) {  // they are read behind the next barrier
    RootsOfRows<kGroups> roots;
    roots.Load(p, p.squares);
    roots.Invert(p, inverses);
  }
  WaitForCopies<0>();
  __syncthreads();
  Groups<kGroups> groups(of_slice, x + (warp & (shares - 1)) * x_bytes);
  ClusterWriter<kGroups> writer(p, inverses);
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const bool has_two = p.num_buffers == 2;
  // Of a set: which buffer, and which time it is that buffer's turn, or that of the barrier for it, modulo 2.
  const auto buffer_of = [&](int set) { return has_two ? set & 1 : 0; };
  const auto turn_of = [&](int set) { return (has_two ? set >> 1 : set) & 1; };
  const auto sums_of = [&](int set, int its_team) {
    return sums + (buffer_of(set) * kTeams + its_team) * Sums<kGroups>::kFloats;
  };
  const auto write = [&](int set) {
    if (written.IsThere(set)) {
      uint64_t* const barrier = &are_there[buffer_of(set)][team];
      writer.Write(written.Get(set), written.IsGate(set), sums_of(set, team), [&] {
        constexpr int kBytes = kNumShares * kTileOutputs * kGroups * kRowsOfGroup * static_cast<int>(sizeof(float));
        if (!is_alone && threadIdx.x % kThreads == 0) ExpectBytes(barrier, kBytes);
        WaitFor(barrier, turn_of(set));
      });
      __syncwarp();
    }
    if (lane < shape.num_blocks() && first_tiles.IsThere(set + p.num_buffers)) ArriveInBlock(&are_read, lane);
  };
  // With two buffers a set of tiles is written behind the products of the next one: others' shares are there by then.
  const int delay = p.num_buffers - 1;
  const int to_team = place >> shape.log_blocks;
  const int to_rank = place & (shape.num_blocks() - 1);
  int set = 0;
  for (; first_tiles.IsThere(set); ++set) {
    float acc[kGroups][4] = {};
    const bool has_tile = tiles.IsThere(set);
    if (has_tile) {
      for (int slice_idx = share; slice_idx < num_slices; slice_idx += kNumShares) {
        const char* const slice = ring.Wait();
        copy_next();
        MultiplySlice<kType, kGroups>(slice, of_slice, groups.of, 0, acc);
        ring.Release();
        groups.Move(shares * x_bytes);
      }
      groups.Move(-copies.of_tile * shares * x_bytes);
      TakeFactorBack<kType>(acc);
    }
    SyncWithoutClusters();
    // All have written what was in the buffer. A warp waits for that before it arrives for the next set.
    if (set >= p.num_buffers) WaitFor(&are_read, (set - p.num_buffers) & 1);
    if (has_tile) {
      float* const to = sums_of(set, to_team);
      uint64_t* const barrier = &are_there[buffer_of(set)][to_team];
      if (is_alone) {
        PutShare<kGroups>(share, acc, to);
        __syncwarp();
        if (lane == 0) Arrive(barrier);
      } else {
        SendShare<kGroups>(share, acc, to, barrier, to_rank);
      }
    }
    SyncWithoutClusters();
    if (set >= delay) write(set - delay);
  }
  if (delay > 0) write(set - 1);
}

}  // namespace headwise::cuda::few_rows

#endif  // HEADWISE_BACKEND_CUDA_FEW_ROWS_CLUSTERS_CUH_
