// Products of more rows than matmul_few_rows_blocks.cu takes, and of any number in --compute bf16, with weights in
// block formats, out = x W^T + bias, by Hopper's warpgroups: decoding of many sequences. x is in bf16, weights become
// so on the way.
//
// The bound is reading the weights once for 128 rows, in the bits that they have in the file. Weights are a product's
// 64 rows, and its first operand: in registers, where a lane makes bf16 out of the operands of integer products, which
// lie in the right lanes for both (block_order.h). x is the second one, in shared memory. 64 rows of q8_0 take twice as
// long: instructions run beside such products hardly at all, so that each of the 60 to 100 that a warp makes numbers of
// a run with is time (docs/performance-cuda.md).
//
// Up to seven bits of a code are a number in bf16 where they stand in the last bits of 128, as 128 and what they are:
// one subtraction, exact. Its scale is two numbers in bf16, so that what comes of both is rounded once, as weights in
// bf16 are. Minima are rounded before they are added. Signed bytes times scales are exact in f32, and rounded from
// that.
//
// Two warpgroups multiply, for 64 outputs each, or for those of a gate and for what it gates; four warps copy, weights
// ahead of WaitForEarlier. Slices of weights pass through one ring, of x through another one.
#include <algorithm>

#include "backend/cuda/block_formats.cuh"
#include "backend/cuda/few_rows_blocks.cuh"
#include "backend/cuda/some_rows.cuh"

