// Products of many rows with the experts that they chose, by tensor cores in bf16: prompts, and weights in block
// formats.
//
// A block takes up to 128 rows of one expert and 128 of its outputs, or 64 of the gate and the same 64 of what it
// gates. Rows stay where they are: their slots say which they are, so that nothing is gathered before and nothing
// padded. As many blocks are launched as there can be parts of experts at most; those too many end at once. What the
// products cost follows the rows of each expert, rounded up to those of a block, of which there are fewer where experts
// have few.
//
// Both operands pass through shared memory, 32 numbers of K a turn, four turns ahead: rows and bf16 weights by copies
// of 16 bytes, other weights through registers, where they become bf16: of block formats a warp takes a run of a tile,
// as it does in dequantize.cu. Products are mma.m16n8k16; a row's sum has one order whatever is beside it.
#include <algorithm>
#include <type_traits>

#include "backend/cuda/async_copy.cuh"
#include "backend/cuda/block_formats.cuh"
#include "backend/cuda/block_operands.h"
#include "backend/cuda/expert_tiles.h"
#include "backend/cuda/experts.cuh"

namespace headwise::cuda {
namespace {

using Bf16 = __nv_bfloat16;

constexpr int kThreads = 256;
constexpr int kStages = 4;
constexpr int kWarpsOfRows = 2;
constexpr int kWarpsOfOutputs = 4;
static_assert(kWarpsOfRows * kWarpsOfOutputs * static_cast<int>(kWarp) == kThreads);
constexpr int kOutputsOfWarp = kTileWeightRows / kWarpsOfOutputs;
constexpr int kFragments = kOutputsOfWarp / 8;  // of a warp's outputs
constexpr int kStageBytesOfWeights = kTileWeightRows * kTileDepth * 2;

// ---- weights --------------------------------------------------------------------------------------------------------

// Which rows of weights a block has, and whether they are there.
template <bool kGated>
struct TileOfExpert {
  const ExpertRow& expert;
  int first_output, num_outputs, depth;

  __device__ int MatrixOf(int weight_row) const { return kGated ? (IsUpRow(weight_row) ? 1 : 0) : 2; }
  __device__ int OutputOf(int weight_row) const { return first_output + TileOutputOf(kGated, weight_row); }
};

// Brings a turn's weights of a block: Fetch begins, Store ends it, some of the time between them.
template <typename T, bool kGated>
class Weights;

template <bool kGated>
class Weights<Bf16, kGated> {
 public:
  __device__ explicit Weights(const TileOfExpert<kGated>& tile) : depth_(tile.depth) {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int row = RowOf(i);
      const int output = tile.OutputOf(row);
      from_[i] = output < tile.num_outputs ? static_cast<const Bf16*>(tile.expert.weights[tile.MatrixOf(row)]) +
                                                 static_cast<int64_t>(output) * tile.depth + Chunk() * 8
                                           : nullptr;
    }
  }
  __device__ void Fetch(int turn, char* stage) {
    const int at = turn * kTileDepth;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const bool is_there = from_[i] != nullptr && at + Chunk() * 8 < depth_;
      CopyChunkOrZeros(SharedAddress(stage + TileChunkAt(RowOf(i), Chunk())), is_there ? from_[i] + at : nullptr);
    }
  }
  __device__ void Store(char* /*stage*/) {}

 private:
  static constexpr int kRowsAtOnce = kThreads / kTileChunks;
  static constexpr int kCopies = kTileWeightRows / kRowsAtOnce;
  static __device__ int RowOf(int i) {
    return static_cast<int>(threadIdx.x) / kTileChunks + i * kRowsAtOnce;
  }
  static __device__ int Chunk() {
    return static_cast<int>(threadIdx.x) % kTileChunks;
  }

  const int depth_;
  const Bf16* from_[kCopies];
};

