// Weights in block formats in the order in which products of few rows read them (matmul_few_rows_blocks.cu): where
// each number lies, for host and device. What packs them is pack_blocks.h. No std:: code.
//
// A tile is 16 outputs, N rounded up to it. Along K it is cut into slices, 128 elements of q8_0 or 256 of the others,
// one behind the other, K rounded up to them with zeros: a tile is one stream. A slice is cut into runs of 32, each the
// left operand of an integer product mma.m16n8k32. Of that operand lane 4 g + q of a warp holds four registers of four
// bytes:
//   register 0: output g, elements 2 q, 8 + 2 q, 2 q + 1, 9 + 2 q  register 1: output g + 8, the same elements
//   register 2: output g, those of 16 and on                       register 3: output g + 8, those
// To the product it is all the same in which order elements come, as long as x's are in the same one. This one is that
// in which a lane holds operands of 16 bits, so that codes become those where they are (matmul_some_rows_blocks.cu).
// A code is held as a number of its bits at the top of a byte of such a register, zeros below it: a product of codes of
// b bits comes out 2^(8 - b) times as large, which is taken back from its sums. Formats without minima have signed
// codes (code - 2^(b - 1), in two's complement), so that nothing else is subtracted; those with minima have codes from
// 0 on. iq4_nl's and mxfp4's codes are places in a table of signed bytes.
//
//   slice:  low bits | high bits | scales
//   low bits:
//     8 bits  per run: 32 lanes' 16 bytes, the four registers
//     4 bits  (and the low 4 of 5 and 6) per two runs: 32 lanes' 16 bytes, of each run a word of output g and one of
//             output g + 8; byte i of a word holds in its low nibble byte i of the first register's four, in its high
//             one that of the second's; of those with a table in nibbles i and 4 + i
//   high bits, at the bytes of the registers:
//     5 bits  32 lanes' 16 bytes, a word for two runs, whose bit 4 (run % 2) + j belongs to register j
//     6 bits  per four runs: 32 lanes' 16 bytes, a word a run, whose bits 2 j and 2 j + 1 belong to register j
//   scales:
//     f16 d (of mxfp4 bf16: powers of two) [8 g][runs][output g, output g + 8], then f16 min, likewise, where the
//     format has them; or with scales of scales:
//       q4_k, q5_k  u8 scale[8 g][8 runs][2], u8 min[8 g][8 runs][2],
//                   then of each g f16 d, d of g + 8, min, min of g + 8
//       q6_k        i8 scale[8 g][8 runs][2 halves of a run][2], then f16 d[8 g][2]
// All formats but q4_k and q5_k (2.8 and 2.3 % more) and mxfp4 (5.9 %) take the bytes that they take in the file, where
// K is whole slices.
#ifndef HEADWISE_BACKEND_CUDA_BLOCK_ORDER_H_
#define HEADWISE_BACKEND_CUDA_BLOCK_ORDER_H_

#include <cstdint>

#include "tensor/dtype.h"

namespace headwise::cuda {

inline constexpr int kRunElements = 32;
inline constexpr int kOrderOutputs = 16;  // of a tile

struct BlockOrder {
  int bits = 8;  // of a code
  int runs = 8;  // of a slice
  bool has_min = false;
  bool has_super = false;      // scales of scales
  bool has_half_runs = false;  // a scale for 16 elements
  bool has_levels = false;     // codes are places in a table
  bool has_powers = false;     // that of mxfp4; scales are powers of two, in bf16

