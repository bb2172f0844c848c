// Block-format matrices in the order in which kernels read them. A panel holds 16 rows of W, 16 outputs, side by side:
// sums of products then grow in the lanes of a vector, one output each, and nothing is ever added across lanes.
//
// Along K a panel is cut into runs of 32 elements, and these into 8 quads. A quad is 64 bytes, [16 outputs][4 elements
// of K], the operand of one int8 dot instruction. What its codes stand for:  value = a * (code - offset) + b  with `a`
// and `b` of the (output, run); q2_k, q3_k and q6_k have an `a` per half run, only formats with minima or zero points
// have a `b`. Of f8_e4m3 and nf4 a quad is [4 elements of K][16 outputs], operands of conversions.
//
//   panel:    stretches, one behind the other: memory is read as one stream
//   stretch:  scales of its blocks | codes of their runs      both 64-byte aligned; so few blocks that scales are whole
//             lines (1, 2 or 4); the last stretch may have fewer, its scales take as much space
//   scales of one block:  f16 d[16] (of mxfp4 the exponent, u8; of f8_e4m3 and nf4 f32), f16 min[16] where the format
//   has minima (of u4 the zero point, u8); then where it has scales of scales, per run:
//           u8 scale[16], u8 min[16] (q4_k, q5_k), i8 scale[2 halves][16] (q6_k, q3_k), i8 scale[16] (iq4_xs), or
//           u8 scale + 16 min [2 halves][16] (q2_k)
//   codes of one run:
//     8 bits  8 quads, code = value + 128 (of f8_e4m3 the bits of the float)
//     4 bits  4 x 64 bytes: quad j in the low nibbles of row j, quad j + 4 in its high nibbles
//     2 bits  2 x 64 bytes: bits 2 (j % 4) and up of row j / 4 are quad j
//     3 bits  the low 2 as above, then 64 bytes whose bit j is the high bit of quad j
//     5 bits  the low 4 as above, then 64 bytes whose bit j is the high bit of quad j
//     6 bits  the low 4 as above, then 2 x 64 bytes: bits 2 (j % 4) and up of row j / 4 are the high bits of quad j
// All but q3_k, q4_k, q5_k, iq4_xs (4, 3, 2 and 2 % more) and tq1_0 (in the bits of tq2_0) take the bytes of the file,
// but for a last stretch with fewer blocks.
#ifndef HEADWISE_BACKEND_CPU_KERNELS_PACKED_WEIGHTS_H_
#define HEADWISE_BACKEND_CPU_KERNELS_PACKED_WEIGHTS_H_

#include <cstdint>

namespace headwise::cpu {

// Plain formats lie row-major as in the file, the others in panels.
enum class WeightType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ4_NL,
  kMXFP4,
  kQ2_K,
  kQ3_K,
  kIQ4_XS,
  kTQ2_0,  // and tq1_0
  kU4,
  kF8E4M3,
  kNF4,
};
// Always inlined, here and below: kernels are compiled once per instruction set, and a copy out of line that the linker
// chose for everyone could hold instructions that a machine lacks (tests/kernel_symbols_test.sh).
[[gnu::always_inline]] constexpr bool IsPacked(WeightType type) {
  return type >= WeightType::kQ8_0;
}
// Whether codes are whole numbers, or stand for some: products in int8 want that.
[[gnu::always_inline]] constexpr bool HasWholeCodes(WeightType type) {
  return IsPacked(type) && type != WeightType::kF8E4M3 && type != WeightType::kNF4;
}

inline constexpr int64_t kPanelRows = 16;    // outputs of a panel
inline constexpr int64_t kRunElements = 32;  // of K
inline constexpr int64_t kRunQuads = 8;
inline constexpr int64_t kQuadBytes = 4 * kPanelRows;
inline constexpr int64_t kSuperRuns = 8;  // runs of a block of 256

// How the numbers that all of a block share are stored.
enum class ScaleKind : uint8_t { kHalf, kExponent, kFloat };

