// Products of up to 32 rows with the experts that they chose, of weights in block formats, by integer products:
// decoding.
//
// The kernel of experts_few_rows.cu around the products of matmul_few_rows_blocks.cu: slices of weights pass through
// shared memory as they lie in the order of operands (block_order.h), each chosen expert's once. Rows of x are rounded
// before, by a launch that reads what routing has left: an expert's stand side by side as columns, each row as often as
// it has experts, and are read from the caches by every tile. As scales of columns lie in pairs, an expert's begin at
// an even one.
//
// How a sum is put together depends on K and the format alone, so a row's bits do not depend on the other rows.
#include "backend/cuda/block_formats.cuh"
#include "backend/cuda/expert_tiles.h"
#include "backend/cuda/experts_few_rows.cuh"
#include "backend/cuda/few_rows_blocks.cuh"

namespace headwise::cuda {
namespace {

using namespace few_rows;  // NOLINT(google-build-using-namespace): what this file is made of

// Of a warp's ring, in bytes: what has to be on its way, and what fits where a block may have 99 KiB.
constexpr int kDeepRing = 18 << 10;
constexpr int kShallowRing = 8 << 10;
constexpr int StagesOf(DType dtype, int ring_bytes) {
  return ring_bytes / OrderOf(dtype).slice_bytes();
}

static_assert(StagesOf(DType::kQ6_K, kShallowRing) >= 2);

XBytes LayoutOfX(int64_t num_slots, int64_t depth, DType dtype) {
  return BytesOfRows(MostColumns(static_cast<int>(num_slots)), depth, OrderOf(dtype).has_min);
}

// A block an expert that was chosen.
__global__ void __launch_bounds__(kThreads)
    RoundSlotsKernel(const __grid_constant__ ExpertsProduct p, const __grid_constant__ XBytes layout, char* rounded) {
  // In this order: the next product may read what routing has left before this one is done.
  WaitForEarlier();
  LetLaterBegin();
  const auto place = static_cast<int>(blockIdx.x);
  if (place >= *p.routed.num_used) return;
  const TileSlots slots(p, p.routed.used[place]);
  const int num_quads = layout.num_turns * kTurnElements / 4;
  for (int i = 0; i < slots.count; ++i) {
    const float* const row = static_cast<const float*>(p.x) + p.RowOfX(slots.slots[i]) * p.depth;
    for (int quad = static_cast<int>(threadIdx.x); quad < num_quads; quad += kThreads) {
      float4 values = {0, 0, 0, 0};
      if (4 * quad < p.depth) values = reinterpret_cast<const float4*>(row)[quad];
      PutRounded(layout, rounded, FirstColumn(slots.first, place) + i, quad, values);
    }
  }
}

// x of a lane, of one group of an expert's columns. Lanes of columns that are not there read the last one.
__device__ GroupOfX ColumnsOf(const XBytes& layout, const char* x, int first_column, int count, int group) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int column = first_column + min(group * kRowsOfGroup + lane / 4, count - 1);
  const int pair = first_column / 2 + min(group * (kRowsOfGroup / 2) + lane % 4, (count - 1) / 2);
  GroupOfX found;
  found.codes = x + (column * 4 + lane % 4) * 16;
  found.scales = x + layout.scales_at() + pair * 16;
  return found;
}

template <DType kType, int kGroups, int kStages, bool kGated>
__global__ void __launch_bounds__(kThreads, 1)
    ExpertsBlocksKernel(const __grid_constant__ ExpertsProduct p, const __grid_constant__ XBytes layout,
                        const char* x) {
  constexpr BlockOrder kOrder = OrderOf(kType);
  constexpr int kSliceBytes = kOrder.slice_bytes();
  constexpr int kTurnsOfSlice = kOrder.runs / 2;
  extern __shared__ __align__(16) char memory[];
  LetLaterBegin();
  const int share = static_cast<int>(threadIdx.x / kWarp);
  ExpertTiles<kGated> tiles(p);
  const auto num_slices = static_cast<int>(kOrder.NumSlices(p.depth));
  BlockRing<kSliceBytes, kStages> ring(memory + share * kStages * kSliceBytes);
  ShareCopies<decltype(ring)> copies(ring, share, num_slices);
  const auto copy_next = [&] {
    copies.CopyNext([&](int tile_idx) -> const char* {
      if (!tiles.IsThere(tile_idx)) return nullptr;
      const ExpertTile tile = tiles.Get(tile_idx);
      return static_cast<const char*>(p.experts[tile.expert].weights[tile.matrix]) +
             (static_cast<int64_t>(tile.first_output / kTileOutputs) * num_slices + share) * kSliceBytes;
    });
  };
#pragma unroll 1
  for (int i = 0; i < kStages - 1; ++i) copy_next();
  WaitForEarlier();
  tiles.is_early = false;

  auto* const sums = reinterpret_cast<float*>(memory + kNumShares * kStages * kSliceBytes);
  SlotWriter<kGroups, kGated> writer(p);
  for (int tile_idx = 0; tiles.IsThere(tile_idx); ++tile_idx) {
    const ExpertTile tile = tiles.Get(tile_idx);
    const TileSlots slots(p, tile.expert);
    GroupOfX columns[kGroups];
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      columns[group] = ColumnsOf(layout, x, FirstColumn(slots.first, tile.place), slots.count, group);
    }
    float acc[kGroups][4] = {};
    for (int slice_idx = share; slice_idx < num_slices; slice_idx += kNumShares) {
      const char* const slice = ring.Wait();
      copy_next();
      if constexpr (kGroups > 1) {
        // Most experts have few rows.
        if (slots.count <= kRowsOfGroup) {
          const GroupOfX first[1] = {columns[0]};
          float of_first[1][4] = {{acc[0][0], acc[0][1], acc[0][2], acc[0][3]}};
          MultiplySlice<kType, 1>(slice, layout, first, slice_idx * kTurnsOfSlice, of_first);
#pragma unroll
          for (int i = 0; i < 4; ++i) acc[0][i] = of_first[0][i];
          ring.Release();
          continue;
        }
      }
      MultiplySlice<kType, kGroups>(slice, layout, columns, slice_idx * kTurnsOfSlice, acc);
      ring.Release();
    }
    float* const buffer = tile_idx % 2 == 1 ? sums + Sums<kGroups>::kFloats : sums;
    TakeFactorBack<kType>(acc);
    StoreShare<kGroups>(share, acc, buffer);
    __syncthreads();
    writer.Write(tile, slots, ExpertTiles<kGated>::IsGate(tile_idx), buffer);
  }
}