// f32 and f16: a warp has 16 rows, a lane half of one.
template <typename T, bool kGated>
class Weights {
 public:
  __device__ explicit Weights(const TileOfExpert<kGated>& tile) : depth_(tile.depth) {
    const int output = tile.OutputOf(Row());
    from_ = output < tile.num_outputs ? static_cast<const T*>(tile.expert.weights[tile.MatrixOf(Row())]) +
                                            static_cast<int64_t>(output) * tile.depth + Half() * kNumbers
                                      : nullptr;
  }
  __device__ void Fetch(int turn, char* /*stage*/) {
    const int at = turn * kTileDepth;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int number = i * kNumbersOfLoad;
      raw_[i] = uint4{0, 0, 0, 0};
      if (from_ != nullptr && at + Half() * kNumbers + number < depth_) {
        raw_[i] = *reinterpret_cast<const uint4*>(from_ + at + number);
      }
    }
  }
  __device__ void Store(char* stage) {
    const T* const numbers = reinterpret_cast<const T*>(raw_);
#pragma unroll
    for (int i = 0; i < kNumbers / 8; ++i) {
      uint32_t pairs[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        pairs[j] = Pack<Bf16>(ToFloat(numbers[i * 8 + 2 * j]), ToFloat(numbers[i * 8 + 2 * j + 1]));
      }
      *reinterpret_cast<uint4*>(stage + TileChunkAt(Row(), Half() * 2 + i)) = {pairs[0], pairs[1], pairs[2], pairs[3]};
    }
  }

 private:
  static constexpr int kNumbers = kTileDepth / 2;
  static constexpr int kNumbersOfLoad = static_cast<int>(sizeof(uint4) / sizeof(T));
  static constexpr int kLoads = kNumbers / kNumbersOfLoad;
  static __device__ int Row() {
    return static_cast<int>(threadIdx.x) / 2;
  }
  static __device__ int Half() {
    return static_cast<int>(threadIdx.x) % 2;
  }

  const int depth_;
  const T* from_;
  uint4 raw_[kLoads];
};

// A block format in its order: a warp has 16 rows, which are a tile of that order, and takes a run of them a turn.
template <DType kType, bool kGated>
class Weights<std::integral_constant<DType, kType>, kGated> {
 public:
  __device__ explicit Weights(const TileOfExpert<kGated>& tile) {
    constexpr BlockOrder kOrder = OrderOf(kType);
    const int row = Warp() * kOrderOutputs;
    const int output = tile.OutputOf(row);
    from_ = output < tile.num_outputs
                ? static_cast<const uint8_t*>(tile.expert.weights[tile.MatrixOf(row)]) +
                      output / kOrderOutputs * static_cast<int64_t>(kOrder.NumSlices(tile.depth)) * kOrder.slice_bytes()
                : nullptr;
  }
  __device__ void Fetch(int turn, char* /*stage*/) {
    constexpr BlockOrder kOrder = OrderOf(kType);
    if (from_ == nullptr) return;
    const int lane = static_cast<int>(threadIdx.x % kWarp);
    run_ = turn % kOrder.runs;
    const uint8_t* const slice = from_ + static_cast<int64_t>(turn / kOrder.runs) * kOrder.slice_bytes();
    const uint8_t* const words = slice + ((kWords == 4 ? run_ : run_ / 2) * 32 + lane) * 16;
    if constexpr (kWords == 4) {
      const auto four = *reinterpret_cast<const uint4*>(words);
      low_[0] = four.x, low_[1] = four.y, low_[2] = four.z, low_[3] = four.w;
    } else {
      const auto two = *reinterpret_cast<const uint2*>(words + run_ % 2 * 8);
      low_[0] = two.x, low_[1] = two.y;
    }
    if constexpr (kOrder.bits == 5) {
      high_ = *reinterpret_cast<const uint32_t*>(slice + kOrder.high_at() + lane * 16 + run_ / 2 * 4);
    } else if constexpr (kOrder.bits == 6) {
      high_ = *reinterpret_cast<const uint32_t*>(slice + kOrder.high_at() + (run_ / 4 * 32 + lane) * 16 + run_ % 4 * 4);
    }
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        const ScalePlace place = PlaceOfScales(kOrder, lane / 4 + upper * 8, run_, half);
        d_[upper] = *reinterpret_cast<const uint16_t*>(slice + place.d);
        if constexpr (kOrder.has_min) min_[upper] = *reinterpret_cast<const uint16_t*>(slice + place.min);
        if constexpr (kOrder.has_super) scale_[upper][half] = slice[place.scale];
        if constexpr (kOrder.has_super && kOrder.has_min) min_scale_[upper] = slice[place.min_scale];
      }
    }
  }
  __device__ void Store(char* stage) {
    constexpr BlockOrder kOrder = OrderOf(kType);
    const int lane = static_cast<int>(threadIdx.x % kWarp);
    uint32_t codes[4] = {0, 0, 0, 0};
    if (from_ != nullptr) OperandsOf<kType>(low_, high_, run_, codes);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int upper = i % 2;
      const int half = i / 2;
      float scale = 0;
      float min = 0;
      if (from_ != nullptr) {
        scale = ScaleToFloat(kOrder, d_[upper]);
        if constexpr (kOrder.has_min) min = ScaleToFloat(kOrder, min_[upper]);
        if constexpr (kOrder.has_half_runs) {
          scale *= static_cast<float>(static_cast<int8_t>(scale_[upper][half]));
        } else if constexpr (kOrder.has_super) {
          scale *= static_cast<float>(scale_[upper][0]);
          min *= -static_cast<float>(min_scale_[upper]);
        }
      }
      float values[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const auto byte = static_cast<uint8_t>(codes[i] >> (8 * j));
        const int level = HasSignedOperands(kOrder) ? static_cast<int8_t>(byte) : byte;
        values[j] = scale * (static_cast<float>(level) * OperandFactor(kOrder)) + min;
      }
      const int row = Warp() * kOrderOutputs + lane / 4 + upper * 8;
#pragma unroll
      for (int eighth = 0; eighth < 2; ++eighth) {
        *reinterpret_cast<uint32_t*>(stage + TileChunkAt(row, 2 * half + eighth) + lane % 4 * 4) =
            Pack<Bf16>(values[eighth], values[eighth + 2]);
      }
    }
  }

 private:
  static constexpr int kWords = LowWords(OrderOf(kType));
  static constexpr int kHalves = OrderOf(kType).has_half_runs ? 2 : 1;
  static_assert(kRunElements == kTileDepth);
  static __device__ int Warp() {
    return static_cast<int>(threadIdx.x / kWarp);
  }

  const uint8_t* from_;
  int run_ = 0;
  uint32_t low_[kWords];
  uint32_t high_ = 0;
  uint16_t d_[2], min_[2];
  uint8_t scale_[2][kHalves], min_scale_[2];
};