namespace headwise::cuda {
namespace {

using namespace some_rows;  // NOLINT(google-build-using-namespace): what this file is made of
using few_rows::RunScales;
using few_rows::SliceOperands;
using few_rows::SliceScales;

constexpr int kTileOutputs = 128;
constexpr int kPackedTiles = kTileOutputs / kOrderOutputs;  // of a tile: a warp's each
constexpr int kMultiplyThreads = 2 * kWarpgroup;
constexpr int kCopyThreads = 128;
constexpr int kThreads = kMultiplyThreads + kCopyThreads;
static_assert(kPackedTiles * static_cast<int>(kWarp) == kMultiplyThreads);

// x comes in steps of K, slices of weights in one or two of them.
constexpr int kPanels = 2;
constexpr int kStepDepth = kPanels * kPanelDepth;
constexpr int kRunsOfStep = kStepDepth / kRunElements;
constexpr int kRunsOfPanel = kPanelDepth / kRunElements;
constexpr int kChunksOfRow = kPanels * kChunksOfPanel;
constexpr int kRowsAtOnce = kCopyThreads / kChunksOfRow;  // that copying threads copy
static_assert(kRowsAtOnce == 8);                          // so that a thread's chunks are swizzled alike
constexpr int kThreadsOfTile = kCopyThreads / kPackedTiles;

constexpr int kMostColumns = 128;
constexpr int kMaxSums = 64 * kMostColumns / kWarpgroup;
// Gates on their way from the one warpgroup to the other.
constexpr int kGatesAtOnce = 16;
constexpr int kGateBytes = kGatesAtOnce * kWarpgroup * static_cast<int>(sizeof(float));
// Of a block, for both rings: what Hopper has, less gates, and barriers, which are rounded up as rings are aligned.
constexpr int kRingBytes = (227 << 10) - kGateBytes - 2048;

template <DType kType_, int kColumns_>
struct BlocksShape {
  static constexpr DType kType = kType_;
  static constexpr int kColumns = kColumns_;  // rows of x
  static constexpr BlockOrder kOrder = OrderOf(kType);
  static constexpr int kSums = 64 * kColumns / kWarpgroup;  // of a thread
  static constexpr int kSteps = kOrder.slice_elements() / kStepDepth;
  static constexpr int kSliceBytes = kOrder.slice_bytes();
  static constexpr int kWeightBytes = kPackedTiles * kSliceBytes;  // a stage of weights
  static constexpr int kPanelBytes = kColumns * kRowBytes;
  static constexpr int kXBytes = kPanels * kPanelBytes;  // a stage of x
  // Slices of weights that so many steps of x can be of.
  static constexpr int WeightStages(int stages) { return stages / kSteps + (kSteps > 1 ? 1 : 0); }
  static constexpr int BytesOf(int stages) { return stages * kXBytes + WeightStages(stages) * kWeightBytes; }
  static constexpr int MostStages() {
    int stages = 8;
    while (BytesOf(stages) > kRingBytes) --stages;
    return stages;
  }
  static constexpr int kStages = MostStages();  // of x
  static constexpr int kWeightStages = WeightStages(kStages);
  static constexpr int kBytes = BytesOf(kStages);
  static_assert(kStages >= 3 && kPanelBytes % 1024 == 0 && kSums % kGatesAtOnce == 0);
};

// A block's barriers in shared memory. A step of x brings the slice of weights that it is the first one of.
template <typename Shape>
struct Barriers {
  uint64_t full[Shape::kStages], empty[Shape::kStages], empty_weights[Shape::kWeightStages];
};

#if HW_HAS_WGMMA

// What copying threads do for a run. Rows that a tile or x does not have stay what they were in the ring: what comes of
// them nobody reads.
template <typename Shape>
__device__ void CopyRun(const SomeRowsParams& p, char* memory, Barriers<Shape>& barriers, int begin, int end) {
  constexpr int kSteps = Shape::kSteps;
  const int thread = static_cast<int>(threadIdx.x) - kMultiplyThreads;

  const int packed = thread / kThreadsOfTile;
  const int lane_at = thread % kThreadsOfTile * 16;
  const uint32_t weights_place =
      SharedAddress(memory) + Shape::kStages * Shape::kXBytes + packed * Shape::kSliceBytes + lane_at;
  int tile = begin / p.runs.slices_of_tile;
  int slice = begin % p.runs.slices_of_tile;
  const char* from = nullptr;  // null: the part has no such outputs
  const auto find_tile = [&] {
    const TileOfPart found = TileAt<kTileOutputs>(p, tile);
    const bool is_gated = p.gated != nullptr && packed >= kPackedTiles / 2;
    const int first_output = found.first_output + (is_gated ? packed - kPackedTiles / 2 : packed) * kOrderOutputs;
    const auto* const weight = static_cast<const char*>(is_gated ? p.parts[1].weight : found.part.weight);
    const int64_t at = static_cast<int64_t>(first_output / kOrderOutputs) * p.runs.slices_of_tile + slice;
    from = first_output < found.part.num_outputs ? weight + at * Shape::kSliceBytes + lane_at : nullptr;
  };
  find_tile();
  RingPlace<Shape::kWeightStages> weights;
  const auto copy_weights = [&](int step, int /*at*/) {
    if (step % kSteps != 0) return;
    if (weights.round > 0) WaitFor(&barriers.empty_weights[weights.at], (weights.round - 1) & 1);
    constexpr int kStride = kThreadsOfTile * 16;
    constexpr int kWhole = Shape::kSliceBytes / kStride * kStride;
    if (from != nullptr) {
      const uint32_t to = weights_place + weights.at * Shape::kWeightBytes;
#pragma unroll
      for (int i = 0; i < kWhole; i += kStride) CopyChunkOnce(to + i, from + i);
      if (lane_at < Shape::kSliceBytes - kWhole) CopyChunkOnce(to + kWhole, from + kWhole);
      from += Shape::kSliceBytes;
    }
    weights.Advance();
    if (++slice == p.runs.slices_of_tile) {
      slice = 0;
      if (++tile < p.runs.num_tiles) find_tile();
    }
  };

  const int line = thread / kChunksOfRow;
  const int chunk = thread % kChunksOfRow;
  const uint32_t x_place = SharedAddress(memory) + chunk / kChunksOfPanel * Shape::kPanelBytes + line * kRowBytes +
                           ((chunk % kChunksOfPanel) ^ (line % 8)) * 16;
  const int steps_of_tile = p.runs.slices_of_tile * kSteps;
  int x_step = slice * kSteps;
  const Bf16* const x = p.x + static_cast<int64_t>(line) * p.depth + chunk * 8;
  const int64_t eight_rows = static_cast<int64_t>(kRowsAtOnce) * p.depth;
  const auto copy_x = [&](int at) {
    const uint32_t to = x_place + at * Shape::kXBytes;
    const Bf16* row = x + x_step * kStepDepth;
#pragma unroll
    for (int i = 0; i < Shape::kColumns / kRowsAtOnce; ++i, row += eight_rows) {
      if (line + i * kRowsAtOnce < p.num_rows) CopyChunk(to + i * kRowsAtOnce * kRowBytes, row);
    }
    if (++x_step == steps_of_tile) x_step = 0;
    CommitCopies();
  };

  CopyAhead<Shape::kStages>((end - begin) * kSteps, barriers.full, barriers.empty, copy_weights, copy_x);
}

// 128 in bf16, twice, to whose last seven bits one adds. The assembler must not know it: it would move the constant
// into a register at each use.
__device__ inline uint32_t Bits128() {
  uint32_t bytes;
  asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
  return 0x43004300u | bytes >> 31;
}
__device__ inline __nv_bfloat162 AsNumbers(uint32_t bits) {
  return reinterpret_cast<const __nv_bfloat162&>(bits);
}
// Bits of a run's codes as two numbers in bf16, exact: of register i those of bytes `which` and which + 2.
template <DType kType>
struct Numbers {
  static constexpr BlockOrder kOrder = OrderOf(kType);
  static constexpr bool kSigned = HasSignedOperands(kOrder);
  static constexpr bool kAreNibbles = kOrder.bits == 4 && !kOrder.has_levels;
  static constexpr bool kAreBytes = OperandBits(kOrder) == 8;  // else as operands, but half as large
  // By which a number is a code.
  static constexpr float kFactor = kAreNibbles ? 1.0f : OperandFactor(kOrder) * (kAreBytes ? 1 : 2);
  const uint32_t bits_128;
  uint32_t words[4];  // of nibbles two, else the operands of integer products

