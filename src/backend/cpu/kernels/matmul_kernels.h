// Matrix products of one instruction set: y = x W^T (+ bias) (+ y). Weights are row-major as in the file and are never
// copied as a whole; the product of many rows reorders one tile at a time.
#ifndef HEADWISE_BACKEND_CPU_KERNELS_MATMUL_KERNELS_H_
#define HEADWISE_BACKEND_CPU_KERNELS_MATMUL_KERNELS_H_

#include <cstdint>

namespace headwise::cpu {

enum class WeightType : uint8_t { kF32, kF16, kBF16 };

// At most this many rows of x go through `few_rows`: it reads each weight once and is bound by memory.
inline constexpr int64_t kMaxFewRows = 8;

// Few rows of x are read block by block of K, all rows of a block together: one stream, whatever K is, where rows that
// lie a power of two apart would push each other out of the cache.
inline constexpr int64_t kFewRowsBlock = 16;

struct FewRowsArgs {
  const float* x;      // [K / kFewRowsBlock, rounded up][num_rows][kFewRowsBlock], 0 behind K; 64-byte aligned
  int64_t num_rows;    // 1 .. kMaxFewRows
  const void* weight;  // first of num_outputs rows of K
  WeightType type;
  int64_t depth;        // K
  int64_t num_outputs;  // outputs of this piece
  const float* bias;    // [num_outputs] or null
  float* out;           // [num_rows, out_stride], first output of this piece
  int64_t out_stride;   // floats
  bool add;             // out += instead of out =
};

// The product of many rows walks K in steps of 32 bits: one f32, or two neighbours as bf16, the first in the low half.
enum class StepType : uint8_t { kF32, kBF16Pair };

// Outputs of one tile, and steps of one block of K: a block of the tile's weights, 128 KiB of reordered steps, stays in
// the second-level cache (256 KiB and more) while all rows of x go by.
inline constexpr int64_t kTileOutputs = 64;
inline constexpr int64_t kBlockSteps = 512;
inline constexpr int64_t kTileScratchBytes = kTileOutputs * kBlockSteps * 4;

struct TileArgs {
  const float* x;  // [num_rows, steps of K]: f32, or the pairs that round_row made
  int64_t num_rows;
  int64_t x_stride;    // steps
  StepType steps;      // kBF16Pair only where has_bf16_dot
  const void* weight;  // first of num_outputs rows of K
  WeightType type;
  int64_t depth;        // K
  int64_t num_outputs;  // 1 .. kTileOutputs
  const float* bias;    // [num_outputs] or null
  float* out;           // [num_rows, out_stride], first output of this tile
  int64_t out_stride;   // floats
  bool add;             // out += instead of out =
  float* scratch;       // kTileScratchBytes, 64-byte aligned
};

struct MatMulKernels {
  // Row r of the result does not depend on num_rows, bit for bit: a token decoded in a batch equals it alone.
  void (*few_rows)(const FewRowsArgs& args);
  // An element depends on its row of x and its row of W only, bit for bit, not on the tile's bounds.
  void (*tile)(const TileArgs& args);
  // pairs[i] = bf16(x[2i]), bf16(x[2i+1]), to nearest even, with 0 behind the last; (n + 1) / 2 steps.
  void (*round_row)(const float* x, int64_t n, float* pairs);
  bool has_bf16_dot;  // Compute::kBF16 is faster than f32 here; elsewhere it is computed in f32
};

}  // namespace headwise::cpu

#endif  // HEADWISE_BACKEND_CPU_KERNELS_MATMUL_KERNELS_H_