  constexpr bool is_signed() const { return !has_min && !has_levels; }
  constexpr int low_bytes() const { return (bits == 8 ? 512 : 256) * runs; }
  constexpr int high_bytes() const { return bits == 5 ? 64 * runs : bits == 6 ? 128 * runs : 0; }
  // Where in a slice the parts begin.
  constexpr int high_at() const { return low_bytes(); }
  constexpr int scales_at() const { return low_bytes() + high_bytes(); }
  constexpr int mins_at() const { return scales_at() + kOrderOutputs * runs * (has_super ? 1 : 2); }
  constexpr int halves_at() const {
    return scales_at() + 2 * kOrderOutputs * runs;
  }  // of formats with scales of scales
  constexpr int slice_bytes() const {
    if (has_super) return halves_at() + (has_min ? 2 : 1) * kOrderOutputs * 2;
    return scales_at() + (has_min ? 2 : 1) * kOrderOutputs * runs * 2;
  }
  constexpr int slice_elements() const { return runs * kRunElements; }
  constexpr int64_t NumSlices(int64_t depth) const { return (depth + slice_elements() - 1) / slice_elements(); }
  constexpr int64_t TileBytes(int64_t depth) const { return NumSlices(depth) * slice_bytes(); }
};

// Requires: a block format.
constexpr BlockOrder OrderOf(DType dtype) {
  switch (dtype) {
    case DType::kQ4_0:
      return {.bits = 4};
    case DType::kQ4_1:
      return {.bits = 4, .has_min = true};
    case DType::kQ5_0:
      return {.bits = 5};
    case DType::kQ5_1:
      return {.bits = 5, .has_min = true};
    case DType::kQ4_K:
      return {.bits = 4, .has_min = true, .has_super = true};
    case DType::kQ5_K:
      return {.bits = 5, .has_min = true, .has_super = true};
    case DType::kQ6_K:
      return {.bits = 6, .has_super = true, .has_half_runs = true};
    case DType::kIQ4_NL:
      return {.bits = 4, .has_levels = true};
    case DType::kMXFP4:
      return {.bits = 4, .has_levels = true, .has_powers = true};
    default:
      return {.bits = 8, .runs = 4};
  }
}
static_assert(OrderOf(DType::kQ8_0).slice_bytes() == 16 * 4 * 34 && OrderOf(DType::kQ4_0).slice_bytes() == 16 * 8 * 18);
static_assert(OrderOf(DType::kQ6_K).slice_bytes() == 16 * 210 && OrderOf(DType::kQ5_1).slice_bytes() == 16 * 8 * 24);
static_assert(OrderOf(DType::kQ4_K).slice_bytes() == 16 * 148 && OrderOf(DType::kQ5_K).slice_bytes() == 16 * 180);

constexpr int64_t OrderedBytes(DType dtype, int64_t num_outputs, int64_t depth) {
  return (num_outputs + kOrderOutputs - 1) / kOrderOutputs * OrderOf(dtype).TileBytes(depth);
}

// ---- where the numbers of an (output, run) of a slice lie -----------------------------------------------------------

// Of 16 elements, whose four q of a lane's register and which byte of it.
constexpr int LaneOfElement(int element) {
  return element % 8 / 2;
}
constexpr int ByteOfElement(int element) {
  return element % 2 * 2 + element / 8;
}

struct CodePlace {
  int low = 0;  // the byte of the slice, and the code's place in it
  int low_shift = 0;
  int high = 0;  // the same of its high bits, where the format has them apart
  int high_shift = 0;
};
// Of an element of a run. Output: of the tile.
constexpr CodePlace PlaceOfCode(const BlockOrder& order, int output, int run, int element) {
  const int lane = output % 8 * 4 + LaneOfElement(element % 16);
  const int byte = ByteOfElement(element % 16);
  const int second = element / 16;
  const int reg = second * 2 + output / 8;
  if (order.bits == 8) return {.low = (run * 32 + lane) * 16 + reg * 4 + byte};
  const int word = (run / 2 * 32 + lane) * 16 + (run % 2 * 2 + output / 8) * 4;
  const int nibble = second * 4 + byte;
  CodePlace place{.low = word + byte, .low_shift = second * 4};
  if (order.has_levels) place = {.low = word + nibble / 2, .low_shift = nibble % 2 * 4};
  if (order.bits == 5) {
    place.high = order.high_at() + lane * 16 + run / 2 * 4 + byte;
    place.high_shift = run % 2 * 4 + reg;
  } else if (order.bits == 6) {
    place.high = order.high_at() + (run / 4 * 32 + lane) * 16 + run % 4 * 4 + byte;
    place.high_shift = reg * 2;
  }
  return place;
}

struct ScalePlace {
  int d = 0;          // bytes of the slice: f16
  int min = 0;        // f16, where the format has it
  int scale = 0;      // of formats with scales of scales: one byte
  int min_scale = 0;  // likewise
};
// `half`: of a run, for formats that have a scale for each.
constexpr ScalePlace PlaceOfScales(const BlockOrder& order, int output, int run, int half) {
  const int g = output % 8;
  const int upper = output / 8;
  const int pair = (g * order.runs + run) * 2 + upper;
  if (!order.has_super) return {.d = order.scales_at() + pair * 2, .min = order.mins_at() + pair * 2};
  if (order.has_half_runs) {
    return {.d = order.halves_at() + (g * 2 + upper) * 2,
            .scale = order.scales_at() + ((g * order.runs + run) * 2 + half) * 2 + upper};
  }
  const int halves = order.halves_at() + g * 8 + upper * 2;
  return {.d = halves, .min = halves + 4, .scale = order.scales_at() + pair, .min_scale = order.mins_at() + pair};
}

// ---- reading --------------------------------------------------------------------------------------------------------

// The same as kIQ4Levels and kMXFP4Levels.
constexpr int LevelOf(const BlockOrder& order, int code) {
  constexpr int kLevels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  constexpr int kSmallFloats[8] = {0, 1, 2, 3, 4, 6, 8, 12};  // below a sign
  if (order.has_powers) return code < 8 ? kSmallFloats[code] : -kSmallFloats[code - 8];
  return kLevels[code];
}

// What an element is made of: d * scale * level + min * min_scale, all operations in f32. With scales of scales `scale`
// is one and min_scale is -that of the format, else they are 1.
struct BlockTerms {
  uint16_t d = 0;  // f16, or bf16
  uint16_t min = 0;
  int scale = 1;
  int min_scale = 1;
  int level = 0;