  __device__ Numbers(SliceOperands<kType>& operands, int run, uint32_t bits) : bits_128(bits) {
    if constexpr (kAreNibbles) {
      uint32_t low[2];
      operands.Words(run, low);
      for (int row = 0; row < 2; ++row) words[row] = kSigned ? low[row] ^ 0x88888888u : low[row];
    } else {
      operands.Of(run, words);
      if constexpr (!kAreBytes && kSigned) {
        for (uint32_t& word : words) word ^= 0x80808080u;
      }
    }
  }
  __device__ __nv_bfloat162 Of(int i, int which) const {
    if constexpr (kAreNibbles) {
      const uint32_t codes = words[i % 2] >> (i / 2 * 4 + which * 8) & 0x000F000Fu;
      return __hsub2(AsNumbers(codes | bits_128), __float2bfloat162_rn(kSigned ? 136.0f : 128.0f));
    } else if constexpr (kAreBytes) {
      // 128 and the lower seven bits, less 128, or 256 where there is a sign.
      const uint32_t codes = words[i] >> (which * 8);
      return __hsub2(AsNumbers((codes & 0x007F007Fu) | bits_128), AsNumbers((codes & 0x00800080u) | bits_128));
    } else {
      const uint32_t codes = words[i] >> (1 + which * 8) & 0x007F007Fu;
      return __hsub2(AsNumbers(codes | bits_128), __float2bfloat162_rn(kSigned ? 192.0f : 128.0f));
    }
  }
};

// Of signed bytes as floats: 32768 and 128 more than the byte, which stands in the second byte of that.
constexpr uint32_t kFloatOfByteBits = 0x47000000u;
constexpr float kFloatOfByte = 32768.0f + 128.0f;
// Bytes times a scale in f16, exact in f32, and rounded then: an instruction less for two than by way of bf16.
__device__ inline void MakeNumbersOfBytes(const uint32_t (&words)[4], const RunScales& scales, uint32_t (&a)[8]) {
  const float base[2] = {-kFloatOfByte * scales.d[0][0].d, -kFloatOfByte * scales.d[0][1].d};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int upper = i % 2;
    const uint32_t bytes = words[i] ^ 0x80808080u;
    const auto weight = [&](int byte) {
      const float code = __uint_as_float(__byte_perm(bytes, kFloatOfByteBits, 0x7504 | byte << 4));
      return fmaf(code, scales.d[0][upper].d, base[upper]);
    };
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const __nv_bfloat162 weights = __floats2bfloat162_rn(weight(which), weight(which + 2));
      a[i / 2 * 4 + which * 2 + upper] = reinterpret_cast<const uint32_t&>(weights);
    }
  }
}

