// Products of up to 32 rows with the experts that they chose, of bf16 weights: decoding.
//
// Bound by reading each chosen expert's weights once. As in matmul_few_rows.cu a block a multiprocessor does its share
// of tiles of 16 outputs, here of all chosen experts one behind the other, and eight warps copy slices of K ahead, each
// its own. Which rows an expert has is known on the device alone, so x does not lie in shared memory as operands: a
// lane takes its numbers of its own row where it is, from the caches, and rounds them on the way. An expert has few
// rows, which come from there for every tile of the block: of up to eight 2 to 4 KiB for 4 of weights.
//
// The first product cannot ask for weights before it is known who was chosen. The second one can, ahead of the first
// one's end: it reads what routing has left, which is older than both.
//
// How a sum is put together depends on K alone (eight shares, each in the order of its slices, added in their order),
// so a row's bits do not depend on the other rows. Where x is wanted exactly it is three numbers in bf16, whose
// products are added one behind the other.
#include "backend/cuda/experts_few_rows.cuh"

namespace headwise::cuda {
namespace {

using namespace few_rows;  // NOLINT(google-build-using-namespace): what this file is made of

// Eight of a row's numbers as the right operands of two products; what rounding leaves of them stays.
struct RowNumbers {
  float4 low, high;

  // Zeros for null.
  __device__ explicit RowNumbers(const float* from) : low{0, 0, 0, 0}, high{0, 0, 0, 0} {
    if (from == nullptr) return;
    low = reinterpret_cast<const float4*>(from)[0];
    high = reinterpret_cast<const float4*>(from)[1];
  }
  __device__ uint4 Take() {
    const uint2 first = TakeRounded(low);
    const uint2 second = TakeRounded(high);
    return {first.x, first.y, second.x, second.y};
  }
};

// `kExact`: x as three numbers in bf16.
template <int kGroups, int kStages, bool kGated, bool kExact>
__global__ void __launch_bounds__(kThreads, 1) ExpertsKernel(const __grid_constant__ ExpertsProduct p) {
  extern __shared__ __align__(kSliceAlign) char memory[];
  if constexpr (kGated) WaitForEarlier();
  LetLaterBegin();
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int share = static_cast<int>(threadIdx.x / kWarp);
  ExpertTiles<kGated> tiles(p);
  SliceRing<kStages> ring(memory + share * kStages * kStageBytes);
  // What is copied next: of every tile the slices of the share.
  const int first_depth = share * kDepthOfSlice;
  int next_idx = 0;
  int next_depth = first_depth;
  int next_output = 0;
  const Bf16* next = nullptr;  // the matrix
  const auto find_next = [&] {
    const ExpertTile tile = tiles.Get(next_idx);
    next = static_cast<const Bf16*>(p.experts[tile.expert].weights[tile.matrix]);
    next_output = tile.first_output;
  };
  if (tiles.IsThere(0)) find_next();
  const auto copy_next = [&] {
    if (next_depth >= p.depth) {  // behind the last slice of the tile, or of a share that has none
      next_depth = first_depth;
      if (next_depth < p.depth && tiles.IsThere(++next_idx)) find_next();
    }
    if (next_depth < p.depth && tiles.IsThere(next_idx)) {
      ring.Copy(next, p.num_outputs, next_output, p.depth, next_depth);
      next_depth += kNumShares * kDepthOfSlice;
    }
    ring.Commit();
  };
#pragma unroll 1
  for (int i = 0; i < kStages - 1; ++i) copy_next();
  if constexpr (!kGated) WaitForEarlier();
  tiles.is_early = false;

  auto* const sums = reinterpret_cast<float*>(memory + kNumShares * kStages * kStageBytes);
  SlotWriter<kGroups, kGated> writer(p);
  for (int tile_idx = 0; tiles.IsThere(tile_idx); ++tile_idx) {
    const ExpertTile tile = tiles.Get(tile_idx);
    const TileSlots slots(p, tile.expert);
    // Rows of x of the lane, or null.
    const float* rows[kGroups];
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int column = group * kRowsOfGroup + lane / 4;
      rows[group] = column < slots.count ? static_cast<const float*>(p.x) + p.RowOfX(slots.slots[column]) * p.depth +
                                               lane % 4 * (kDepthOfTurn / 4)
                                         : nullptr;
    }
    float acc[kGroups][4] = {};
    for (int depth = first_depth; depth < p.depth; depth += kNumShares * kDepthOfSlice) {
      const char* const slice = ring.Wait();
      copy_next();
#pragma unroll
      for (int turn = 0; turn < kTurns; ++turn) {
        const int at = depth + turn * kDepthOfTurn;
        if (at >= p.depth) break;
        const WeightOperands weights(slice, turn);
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          if (group * kRowsOfGroup >= slots.count) break;
          RowNumbers x(rows[group] == nullptr ? nullptr : rows[group] + at);
#pragma unroll
          for (int part = 0; part < (kExact ? kExactParts : 1); ++part) weights.Multiply(x.Take(), acc[group]);
        }
      }
      ring.Release();
    }
    float* const buffer = tile_idx % 2 == 1 ? sums + Sums<kGroups>::kFloats : sums;
    StoreShare<kGroups>(share, acc, buffer);
    __syncthreads();
    writer.Write(tile, slots, ExpertTiles<kGated>::IsGate(tile_idx), buffer);
  }
}

template <int kGroups, bool kGated, bool kExact>
void LaunchFor(const ExpertsProduct& product, CudaDevice& device) {
  const auto bytes_with = [](int num_stages) {
    return (static_cast<size_t>(num_stages) * kStageBytes * kNumShares) + 2 * sizeof(float) * Sums<kGroups>::kFloats;
  };
  constexpr int kManyStages = 5;
  constexpr int kFewStages = 2;  // where a block may have less memory
  const bool has_many = bytes_with(kManyStages) <= device.facts().shared_bytes_of_block;
  Launch(device, "Experts: product",
         Overlapping(NumExpertBlocks(product, device), kThreads, bytes_with(has_many ? kManyStages : kFewStages)),
         has_many ? ExpertsKernel<kGroups, kManyStages, kGated, kExact>
                  : ExpertsKernel<kGroups, kFewStages, kGated, kExact>,
         product);
}

template <int kGroups>
void LaunchGroups(const ExpertsProduct& product, CudaDevice& device) {
  if (product.is_gated) {
    return product.rounds_bf16 ? LaunchFor<kGroups, true, false>(product, device)
                               : LaunchFor<kGroups, true, true>(product, device);
  }
  return product.rounds_bf16 ? LaunchFor<kGroups, false, false>(product, device)
                             : LaunchFor<kGroups, false, true>(product, device);
}

}  // namespace

bool HasFewExpertsRows(int64_t num_rows, int64_t depth) {
  static_assert(kMaxRoutedAtOnce == kMaxColumns);
  return num_rows <= kMaxColumns && depth % kDepthOfTurn == 0;
}

void FewRowsExpertsProduct(const ExpertsProduct& product, CudaDevice& device) {
  if (product.routed.num_rows <= kRowsOfGroup) return LaunchGroups<1>(product, device);
  LaunchGroups<kMaxGroups>(product, device);
}

}  // namespace headwise::cuda
