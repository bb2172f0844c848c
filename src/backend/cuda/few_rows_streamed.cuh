// The kernel of matmul_few_rows_blocks.cu for rows that are too long to lie in shared memory beside the weights: every
// warp brings the part of x that belongs to its next slice with its weights, for four tiles at once.
#ifndef HEADWISE_BACKEND_CUDA_FEW_ROWS_STREAMED_CUH_
#define HEADWISE_BACKEND_CUDA_FEW_ROWS_STREAMED_CUH_

#include "backend/cuda/few_rows_blocks.cuh"

namespace headwise::cuda::few_rows {

inline constexpr int kTilesAtOnce = 4;
static_assert(kTilesAtOnce % 2 == 0);  // sets but the last leave buffers of sums in turns
// The first tile of a slice is copied when that of the slice before is there, and with it x of the slice.
inline constexpr int kStreamStages = kTilesAtOnce + 1;

// The part of x that belongs to a slice, as XBytes of so many turns, by a warp.
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

template <DType kType, int kGroups>
__global__ void __launch_bounds__(kThreads, 1)
    StreamedBlocksKernel(const __grid_constant__ FewRowsParams p, const __grid_constant__ XBytes layout,
                         const char* rounded) {
  constexpr BlockOrder kOrder = OrderOf(kType);
  constexpr int kSliceBytes = kOrder.slice_bytes();
  constexpr int kTurnsOfSlice = kOrder.runs / 2;
  extern __shared__ __align__(16) char memory[];
  const int share = static_cast<int>(threadIdx.x / kWarp);
  const Tiles tiles(p);
  const auto num_slices = static_cast<int>(kOrder.NumSlices(p.depth));
  BlockRing<kSliceBytes, kStreamStages> ring(memory + share * kStreamStages * kSliceBytes);
  auto* const sums = reinterpret_cast<float*>(memory + kNumShares * kStreamStages * kSliceBytes);
  XBytes of_slice = layout;
  of_slice.num_turns = kTurnsOfSlice;
  const int x_bytes = of_slice.bytes();
  char* const x = reinterpret_cast<char*>(sums + p.num_buffers * Sums<kGroups>::kFloats) + share * 2 * x_bytes;
  // What is copied next: of every set of tiles the slices of the share, of every slice the tiles. Tiles that are not
  // there count, so that a slice's are always as many.
  int next_first = 0;
  int next_slice = share;
  int next_item = 0;
  int next_x = 0;
  const auto find = [&](int tile_idx, int slice_idx) {
    const Tile tile = tiles.Get(tile_idx);
    return static_cast<const char*>(tile.part.weight) +
           (static_cast<int64_t>(tile.first_output / kTileOutputs) * num_slices + slice_idx) * kSliceBytes;
  };
  const auto copy_next = [&] {
    if (next_slice < num_slices && tiles.IsThere(next_first)) {
      if (next_item == 0) {
        CopySliceOfX<kTurnsOfSlice>(layout, rounded, next_slice, x + next_x * x_bytes);
        next_x ^= 1;
      }
      if (tiles.IsThere(next_first + next_item)) ring.Copy(find(next_first + next_item, next_slice) + ring.LaneAt());
      if (++next_item == kTilesAtOnce) {
        next_item = 0;
        next_slice += kNumShares;
        if (next_slice >= num_slices) {
          next_slice = share;
          next_first += kTilesAtOnce;
        }
      }
    }
    ring.Commit();
  };
  // x is not there yet: the first weights wait in the second-level cache.
  if (share < num_slices) {
    const int at = static_cast<int>(threadIdx.x % kWarp) * 128;
    for (int i = 0; i < kTilesAtOnce && tiles.IsThere(i); ++i) {
      if (at < kSliceBytes) PrefetchLine(find(i, share) + at);
    }
  }
  WaitForEarlier();
  LetLaterBegin();
#pragma unroll 1
  for (int i = 0; i < kStreamStages - 1; ++i) copy_next();
  __shared__ float inverses[kMaxColumns];  // read behind the next barrier
  if (p.divides_sums()) {
    RootsOfRows<kGroups> roots;
    roots.Load(p, p.squares);
    roots.Invert(p, inverses);
  }

  TileWriter<kGroups> writer(p);
  int x_idx = 0;
  for (int first_tile = 0; tiles.IsThere(first_tile); first_tile += kTilesAtOnce) {
    float acc[kTilesAtOnce][kGroups][4] = {};
    for (int slice_idx = share; slice_idx < num_slices; slice_idx += kNumShares) {
      const Groups<kGroups> groups(of_slice, x + x_idx * x_bytes);
      x_idx ^= 1;
#pragma unroll
      for (int i = 0; i < kTilesAtOnce; ++i) {
        const char* const slice = ring.Wait();
        copy_next();
        if (tiles.IsThere(first_tile + i)) MultiplySlice<kType, kGroups>(slice, of_slice, groups.of, 0, acc[i]);
        ring.Release();
      }
    }
#pragma unroll
    for (int i = 0; i < kTilesAtOnce; ++i) {
      if (!tiles.IsThere(first_tile + i)) break;
      float* const buffer = p.num_buffers == 2 && i % 2 == 1 ? sums + Sums<kGroups>::kFloats : sums;
      TakeFactorBack<kType>(acc[i]);
      StoreShare<kGroups>(share, acc[i], buffer);
      writer.LoadOld(tiles.Get(first_tile + i));
      __syncthreads();
      writer.Write(tiles.Get(first_tile + i), tiles.IsGate(first_tile + i), buffer,
                   p.divides_sums() ? inverses : nullptr);
      if (p.num_buffers == 1) __syncthreads();
    }
  }
}

}  // namespace headwise::cuda::few_rows

#endif  // HEADWISE_BACKEND_CUDA_FEW_ROWS_STREAMED_CUH_