// ---- rows of x ------------------------------------------------------------------------------------------------------

template <int kBlockRows>
class Rows {
 public:
  __device__ Rows(const ExpertsProduct& p, const ExpertTileRows& rows) : depth_(p.depth) {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int row = RowOf(i);
      from_[i] = nullptr;
      if (row < rows.count) {
        from_[i] = static_cast<const Bf16*>(p.x) + p.RowOfX(p.routed.slots[rows.first + row]) * p.depth + Chunk() * 8;
      }
    }
  }
  __device__ void Fetch(int turn, char* stage) {
    const int at = turn * kTileDepth;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      if (RowOf(i) >= kBlockRows) continue;
      const bool is_there = from_[i] != nullptr && at + Chunk() * 8 < depth_;
      CopyChunkOrZeros(SharedAddress(stage + TileChunkAt(RowOf(i), Chunk())), is_there ? from_[i] + at : nullptr);
    }
  }

 private:
  static constexpr int kRowsAtOnce = kThreads / kTileChunks;
  static constexpr int kCopies = (kBlockRows + kRowsAtOnce - 1) / kRowsAtOnce;
  static __device__ int RowOf(int i) {
    return static_cast<int>(threadIdx.x) / kTileChunks + i * kRowsAtOnce;
  }
  static __device__ int Chunk() {
    return static_cast<int>(threadIdx.x) % kTileChunks;
  }

  const int depth_;
  const Bf16* from_[kCopies];
};

// ---- products -------------------------------------------------------------------------------------------------------

// What a block's warp has of it.
struct WarpPlace {
  int row, weight_row;

  __device__ explicit WarpPlace(int block_rows) {
    const int warp = static_cast<int>(threadIdx.x / kWarp);
    row = warp / kWarpsOfOutputs * (block_rows / kWarpsOfRows);
    weight_row = warp % kWarpsOfOutputs * kOutputsOfWarp;
  }
};

template <int kRowFragments>
__device__ void MultiplyTurn(const WarpPlace& place, const char* rows, const char* weights,
                             float (&acc)[kRowFragments][kFragments][4]) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
