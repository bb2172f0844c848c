// Weights in block formats as numbers, out of the order that products of few rows read (block_order.h): whole tiles
// into a workspace, for products of many rows, and rows of a table, for embeddings.
//
// Of tiles bound by what is written: 2 bytes a weight, of 2.6 to 3.1 that move. A warp takes a run of a tile as it
// would for a product; 8 or 16 bytes a lane go to rows of the workspace.
#include <algorithm>

#include "backend/cuda/block_formats.cuh"
#include "backend/cuda/block_operands.h"
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/launch.cuh"

namespace headwise::cuda {
namespace {

constexpr int kRunsOfBlock = 8;  // a warp each
constexpr int kThreads = kRunsOfBlock * static_cast<int>(kWarp);

struct DequantizeParams {
  const uint8_t* tiles;  // from the first one on
  int64_t num_outputs;   // of the tiles; less than 16 of the last
  int64_t depth, num_slices, num_runs;
  void* rows;  // [num_outputs, depth]
};

__device__ void StoreFour(__nv_bfloat16* to, const float (&values)[4]) {
  const __nv_bfloat162 low = __floats2bfloat162_rn(values[0], values[1]);
  const __nv_bfloat162 high = __floats2bfloat162_rn(values[2], values[3]);
  *reinterpret_cast<uint2*>(to) = {reinterpret_cast<const uint32_t&>(low), reinterpret_cast<const uint32_t&>(high)};
}
__device__ void StoreFour(float* to, const float (&values)[4]) {
  *reinterpret_cast<float4*>(to) = {values[0], values[1], values[2], values[3]};
}

// A block takes eight runs of K of a tile.
template <DType kType, typename T>
__global__ void __launch_bounds__(kThreads) DequantizeKernel(const __grid_constant__ DequantizeParams p) {
  constexpr BlockOrder kOrder = OrderOf(kType);
  constexpr int kWords = LowWords(kOrder);
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int64_t run_of_row = int64_t{blockIdx.y} * kRunsOfBlock + threadIdx.x / kWarp;
  if (run_of_row >= p.num_runs) return;
  const auto run = static_cast<int>(run_of_row % kOrder.runs);
  const uint8_t* const slice =
      p.tiles + (int64_t{blockIdx.x} * p.num_slices + run_of_row / kOrder.runs) * kOrder.slice_bytes();
  uint32_t low[kWords];
  const uint8_t* const words = slice + ((kWords == 4 ? run : run / 2) * 32 + lane) * 16;
  if constexpr (kWords == 4) {
    const auto four = *reinterpret_cast<const uint4*>(words);
    low[0] = four.x, low[1] = four.y, low[2] = four.z, low[3] = four.w;
  } else {
    const auto two = *reinterpret_cast<const uint2*>(words + run % 2 * 8);
    low[0] = two.x, low[1] = two.y;
  }
  uint32_t high = 0;
  if constexpr (kOrder.bits == 5) {
    high = *reinterpret_cast<const uint32_t*>(slice + kOrder.high_at() + lane * 16 + run / 2 * 4);
  } else if constexpr (kOrder.bits == 6) {
    high = *reinterpret_cast<const uint32_t*>(slice + kOrder.high_at() + (run / 4 * 32 + lane) * 16 + run % 4 * 4);
  }
  uint32_t a[4];
  OperandsOf<kType>(low, high, run, a);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int output = lane / 4 + i % 2 * 8;
    const int64_t row = int64_t{blockIdx.x} * kOrderOutputs + output;
    const uint32_t lanes = __ballot_sync(kAllLanes, row < p.num_outputs);
    if (row >= p.num_outputs) continue;
    const ScalePlace place = PlaceOfScales(kOrder, output, run, i / 2);
    float scale = ScaleToFloat(kOrder, *reinterpret_cast<const uint16_t*>(slice + place.d));
    float min = 0;
    if constexpr (kOrder.has_min) min = ScaleToFloat(kOrder, *reinterpret_cast<const uint16_t*>(slice + place.min));
    if constexpr (kOrder.has_half_runs) {
      scale *= static_cast<float>(static_cast<int8_t>(slice[place.scale]));
    } else if constexpr (kOrder.has_super) {
      scale *= static_cast<float>(slice[place.scale]);
      min *= -static_cast<float>(slice[place.min_scale]);
    }
    float values[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const auto byte = static_cast<uint8_t>(a[i] >> (8 * j));
      const int level = HasSignedOperands(kOrder) ? static_cast<int8_t>(byte) : byte;
      values[j] = scale * (static_cast<float>(level) * OperandFactor(kOrder)) + min;
    }
    // Two lanes have a half of each other's four neighbours: elements 2 q, 2 q + 1, and 8 further on.
    const bool is_second = lane % 2 == 1;
    const float other[2] = {__shfl_xor_sync(lanes, is_second ? values[0] : values[1], 1),
                            __shfl_xor_sync(lanes, is_second ? values[2] : values[3], 1)};
    const float four[4] = {is_second ? other[0] : values[0], is_second ? other[1] : values[2],
                           is_second ? values[1] : other[0], is_second ? values[3] : other[1]};
    const int element = i / 2 * 16 + lane % 4 / 2 * 4 + (is_second ? 8 : 0);
    StoreFour(static_cast<T*>(p.rows) + row * p.depth + run_of_row * kRunElements + element, four);
  }
}

constexpr int kRowThreads = 256;

// A block a row.
__global__ void __launch_bounds__(kRowThreads) RowsKernel(const __grid_constant__ BlockRows p) {
  LetLaterBegin();
  WaitForEarlier();
  int64_t id = p.ids[blockIdx.x];
  if (p.chosen != nullptr) {
    id = p.chosen[id];
    if (id < 0 || id >= p.num_ids) id = 0;
  }
  const BlockOrder order = OrderOf(p.dtype);
  const auto depth = static_cast<int>(p.dim);
  const auto* const tile = static_cast<const uint8_t*>(p.tiles) + id / kOrderOutputs * order.TileBytes(depth);
  const auto output = static_cast<int>(id % kOrderOutputs);
  for (int k = static_cast<int>(threadIdx.x); k < depth; k += kRowThreads) {
    const BlockTerms terms =
        TermsOf(order, tile + static_cast<int64_t>(k / order.slice_elements()) * order.slice_bytes(), output,
                k % order.slice_elements());
    const float value = terms.Value(order.has_min, ScaleToFloat(order, terms.d), ScaleToFloat(order, terms.min));
    float& out = p.out[blockIdx.x * p.dim + k];
    out = p.adds ? out + value : p.scale * value;
  }
}

}  // namespace