// A run's two halves of 16 weights, each the first operand of a product of a warp's 16 outputs.
template <DType kType>
__device__ void MakeNumbers(const Numbers<kType>& run, const RunScales& scales, uint32_t (&a)[8]) {
  constexpr BlockOrder kOrder = OrderOf(kType);
  constexpr int kHalves = kOrder.has_half_runs ? 2 : 1;  // of the run, that differ
  __nv_bfloat162 high[kHalves], low[kHalves];            // of outputs g and g + 8
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    const float d[2] = {scales.d[half][0].d * Numbers<kType>::kFactor, scales.d[half][1].d * Numbers<kType>::kFactor};
    high[half] = __floats2bfloat162_rn(d[0], d[1]);
    low[half] = __floats2bfloat162_rn(d[0] - __low2float(high[half]), d[1] - __high2float(high[half]));
  }
  const auto of_output = [](const __nv_bfloat162& pair, int upper) {
    return upper > 0 ? __high2bfloat162(pair) : __low2bfloat162(pair);
  };
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int upper = i % 2;  // outputs g + 8
    const int half = i / 2;   // of the run
    const __nv_bfloat162 its_high = of_output(high[half % kHalves], upper);
    const __nv_bfloat162 its_low = of_output(low[half % kHalves], upper);
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const __nv_bfloat162 numbers = run.Of(i, which);
      __nv_bfloat162 rest;
      if constexpr (kOrder.has_min) {
        rest = __hfma2(numbers, its_low, __float2bfloat162_rn(scales.min[upper] * OperandFactor(kOrder)));
      } else {
        rest = __hmul2(numbers, its_low);
      }
      const __nv_bfloat162 weights = __hfma2(numbers, its_high, rest);
      a[half * 4 + which * 2 + upper] = reinterpret_cast<const uint32_t&>(weights);
    }
  }
}

// d += a step of a slice of weights times x, as DescribeRows gives it. Numbers of two runs are made beside the products
// of the two before; that the last ones go on beside the next step was slower.
template <typename Shape>
__device__ void MultiplyStep(SliceOperands<Shape::kType>& operands, SliceScales<Shape::kType>& scales, int step,
                             uint64_t x, uint32_t bits_128, float (&d)[Shape::kSums]) {
  uint32_t a[kRunsOfStep][8];
  KeepInPlace(d);
#pragma unroll
  for (int i = 0; i < kRunsOfStep; ++i) {
    const int run = step * kRunsOfStep + i;
    const Numbers<Shape::kType> numbers(operands, run, bits_128);
    // Of scales that are powers of two 32,896 times one may be more than f32 holds.
    if constexpr (Numbers<Shape::kType>::kAreBytes && !Shape::kOrder.has_powers) {
      static_assert(Numbers<Shape::kType>::kSigned && Numbers<Shape::kType>::kFactor == 1 && !Shape::kOrder.has_min &&
                    !Shape::kOrder.has_half_runs);
      MakeNumbersOfBytes(numbers.words, scales.Of(run), a[i]);
    } else {
      MakeNumbers<Shape::kType>(numbers, scales.Of(run), a[i]);
    }
    KeepInPlace(a[i]);
    if (i % kRunsOfPanel < kRunsOfPanel - 1) continue;
    BeginProducts();
#pragma unroll
    for (int j = 0; j < kRunsOfPanel; ++j) {
      const uint64_t columns = x + ((i / kRunsOfPanel * Shape::kPanelBytes + j * kRunElements * 2) >> 4);
      const uint32_t(&halves)[8] = a[i - kRunsOfPanel + 1 + j];
      MultiplyRows<Bf16>(d, halves, columns, 1);
      MultiplyRows<Bf16>(d, halves + 4, columns + (kDepthOfProduct * 2 >> 4), 1);
    }
    CommitProducts();
  }
  WaitForProducts<0>();
  KeepInPlace(d);
  __syncwarp();
}