  // d and min as f32. Products are exact: only the sum rounds, whatever is fused.
  constexpr float Value(bool has_min, float d_value, float min_value) const {
    const float product = d_value * static_cast<float>(scale) * static_cast<float>(level);
    return has_min ? product + min_value * static_cast<float>(min_scale) : product;
  }
};
constexpr uint16_t HalfAt(const uint8_t* bytes, int at) {
  return static_cast<uint16_t>(bytes[at] | (bytes[at + 1] << 8));
}
// Of element `k` of the slice.
constexpr BlockTerms TermsOf(const BlockOrder& order, const uint8_t* slice, int output, int k) {
  const int run = k / kRunElements;
  const int element = k % kRunElements;
  const CodePlace place = PlaceOfCode(order, output, run, element);
  const int low_bits = order.bits == 8 ? 8 : 4;
  int code = (slice[place.low] >> place.low_shift) & ((1 << low_bits) - 1);
  if (order.bits == 5 || order.bits == 6) {
    code |= ((slice[place.high] >> place.high_shift) & (order.bits == 5 ? 1 : 3)) << 4;
  }
  const ScalePlace scales = PlaceOfScales(order, output, run, element / 16);
  BlockTerms terms{.d = HalfAt(slice, scales.d)};
  if (order.has_min) terms.min = HalfAt(slice, scales.min);
  const int sign = 1 << (order.bits - 1);
  terms.level = order.has_levels ? LevelOf(order, code) : order.is_signed() ? (code ^ sign) - sign : code;
  if (!order.has_super) return terms;
  terms.scale = order.has_half_runs ? (slice[scales.scale] ^ 128) - 128 : slice[scales.scale];
  if (order.has_min) terms.min_scale = -static_cast<int>(slice[scales.min_scale]);
  return terms;
}

}  // namespace headwise::cuda

#endif  // HEADWISE_BACKEND_CUDA_BLOCK_ORDER_H_