template <DType kType, int kGroups, bool kGated>
void LaunchFor(const ExpertsProduct& product, char* rounded, CudaDevice& device) {
  const int num_slots = product.routed.num_rows * product.routed.num_chosen;
  const XBytes layout = LayoutOfX(num_slots, product.depth, kType);
  const int most_used = std::min(product.routed.num_experts, num_slots);
  Launch(device, "Experts: round", Overlapping(most_used, kThreads), RoundSlotsKernel, product, layout, rounded);
  constexpr int kDeep = StagesOf(kType, kDeepRing);
  constexpr int kShallow = StagesOf(kType, kShallowRing);
  const auto bytes_with = [](int num_stages) {
    return static_cast<size_t>(num_stages * OrderOf(kType).slice_bytes() * kNumShares) +
           2 * sizeof(float) * Sums<kGroups>::kFloats;
  };
  const bool is_deep = bytes_with(kDeep) <= device.facts().shared_bytes_of_block;
  Launch(device, "Experts: product",
         Overlapping(NumExpertBlocks(product, device), kThreads, bytes_with(is_deep ? kDeep : kShallow)),
         is_deep ? ExpertsBlocksKernel<kType, kGroups, kDeep, kGated>
                 : ExpertsBlocksKernel<kType, kGroups, kShallow, kGated>,
         product, layout, rounded);
}

}  // namespace

bool HasFewExpertsRowsInBlocks(int64_t num_rows, DType dtype, Compute compute) {
  return (compute == Compute::kInt8 || compute == Compute::kFp8) && num_rows <= kMaxColumns && IsBlockFormat(dtype);
}

int64_t RoundedBytes(int64_t num_slots, int64_t depth, DType dtype) {
  return LayoutOfX(num_slots, depth, dtype).bytes();
}

void FewRowsExpertsProductInBlocks(const ExpertsProduct& product, DType dtype, void* rounded, CudaDevice& device) {
  auto* const memory = static_cast<char*>(rounded);
  WithBlockFormat(dtype, [&](auto type) {
    constexpr DType kType = decltype(type)::value;
    if (product.routed.num_rows <= kRowsOfGroup) {
      return product.is_gated ? LaunchFor<kType, 1, true>(product, memory, device)
                              : LaunchFor<kType, 1, false>(product, memory, device);
    }
    return product.is_gated ? LaunchFor<kType, kMaxGroups, true>(product, memory, device)
                            : LaunchFor<kType, kMaxGroups, false>(product, memory, device);
  });
}

}  // namespace headwise::cuda