void Dequantize(const WeightMatrix& matrix, int64_t first_output, int64_t num_outputs, DType to, void* rows,
                CudaDevice& device) {
  if (!device.ok() || num_outputs == 0) return;
  const BlockOrder order = OrderOf(matrix.dtype);
  const int64_t depth = matrix.shape[1];
  const DequantizeParams params{
      .tiles = static_cast<const uint8_t*>(matrix.planes[0]) + first_output / kOrderOutputs * order.TileBytes(depth),
      .num_outputs = num_outputs,
      .depth = depth,
      .num_slices = order.NumSlices(depth),
      .num_runs = depth / kRunElements,
      .rows = rows};
  const LaunchShape shape{.grid = dim3(Blocks(num_outputs, kOrderOutputs), Blocks(params.num_runs, kRunsOfBlock)),
                          .threads = kThreads};
  WithBlockFormat(matrix.dtype, [&](auto type) {
    constexpr DType kType = decltype(type)::value;
    Launch(device, "MatMul: dequantize", shape,
           to == DType::kBF16 ? DequantizeKernel<kType, __nv_bfloat16> : DequantizeKernel<kType, float>, params);
  });
}

void EmbedBlocks(const BlockRows& rows, int64_t num_rows, CudaDevice& device) {
  if (!device.ok() || num_rows == 0) return;
  Launch(device, "Embed", Overlapping(num_rows, kRowThreads), RowsKernel, rows);
}

}  // namespace headwise::cuda
