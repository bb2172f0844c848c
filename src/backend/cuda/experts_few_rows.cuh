// What products of few rows with experts share (experts_few_rows.cu, experts_few_rows_blocks.cu): which tiles a block
// does, whose rows they are for, and where their sums go.
#ifndef HEADWISE_BACKEND_CUDA_EXPERTS_FEW_ROWS_CUH_
#define HEADWISE_BACKEND_CUDA_EXPERTS_FEW_ROWS_CUH_

#include <algorithm>

#include "backend/cuda/experts.cuh"
#include "backend/cuda/few_rows.cuh"

namespace headwise::cuda::few_rows {

// A tile of one expert's outputs, of the gate or of what it gates, or of down.
struct ExpertTile {
  int place;  // of the expert among those that were chosen
  int expert;
  int matrix;
  int first_output;
};

// Which tiles a block does: every so many-th of all chosen experts'. Where gated that of the gate is followed by the
// same of what it gates.
template <bool kGated>
struct ExpertTiles {
  const ExpertsProduct& p;
  int tiles_of_expert;
  int num_units;
  // Ahead of WaitForEarlier what routing has left is there, but a multiprocessor's own cache may still hold what a
  // layer before has left in its place: it is asked for behind that cache.
  bool is_early = true;

  __device__ explicit ExpertTiles(const ExpertsProduct& product)
      : p(product),
        tiles_of_expert((product.num_outputs + kTileOutputs - 1) / kTileOutputs),
        num_units(__ldcg(product.routed.num_used) * tiles_of_expert) {}
  __device__ int UnitOf(int i) const {
    return static_cast<int>(blockIdx.x) + (kGated ? i >> 1 : i) * static_cast<int>(gridDim.x);
  }
  __device__ bool IsThere(int i) const { return UnitOf(i) < num_units; }
  static __device__ bool IsGate(int i) { return kGated && (i & 1) == 0; }
  __device__ ExpertTile Get(int i) const {
    const int unit = UnitOf(i);
    const int place = unit / tiles_of_expert;
    return {.place = place,
            .expert = is_early ? __ldcg(p.routed.used + place) : p.routed.used[place],
            .matrix = kGated ? i & 1 : 2,
            .first_output = (unit - place * tiles_of_expert) * kTileOutputs};
  }
};

// Slots of the expert that a tile belongs to.
struct TileSlots {
  const int32_t* slots;
  int first, count;

  __device__ TileSlots(const ExpertsProduct& p, int expert) : first(p.routed.first[expert]) {
    slots = p.routed.slots + first;
    count = p.routed.first[expert + 1] - first;
  }
};

// What a thread writes of one tile after the other.
template <int kGroups, bool kGated>
struct SlotWriter {
  static constexpr int kSumsOfThread = (kTileOutputs * Sums<kGroups>::kRows + kThreads - 1) / kThreads;
  const ExpertsProduct& p;
  float gates[kSumsOfThread];  // of the tile of the gate, kept until that of what it gates is there

  __device__ explicit SlotWriter(const ExpertsProduct& product) : p(product) {}

  // Shares are added in their order, to the bias.
  __device__ void Write(const ExpertTile& tile, const TileSlots& slots, bool is_gate, const float* sums) {
    const float* const bias = p.experts[tile.expert].biases[tile.matrix];
#pragma unroll
    for (int j = 0; j < kSumsOfThread; ++j) {
      const int i = static_cast<int>(threadIdx.x) + j * kThreads;
      const int column = i % kTileOutputs;
      const int output = tile.first_output + column;
      const int row = i / kTileOutputs;
      if (row >= slots.count || output >= p.num_outputs) continue;
      float sum = bias == nullptr ? 0.0f : bias[output];
#pragma unroll
      for (int share = 0; share < kNumShares; ++share) sum += sums[Sums<kGroups>::IndexOf(share, column, row)];
      if (is_gate) {
        gates[j] = sum;
        continue;
      }
      if constexpr (kGated) sum = ActivatedAs(p.activation, gates[j], sum);
      static_cast<float*>(p.out)[static_cast<int64_t>(slots.slots[row]) * p.num_outputs + output] = sum;
    }
  }
};

// One a multiprocessor, or one for each tile (or two where gated) that there can be.
inline int64_t NumExpertBlocks(const ExpertsProduct& product, const CudaDevice& device) {
  const int64_t most_used = std::min(product.routed.num_experts, product.routed.num_rows * product.routed.num_chosen);
  const int64_t num_units = most_used * Blocks(product.num_outputs, kTileOutputs);
  return std::min<int64_t>(device.facts().num_multiprocessors, num_units);
}

}  // namespace headwise::cuda::few_rows

#endif  // HEADWISE_BACKEND_CUDA_EXPERTS_FEW_ROWS_CUH_