#pragma unroll
  for (int step = 0; step < kTileDepth / 16; ++step) {
    uint32_t b[kFragments / 2][4];
#pragma unroll
    for (int pair = 0; pair < kFragments / 2; ++pair) {
      const int row = place.weight_row + pair * 16 + lane / 16 * 8 + lane % 8;
      LoadMatrix(b[pair], SharedAddress(weights + TileChunkAt(row, step * 2 + lane / 8 % 2)));
    }
#pragma unroll
    for (int i = 0; i < kRowFragments; ++i) {
      uint32_t a[4];
      const int row = place.row + i * 16 + lane % 16;
      LoadMatrix(a, SharedAddress(rows + TileChunkAt(row, step * 2 + lane / 16)));
#pragma unroll
      for (int j = 0; j < kFragments; ++j) {
        MultiplyAdd<Bf16>(acc[i][j], a, b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
      }
    }
  }
}

// The part of an expert that a block of the grid's row `tile_idx` has, or none. By whole warps, for all lanes.
__device__ bool FindTile(const RoutedRows& routed, int block_rows, int tile_idx, int& expert, ExpertTileRows& rows) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  int num_before = 0;
  for (int begin = 0; begin < routed.num_experts; begin += static_cast<int>(kWarp)) {
    const int candidate = begin + lane;
    int first = 0;
    int count = 0;
    if (candidate < routed.num_experts) {
      first = routed.first[candidate];
      count = routed.first[candidate + 1] - first;
    }
    const int num_tiles = NumRowTiles(count, block_rows);
    int end = num_tiles;  // of those of this lane and the ones before
    for (int distance = 1; distance < static_cast<int>(kWarp); distance *= 2) {
      const int other = __shfl_up_sync(kAllLanes, end, distance);
      if (lane >= distance) end += other;
    }
    const unsigned behind = __ballot_sync(kAllLanes, num_before + end > tile_idx);
    if (behind != 0) {
      const int found = __ffs(static_cast<int>(behind)) - 1;
      expert = begin + found;
      const int tile_of_expert = tile_idx - num_before - __shfl_sync(kAllLanes, end - num_tiles, found);
      rows = RowsOfTile(__shfl_sync(kAllLanes, first, found), __shfl_sync(kAllLanes, count, found), block_rows,
                        tile_of_expert);
      return true;
    }
    num_before += __shfl_sync(kAllLanes, end, static_cast<int>(kWarp) - 1);
  }
  return false;
}

// Of a warp's 8 outputs from `output` on the two that the lane has, of the rows of its fragment.
struct Outputs {
  const ExpertsProduct& p;
  const ExpertTileRows& rows;

  // body(slot, which) for the lane's two rows of 16 from `row` on that are there.
  template <typename Body>
  __device__ void ForRows(int row, const Body& body) const {
    const int lane = static_cast<int>(threadIdx.x % kWarp);
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const int at = row + lane / 4 + which * 8;
      if (at < rows.count) body(static_cast<int64_t>(p.routed.slots[rows.first + at]), which);
    }
  }
  static __device__ float2 BiasOf(const float* bias, int output) {
    return bias == nullptr ? float2{0, 0} : float2{bias[output], bias[output + 1]};
  }
};

template <bool kGated, int kRowFragments>
__device__ void WriteTile(const ExpertsProduct& p, const TileOfExpert<kGated>& tile, const ExpertTileRows& rows,
                          const WarpPlace& place, const float (&acc)[kRowFragments][kFragments][4]) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const Outputs outputs{p, rows};
  constexpr int kWritten = kGated ? kFragments / 2 : kFragments;  // the gate's are followed by those of what it gates
#pragma unroll
  for (int j = 0; j < kWritten; ++j) {
    const int output = tile.OutputOf(place.weight_row + j * 8) + lane % 4 * 2;
    if (output >= p.num_outputs) continue;  // N is even
    const float2 bias = Outputs::BiasOf(tile.expert.biases[kGated ? 0 : 2], output);
    float2 up_bias = {0, 0};
    if constexpr (kGated) up_bias = Outputs::BiasOf(tile.expert.biases[1], output);
#pragma unroll
    for (int i = 0; i < kRowFragments; ++i) {
      outputs.ForRows(place.row + i * 16, [&](int64_t slot, int which) {
        const float2 sums = {acc[i][j][2 * which] + bias.x, acc[i][j][2 * which + 1] + bias.y};
        if constexpr (kGated) {
          const float(&up)[4] = acc[i][j + kWritten];
          static_cast<uint32_t*>(p.out)[(slot * p.num_outputs + output) / 2] =
              Pack<Bf16>(ActivatedAs(p.activation, sums.x, up[2 * which] + up_bias.x),
                         ActivatedAs(p.activation, sums.y, up[2 * which + 1] + up_bias.y));
        } else {
          static_cast<float2*>(p.out)[(slot * p.num_outputs + output) / 2] = sums;
        }
      });
    }
  }
}