// Where a thread's sums belong, of two outputs.
struct Outputs {
  int at[2];         // in row 0
  bool is_there[2];  // whether the part has them
  int column;        // its first of two in each eight
  __device__ Outputs(const SomeRowsParams& p, const TileOfPart& tile) {
    const int lane = static_cast<int>(threadIdx.x % kWarp);
    const int warp = static_cast<int>(threadIdx.x / kWarp) % (p.gated != nullptr ? kPackedTiles / 2 : kPackedTiles);
    column = lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      at[half] = tile.first_output + warp * kOrderOutputs + lane / 4 + half * 8;
      is_there[half] = at[half] < tile.part.num_outputs;
    }
  }
  // Of sum i.
  __device__ int RowOf(int i) const {
    return i / 4 * 8 + column + i % 2;
  }
  // body(i, at) for sums [kBegin, kEnd) whose row and output there are.
  template <int kBegin, int kEnd, typename Body>
  __device__ void ForEach(const SomeRowsParams& p, const TileOfPart& tile, const Body& body) const {
#pragma unroll
    for (int i = kBegin; i < kEnd; ++i) {
      const int row = RowOf(i);
      const int half = i / 2 % 2;
      if (row < p.num_rows && is_there[half]) {
        body(i, static_cast<int64_t>(row) * tile.part.num_outputs + at[half]);
      }
    }
  }
};

// Not inline: it would be there for each of 64 sums.
__device__ __noinline__ float Gated(float gate, float x, bool has_gelu) {
  return (has_gelu ? GeluTanh(gate) : Silu(gate)) * x;
}
// What the first warpgroup has is gates, in turns on their way to the second.
template <int kBegin, int kSums>
__device__ void WriteGated(const SomeRowsParams& p, const TileOfPart& tile, const Outputs& outputs,
                           const float (&d)[kSums], float* gates) {
  if constexpr (kBegin < kSums) {
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
    const bool are_gates = threadIdx.x < kWarpgroup;
#pragma unroll
    for (int i = 0; i < kGatesAtOnce; ++i) {
      if (are_gates) gates[i * kWarpgroup + thread] = d[kBegin + i];
    }
    SyncThreads(1, kMultiplyThreads);
    if (!are_gates) {
      outputs.ForEach<kBegin, kBegin + kGatesAtOnce>(p, tile, [&](int i, int64_t at) {
        const float gate = gates[(i - kBegin) * kWarpgroup + thread];
        p.gated[at] = __float2bfloat16_rn(Gated(gate, d[i], p.has_gelu));
      });
    }
    SyncThreads(1, kMultiplyThreads);
    WriteGated<kBegin + kGatesAtOnce>(p, tile, outputs, d, gates);
  }
}

// So many loads of what is added to are on their way at once: all of 64 rows, half of the others'.
template <int kSums>
constexpr int kSumsAtOnce = kSums % 32 == 0 ? 32 : 24;
template <int kBegin, int kSums>
__device__ void WriteSums(const SomeRowsParams& p, const TileOfPart& tile, const Outputs& outputs, float (&d)[kSums]) {
  if constexpr (kBegin < kSums) {
    constexpr int kCount = kSumsAtOnce<kSums>;
    static_assert(kSums % kCount == 0 && kCount % 4 == 0);
    constexpr int kEnd = kBegin + kCount;
    if (p.adds) {
      // What is not there is read from the last place that is: of loads with a condition each the assembler lets many
      // wait for the one before.
      float old[kCount];
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const int row = min(outputs.RowOf(kBegin + i), p.num_rows - 1);
        const int output = min(outputs.at[i / 2 % 2], tile.part.num_outputs - 1);
        old[i] = __ldcg(tile.part.out + static_cast<int64_t>(row) * tile.part.num_outputs + output);
      }
#pragma unroll
      for (int i = 0; i < kCount; ++i) d[kBegin + i] = old[i] + d[kBegin + i];
    }
    outputs.ForEach<kBegin, kEnd>(p, tile, [&](int i, int64_t at) { tile.part.out[at] = d[i]; });
    WriteSums<kEnd>(p, tile, outputs, d);
  }
}

