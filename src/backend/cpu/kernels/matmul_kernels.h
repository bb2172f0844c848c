// Matrix products of one instruction set: y = x W^T (+ bias) (+ y). Weights of plain formats are row-major as in the
// file and are never copied as a whole; the product of many rows reorders one tile at a time. Weights of block formats
// lie in panels (packed_weights.h).
#ifndef HEADWISE_BACKEND_CPU_KERNELS_MATMUL_KERNELS_H_
#define HEADWISE_BACKEND_CPU_KERNELS_MATMUL_KERNELS_H_

#include <cstdint>

#include "backend/cpu/kernels/packed_weights.h"

namespace headwise::cpu {

// At most this many rows of x go through `few_rows`: it reads each weight once and is bound by memory.
inline constexpr int64_t kMaxFewRows = 8;

// Few rows of x are read block by block of K, all rows of a block together: one stream, whatever K is, where rows that
// lie a power of two apart would push each other out of the cache.
inline constexpr int64_t kFewRowsBlock = 16;

struct FewRowsArgs {
  // [K / kFewRowsBlock, rounded up][num_rows][kFewRowsBlock], 0 behind K; 64-byte aligned. More than kMaxFewRows rows
  // are groups of so many and of what is left, one behind the other.
  const float* x;
  int64_t num_rows;    // 1 .. kMaxFewRows; any number with `scratch`
  const void* weight;  // first of num_outputs rows of K
  WeightType type;
  int64_t depth;        // K
  int64_t num_outputs;  // outputs of this piece
  const float* bias;    // [num_outputs] or null
  float* out;           // [num_rows, out_stride], first output of this piece
  int64_t out_stride;   // floats
  bool add;             // out += instead of out =
  float* scratch;       // for many rows, of kManyRowsOutputs at most: ManyRowsFloats, 64-byte aligned; or null
};

// Many rows by the sums of few: a block of K of some outputs' weights, as f32, stays in the second-level cache while
// all groups of rows go by, whose sums, spread over lanes, wait there for the next block. A block of K of a group of
// rows is 32 KiB and stays in the first-level cache while the outputs go by.
inline constexpr int64_t kManyRowsOutputs = 48;
inline constexpr int64_t kManyRowsBlocks = 64;  // of kFewRowsBlock
[[gnu::always_inline]] constexpr int64_t ManyRowsFloats(int64_t num_rows) {
  return kManyRowsOutputs * ((kManyRowsBlocks + 1) * kFewRowsBlock + num_rows * 16);
}

// The product of many rows walks K in steps of 32 bits: one f32, or two neighbours as bf16, or four as signed bytes,
// the first in the lowest bits.
enum class StepType : uint8_t { kF32, kBF16Pair, kByteQuad };

// Bytes of a row of x have one scale for so many of them, and so have those of an output (Compute::kW8A8).
inline constexpr int64_t kGroupElements = 512;

// Outputs of one tile, and steps of one block of K: a block of the tile's weights, 128 KiB of reordered steps, stays in
// the second-level cache (256 KiB and more) while all rows of x go by.
inline constexpr int64_t kTileOutputs = 64;
inline constexpr int64_t kBlockSteps = 512;
inline constexpr int64_t kTileScratchBytes = kTileOutputs * kBlockSteps * 4;

struct TileArgs {
  const float* x;  // [num_rows, steps of K]: f32, or what round_row or quantize_group made; readable to a multiple of
                   // 16 rows and of 16 steps, the steps behind K 0
  int64_t num_rows;
  int64_t x_stride;  // steps
  // On tile registers x is [blocks][rows / 16][registers of 16 rows and 16 steps]: a block has kAmxBlockSteps of K, or
  // all if those are fewer, the last one leaves a gap, and they are so many steps apart.
  int64_t x_block_stride;
  StepType steps;  // kBF16Pair only where has_bf16_dot, kByteQuad only where has_tiles and for weights in panels whose
                   // codes are whole
  const float* x_scales;  // of kByteQuad, which without x_starts has more than 32 rows: [K / kGroupElements, rounded
                          // up] [x_scales_stride], of these rows; readable to a multiple of 16 rows
  int64_t x_scales_stride;
  // Of kByteQuad where all runs of a group of an output have one scale already (RoundToGroupScales), else null: where
  // sums of codes start that are to end at those of code - offset, as QuantizedRun::start_128, in the order of
  // x_scales.
  const int32_t* x_starts;
  const void* weight;  // first of num_outputs rows of K
  WeightType type;
  int64_t depth;        // K
  int64_t num_outputs;  // at most TileLimits::num_outputs
  const float* bias;    // [num_outputs] or null
  float* out;           // [num_rows, out_stride], first output of this tile
  int64_t out_stride;   // floats
  bool add;             // out += instead of out =
  float* scratch;       // TileLimits::scratch_bytes, 64-byte aligned
};

// 32 elements of a row of x as they are, and their sum.
struct FloatRun {
  float values[kRunElements];
  float sum;
};

// Products with weights in panels.
struct PackedArgs {
  // Run k of row r of x is x[r * x_row_stride + k * x_run_stride]; one of the two is null.
  const QuantizedRun* x_int8;
  const FloatRun* x_f32;
  int64_t x_row_stride;
  int64_t x_run_stride;
  int64_t num_rows;
  const void* weight;  // the panel of the first output
  WeightType type;
  int64_t depth;        // K
  int64_t num_outputs;  // of this piece, which begins with a panel
  const float* bias;    // [num_outputs] or null
  float* out;           // [num_rows, out_stride], first output of this piece
  int64_t out_stride;   // floats
  bool add;             // out += instead of out =
};

// Runs of K of one int8 tile: its unpacked codes and scales fit kTileScratchBytes. Products of few rows add up the sums
// of as many.
inline constexpr int64_t kTileRuns = 32;

// What one call of `tile` takes at most.
struct TileLimits {
  int64_t num_outputs;
  // Reordering a tile's weights costs as much as 7 to 12 rows; more rows a task would leave a machine of many cores
  // without work in a narrow matrix.
  int64_t num_rows;
  int64_t scratch_bytes;
};
inline constexpr TileLimits kVectorTileLimits = {kTileOutputs, 256, kTileScratchBytes};

// Fewer rows in int8 are faster as products of bytes than reordered to bf16: on 16 threads of a Xeon 32 rows by a half,
// 64 by a tenth; of 128 they are slower by a fifth.
inline constexpr int64_t kMinRegisterRows = 96;

// On tile registers (matmul_amx-inl.h): outputs and rows of a task, and steps of a block. The sums of all, a block
// of x and the next one, 1 MiB, stay in the second-level cache (2 MiB), two panels of 16 outputs, reordered, and the
// next two, 32 KiB, in the first (48 KiB). Blocks of twice the steps take a fifth longer in bytes and as long in bf16;
// twice the outputs as long.
inline constexpr int64_t kAmxOutputs = 256;
inline constexpr int64_t kAmxRows = 512;
inline constexpr int64_t kAmxBlockSteps = 128;
inline constexpr int64_t kAmxPairOutputs = 32;
inline constexpr int64_t kAmxBlockGroups = kAmxBlockSteps * 4 / kGroupElements;
inline constexpr int64_t kAmxWaitingFloats = 2 * 4 * 256;  // sums of bytes of two groups, four registers each
inline constexpr TileLimits kAmxTileLimits = {
    kAmxOutputs, kAmxRows,
    ((2 * kAmxBlockSteps + 3 * kAmxBlockGroups) * kAmxPairOutputs + kAmxWaitingFloats + kAmxRows * kAmxOutputs) * 4};

struct GroupSummary {
  float scale;       // 1 of the bytes is this much
  int32_t code_sum;  // of all bytes
};

struct MatMulKernels {
  // Row r of the result does not depend on num_rows, bit for bit: a token decoded in a batch equals it alone.
  void (*few_rows)(const FewRowsArgs& args);
  // An element depends on its row of x and its row of W only, bit for bit, not on the tile's bounds.
  void (*tile)(const TileArgs& args);
  // The same two promises; over x_int8 also that these and packed_tile give the same bits.
  void (*packed_few_rows)(const PackedArgs& args);
  // Many rows, x_int8 only: f32 and bf16 products go through `tile`. `scratch` has kTileScratchBytes, num_outputs is at
  // most kTileOutputs.
  void (*packed_tile)(const PackedArgs& args, void* scratch);
  // Rounds each 32 elements of x to int8 with a scale of their own: the largest magnitude becomes 127. Runs are
  // `stride` apart in `to`. `n` is a multiple of 32.
  void (*quantize_row)(const float* x, int64_t n, QuantizedRun* to, int64_t stride);
  // Rounds `n` elements of x, a group at most, to signed bytes with one scale: the largest magnitude becomes 127. Each
  // 64 of them are `stride` bytes further on in `to`; behind the last stand zeros to the end of its 64.
  GroupSummary (*quantize_group)(const float* x, int64_t n, int8_t* to, int64_t stride);
  // pairs[i] = bf16(x[2i]), bf16(x[2i+1]), to nearest even, with 0 behind the last; (n + 1) / 2 steps.
  void (*round_row)(const float* x, int64_t n, float* pairs);
  TileLimits register_tile_limits;  // of steps of bf16 pairs and of bytes; others have kVectorTileLimits
  // Products run on tile registers: x of `tile` with steps of bf16 and of bytes is in their order, and block formats
  // take those from kMinRegisterRows on with Compute::kInt8 too, because the sums of bytes are scaled every 32
  // elements, which takes longer than their products.
  bool has_tiles;
  bool has_bf16_dot;  // Compute::kBF16 is faster than f32 here; elsewhere it is computed in f32
  bool has_int8_dot;
};

}  // namespace headwise::cpu

#endif  // HEADWISE_BACKEND_CPU_KERNELS_MATMUL_KERNELS_H_