constexpr int StageBytes(int block_rows) {
  return kStageBytesOfWeights + block_rows * kTileDepth * 2;
}

template <typename T, int kBlockRows, bool kGated>
__global__ void __launch_bounds__(kThreads, 2) ManyRowsKernel(const __grid_constant__ ExpertsProduct p) {
  constexpr int kRowFragments = kBlockRows / kWarpsOfRows / 16;
  constexpr int kStage = StageBytes(kBlockRows);
  extern __shared__ __align__(128) char memory[];
  LetLaterBegin();
  WaitForEarlier();
  int expert_idx = 0;
  ExpertTileRows tile_rows{};
  if (!FindTile(p.routed, kBlockRows, static_cast<int>(blockIdx.y), expert_idx, tile_rows)) return;
  const TileOfExpert<kGated> tile{.expert = p.experts[expert_idx],
                                  .first_output = static_cast<int>(blockIdx.x) * TileOutputs(kGated),
                                  .num_outputs = p.num_outputs,
                                  .depth = p.depth};
  Weights<T, kGated> weights(tile);
  Rows<kBlockRows> rows(p, tile_rows);
  const int num_turns = (p.depth + kTileDepth - 1) / kTileDepth;
  const auto stage_of = [&](int turn) { return memory + turn % kStages * kStage; };
  const auto rows_of = [&](int turn) { return stage_of(turn) + kStageBytesOfWeights; };
#pragma unroll 1
  for (int turn = 0; turn < kStages - 1; ++turn) {
    if (turn < num_turns) {
      rows.Fetch(turn, rows_of(turn));
      weights.Fetch(turn, stage_of(turn));
      weights.Store(stage_of(turn));
    }
    CommitCopies();
  }
  const WarpPlace place(kBlockRows);
  float acc[kRowFragments][kFragments][4] = {};
#pragma unroll 1
  for (int turn = 0; turn < num_turns; ++turn) {
    WaitForCopies<kStages - 2>();
    __syncthreads();  // this turn is there for all, and the one before is done with
    const int next = turn + kStages - 1;
    if (next < num_turns) {
      rows.Fetch(next, rows_of(next));
      weights.Fetch(next, stage_of(next));
    }
    CommitCopies();
    MultiplyTurn<kRowFragments>(place, rows_of(turn), stage_of(turn), acc);
    if (next < num_turns) weights.Store(stage_of(next));
  }
  WriteTile<kGated, kRowFragments>(p, tile, tile_rows, place, acc);
}

template <typename T, int kBlockRows>
void LaunchRows(const ExpertsProduct& product, CudaDevice& device) {
  LaunchShape shape = Overlapping(Blocks(product.num_outputs, TileOutputs(product.is_gated)), kThreads,
                                  static_cast<size_t>(kStages) * StageBytes(kBlockRows));
  shape.grid.y = static_cast<unsigned>(MostRowTiles(int64_t{product.routed.num_rows} * product.routed.num_chosen,
                                                    product.routed.num_experts, kBlockRows));
  Launch(device, "Experts: product", shape,
         product.is_gated ? ManyRowsKernel<T, kBlockRows, true> : ManyRowsKernel<T, kBlockRows, false>, product);
}

template <typename T>
void LaunchFor(const ExpertsProduct& product, CudaDevice& device) {
  const int64_t rows_of_expert =
      int64_t{product.routed.num_rows} * product.routed.num_chosen / product.routed.num_experts;
  // Weights that become bf16 on the way cost as much as many products: as many rows as there are share them.
  constexpr bool kIsConverted = !std::is_same_v<T, Bf16>;
  const int block_rows = TileRowsFor(rows_of_expert);
  if (block_rows == 32) return LaunchRows<T, 32>(product, device);
  if constexpr (!kIsConverted) {
    if (block_rows == 64) return LaunchRows<T, 64>(product, device);
  }
  LaunchRows<T, 128>(product, device);
}

}  // namespace

void ManyRowsExpertsProduct(const ExpertsProduct& product, DType dtype, CudaDevice& device) {
  if (IsBlockFormat(dtype)) {
    return WithBlockFormat(dtype, [&](auto type) { LaunchFor<decltype(type)>(product, device); });
  }
  WithType(dtype, [&](auto type) { LaunchFor<decltype(type)>(product, device); });
}

}  // namespace headwise::cuda
