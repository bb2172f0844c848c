// Number formats of tensors, and the exact conversions between the plain ones. Block formats, in which some elements
// share a scale, are read and written in tensor/blocks.h.
#ifndef HEADWISE_TENSOR_DTYPE_H_
#define HEADWISE_TENSOR_DTYPE_H_

#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

namespace headwise {

// Plain formats first. Block formats are those of GGUF files, by the names they have there; behind them those
// that matrices of published folders get as they are read (weights/published_weights.h).
enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kI32,
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
  kTQ1_0,
  kTQ2_0,
  kU4,      // 4 bits, a scale and a whole zero point for 32: AWQ, GPTQ
  kF8E4M3,  // 8-bit floats, an f32 scale for 64
  kNF4,     // 4-bit places in a table of floats, an f32 scale for 64: bitsandbytes
};

inline bool IsPlainFloat(DType dtype) {
  return dtype < DType::kI32;
}
inline bool IsBlockFormat(DType dtype) {
  return dtype >= DType::kQ8_0;
}
// Of block formats those whose codes are not whole numbers, nor stand for some.
inline bool HasFloatCodes(DType dtype) {
  return dtype == DType::kF8E4M3 || dtype == DType::kNF4;
}
// Elements that share a scale, neighbours in a row, and the bytes they take together. A plain format's block is one
// element. Rows of a block format are whole blocks.
int64_t BlockElements(DType dtype);  // 1, 32, 64 or 256
int64_t BlockBytes(DType dtype);
// Bytes per element. Requires: a plain format.
int64_t SizeOf(DType dtype);
// Bytes of so many elements. Requires: whole blocks.
int64_t BytesOf(DType dtype, int64_t num_elements);
std::string_view NameOf(DType dtype);  // "f32", "bf16", "q8_0", "q4_k", ...
std::optional<DType> DTypeByName(std::string_view name);

inline float BF16ToF32(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

// Rounds to nearest, ties to even; NaN stays NaN.
inline uint16_t F32ToBF16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

// 4 bits of exponent, 3 of fraction, no infinities; NaN is all ones but the sign.
inline float E4M3ToF32(uint8_t bits) {
  const uint32_t magnitude = bits & 0x7Fu;
  float value;
  if (magnitude < 8) {
    value = static_cast<float>(magnitude) * 0x1p-9f;
  } else {
    const uint32_t wide = magnitude == 0x7Fu ? 0x7FC00000u : (magnitude << 20) + (120u << 23);
    std::memcpy(&value, &wide, sizeof(value));
  }
  return (bits & 0x80u) != 0 ? -value : value;
}

// A power of two as a byte: 2^(bits - 127); NaN is 255.
inline float E8M0ToF32(uint8_t bits) {
  const uint32_t wide = bits == 0xFFu ? 0x7FC00000u : bits == 0 ? 0x00400000u : uint32_t{bits} << 23;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

float F16ToF32(uint16_t bits);
// Rounds to nearest, ties to even; overflow gives infinity, small values subnormals.
uint16_t F32ToF16(float value);

// Element `idx` of an array of `dtype` as f32; dtype must be a plain float format.
float LoadAsF32(DType dtype, const void* data, int64_t idx);
void StoreF32As(DType dtype, void* data, int64_t idx, float value);

}  // namespace headwise

#endif  // HEADWISE_TENSOR_DTYPE_H_