struct PackedFormat {
  int bits = 0;    // of a code in memory
  int offset = 0;  // of a code once it is unpacked
  bool has_min = false;
  bool has_super = false;      // scales of scales: a block is 8 runs
  bool has_half_runs = false;  // a scale for 16 elements
  bool has_levels = false;     // codes are places in a table of bytes
  bool has_zero = false;       // has_min, whose minimum is -d times a whole zero point
  ScaleKind scale = ScaleKind::kHalf;
  int block_runs = 1;
  int super_bytes = 0;  // scales of scales of an (output, run)
};
[[gnu::always_inline]] constexpr PackedFormat FormatOf(WeightType type) {
  switch (type) {
    case WeightType::kQ8_0:
      return {.bits = 8, .offset = 128};
    case WeightType::kQ4_0:
      return {.bits = 4, .offset = 8};
    case WeightType::kQ4_1:
      return {.bits = 4, .has_min = true};
    case WeightType::kQ5_0:
      return {.bits = 5, .offset = 16};
    case WeightType::kQ5_1:
      return {.bits = 5, .has_min = true};
    case WeightType::kQ4_K:
      return {.bits = 4, .has_min = true, .has_super = true, .block_runs = 8, .super_bytes = 2};
    case WeightType::kQ5_K:
      return {.bits = 5, .has_min = true, .has_super = true, .block_runs = 8, .super_bytes = 2};
    case WeightType::kQ6_K:
      return {.bits = 6, .offset = 32, .has_super = true, .has_half_runs = true, .block_runs = 8, .super_bytes = 2};
    case WeightType::kIQ4_NL:
      return {.bits = 4, .offset = 128, .has_levels = true};  // a table gives 8 bits
    case WeightType::kMXFP4:
      return {.bits = 4, .offset = 128, .has_levels = true, .scale = ScaleKind::kExponent};
    case WeightType::kQ2_K:
      return {.bits = 2, .has_min = true, .has_super = true, .has_half_runs = true, .block_runs = 8, .super_bytes = 2};
    case WeightType::kQ3_K:
      return {.bits = 3, .offset = 4, .has_super = true, .has_half_runs = true, .block_runs = 8, .super_bytes = 2};
    case WeightType::kIQ4_XS:
      return {.bits = 4, .offset = 128, .has_super = true, .has_levels = true, .block_runs = 8, .super_bytes = 1};
    case WeightType::kTQ2_0:
      return {.bits = 2, .offset = 1, .block_runs = 8};
    case WeightType::kU4:
      return {.bits = 4, .has_min = true, .has_zero = true};
    case WeightType::kF8E4M3:
      return {.bits = 8, .scale = ScaleKind::kFloat, .block_runs = 2};
    case WeightType::kNF4:
      return {.bits = 4, .scale = ScaleKind::kFloat, .block_runs = 2};
    default:
      return {};
  }
}

[[gnu::always_inline]] constexpr int64_t BlockRuns(WeightType type) {
  return FormatOf(type).block_runs;
}
[[gnu::always_inline]] constexpr int64_t RunCodeBytes(WeightType type) {
  return kRunQuads * kQuadBytes * FormatOf(type).bits / 8;
}
// Bytes of d of one output.
[[gnu::always_inline]] constexpr int64_t ScaleSize(WeightType type) {
  const ScaleKind kind = FormatOf(type).scale;
  return kind == ScaleKind::kHalf ? 2 : kind == ScaleKind::kFloat ? 4 : 1;
}
// Where in the scales of a block the scales of scales begin: behind d and min of 16 outputs.
[[gnu::always_inline]] constexpr int64_t SuperScalesAt(WeightType type) {
  const PackedFormat format = FormatOf(type);
  return kPanelRows * (ScaleSize(type) + (format.has_zero ? 1 : format.has_min ? 2 : 0));
}
[[gnu::always_inline]] constexpr int64_t BlockScaleBytes(WeightType type) {
  return SuperScalesAt(type) + BlockRuns(type) * FormatOf(type).super_bytes * kPanelRows;
}
[[gnu::always_inline]] constexpr int64_t StretchBlocks(WeightType type) {
  return BlockScaleBytes(type) % 64 == 0 ? 1 : BlockScaleBytes(type) % 32 == 0 ? 2 : 4;
}
[[gnu::always_inline]] constexpr int64_t StretchScaleBytes(WeightType type) {
  return StretchBlocks(type) * BlockScaleBytes(type);
}
static_assert(StretchScaleBytes(WeightType::kQ4_0) == 64 && StretchScaleBytes(WeightType::kQ6_K) % 64 == 0);

// Where in a panel the scales of a block and the codes of a run begin.
[[gnu::always_inline]] constexpr int64_t BlockScalesAt(WeightType type, int64_t block_idx) {
  const int64_t stretch = block_idx / StretchBlocks(type);
  return stretch * (StretchScaleBytes(type) + StretchBlocks(type) * BlockRuns(type) * RunCodeBytes(type)) +
         block_idx % StretchBlocks(type) * BlockScaleBytes(type);
}
[[gnu::always_inline]] constexpr int64_t RunCodesAt(WeightType type, int64_t run) {
  const int64_t stretch = run / (StretchBlocks(type) * BlockRuns(type));
  return (stretch + 1) * StretchScaleBytes(type) + run * RunCodeBytes(type);
}
// Requires: `depth` (K) is whole blocks.
[[gnu::always_inline]] constexpr int64_t PanelBytes(WeightType type, int64_t depth) {
  const int64_t num_runs = depth / kRunElements;
  const int64_t stretch_runs = StretchBlocks(type) * BlockRuns(type);
  return (num_runs + stretch_runs - 1) / stretch_runs * StretchScaleBytes(type) + num_runs * RunCodeBytes(type);
}

// 32 elements of a row of x as int8: x = scale * code. One cache line.
struct alignas(64) QuantizedRun {
  int8_t codes[kRunElements];
  float scale;
  float scaled_sum;  // scale * sum of codes
  // Where a sum of products of codes starts, so that it ends at that of (code - offset): -offset * sum of codes.
  int32_t start_8;
  int32_t start_16;
  int32_t start_128;
  int32_t start_32[2];  // of each half
  int32_t unused;
};
static_assert(sizeof(QuantizedRun) == 64);

}  // namespace headwise::cpu

#endif  // HEADWISE_BACKEND_CPU_KERNELS_PACKED_WEIGHTS_H_