template <int kSums>
__device__ void WriteTile(const SomeRowsParams& p, const TileOfPart& tile, float (&d)[kSums], float* gates) {
  const Outputs outputs(p, tile);
  const auto part = p.gated != nullptr ? static_cast<int>(threadIdx.x) / kWarpgroup : 0;
  const float* const bias = p.gated != nullptr ? p.parts[part].bias : tile.part.bias;
  float of_outputs[2] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (bias != nullptr && outputs.is_there[half]) of_outputs[half] = bias[outputs.at[half]];
  }
#pragma unroll
  for (int i = 0; i < kSums; ++i) d[i] += of_outputs[i / 2 % 2];
  if (p.gated != nullptr) return WriteGated<0>(p, tile, outputs, d, gates);
  WriteSums<0>(p, tile, outputs, d);
}

template <typename Shape>
__device__ void MultiplyRun(const SomeRowsParams& p, const char* memory, Barriers<Shape>& barriers, int begin, int end,
                            float* gates) {
  const uint32_t x = SharedAddress(memory);
  const char* const own_slices = memory + Shape::kStages * Shape::kXBytes + threadIdx.x / kWarp * Shape::kSliceBytes;
  const bool is_first_lane = threadIdx.x % kWarp == 0;
  const uint32_t bits_128 = Bits128();
  WaitForEarlier();
  LetLaterBegin();
  RingPlace<Shape::kStages> place;
  RingPlace<Shape::kWeightStages> weights;
  for (int next = begin; next < end;) {
    const int tile = next / p.runs.slices_of_tile;
    const int tile_begin = tile * p.runs.slices_of_tile;
    const int tile_end = tile_begin + p.runs.slices_of_tile;
    const int count = min(tile_end, end) - next;
    float d[Shape::kSums] = {};
    for (int i = 0; i < count; ++i) {
      WaitFor(&barriers.full[place.at], place.round & 1);
      const char* const slice = own_slices + weights.at * Shape::kWeightBytes;
      SliceOperands<Shape::kType> operands(slice);
      SliceScales<Shape::kType> scales(slice);
#pragma unroll
      for (int step = 0; step < Shape::kSteps; ++step) {
        if (step > 0) WaitFor(&barriers.full[place.at], place.round & 1);
        MultiplyStep<Shape>(operands, scales, step, DescribeRows(OfWarp(x + place.at * Shape::kXBytes)), bits_128, d);
        if (is_first_lane) Arrive(&barriers.empty[place.at]);
        place.Advance();
      }
      if (is_first_lane) Arrive(&barriers.empty_weights[weights.at]);
      weights.Advance();
    }
    const bool is_whole = next == tile_begin && next + count == tile_end;
    next += count;
    if (is_whole || AddUp<kMultiplyThreads>(p, tile, d)) WriteTile(p, TileAt<kTileOutputs>(p, tile), d, gates);
  }
}

#endif  // HW_HAS_WGMMA

template <typename Shape>
__global__ void __launch_bounds__(kThreads, 1) SomeRowsBlocksKernel(const __grid_constant__ SomeRowsParams p) {
#if HW_HAS_WGMMA
  extern __shared__ __align__(1024) char memory[];
  __shared__ Barriers<Shape> barriers;
  __shared__ float gates[kGatesAtOnce * kWarpgroup];
  if (threadIdx.x == 0) {
    constexpr int kMultiplyWarps = kMultiplyThreads / static_cast<int>(kWarp);
    for (int i = 0; i < Shape::kStages; ++i) {
      InitBarrier(&barriers.full[i], kCopyThreads);
      InitBarrier(&barriers.empty[i], kMultiplyWarps);
    }
    for (uint64_t& barrier : barriers.empty_weights) InitBarrier(&barrier, kMultiplyWarps);
    FenceBarrierInit();
  }
  __syncthreads();
  const auto block = static_cast<int>(blockIdx.x);
  const int begin = p.runs.Begin(block);
  const int end = p.runs.Begin(block + 1);
  if (threadIdx.x >= kMultiplyThreads) {
    CopyRun<Shape>(p, memory, barriers, begin, end);
  } else {
    MultiplyRun<Shape>(p, memory, barriers, begin, end, gates);
  }
#endif
}

// Of rows [first, first + count).
template <DType kType>
void LaunchRows(SomeRowsParams params, int first, int count, CudaDevice& device) {
  params.x += static_cast<int64_t>(first) * params.depth;
  params.num_rows = count;
  for (SomeRowsParams::Part& part : params.parts) {
    if (part.out != nullptr) part.out += static_cast<int64_t>(first) * part.num_outputs;
  }
  if (params.gated != nullptr) params.gated += static_cast<int64_t>(first) * params.parts[0].num_outputs;
  const auto launch = [&](auto kernel, int bytes) {
    LaunchShape shape = Overlapping(params.runs.num_blocks(), kThreads, static_cast<size_t>(bytes));
    shape.lets_begin_late = true;
    Launch(device, "MatMul", shape, kernel, params);
  };
  // The narrowest one: of a row all have the same sums, in the same order.
  const auto launched = [&](auto shape) {
    using Shape = decltype(shape);
    if (count > Shape::kColumns) return false;
    launch(SomeRowsBlocksKernel<Shape>, Shape::kBytes);
    return true;
  };
  if (launched(BlocksShape<kType, 64>()) || launched(BlocksShape<kType, 96>())) return;
  launched(BlocksShape<kType, kMostColumns>());
}

}  // namespace

bool HasSomeRowsInBlocks(const MatMulArgs& args, const CudaDevice& device) {
#if HEADWISE_HAS_SM90A
  if (args.parts.empty() || args.parts.size() > kMaxParts || args.compute == Compute::kF32) return false;
  const DType dtype = args.parts[0].weight.dtype;
  int64_t num_tiles = 0;
  for (const MatMulPart& part : args.parts) {
    if (part.weight.dtype != dtype) return false;
    num_tiles += Blocks(part.weight.shape[0], kTileOutputs);
  }
  return IsBlockFormat(dtype) && device.facts().major == 9 && device.facts().minor == 0 &&
         args.x.shape[0] <= kMaxSomeRowsInBlocks && args.x.shape[1] % OrderOf(dtype).slice_elements() == 0 &&
         args.x.shape[1] <= kMaxDepth && num_tiles <= kMaxTickets;
#else
  return false;
#endif
}

size_t SomeRowsInBlocksBytes(const CudaDevice& device) {
  return kTicketBytes +
         2 * static_cast<size_t>(device.facts().num_multiprocessors) * kMaxSums * kMultiplyThreads * sizeof(float);
}

void MatMulSomeRowsInBlocks(const ConstTensorView& x, const LinearArgs& linear, void* gated, std::byte* memory,
                            CudaDevice& device) {
  if (!device.ok()) return;
  SomeRowsParams params = SomeRowsParamsOf(x, linear, gated, memory, kTileOutputs);
  const int num_tiles = NumTiles(linear, params, kTileOutputs);
  const DType dtype = linear.product.parts[0].weight.dtype;
  const int64_t num_slices = OrderOf(dtype).NumSlices(params.depth);
  const int num_rows = params.num_rows;
  if (num_tiles == 0 || num_rows == 0 || num_slices == 0) return;
  params.runs = RunsFor(num_tiles, static_cast<int>(num_slices), device.facts().num_multiprocessors);
  // Weights are read as often for a few rows as for many.
  for (int first = 0; first < num_rows; first += kMostColumns) {
    WithBlockFormat(dtype, [&](auto type) {
      LaunchRows<decltype(type)::value>(params, first, std::min(kMostColumns, num_rows - first), device);
    });
  }
}

}  // namespace headwise::cuda
