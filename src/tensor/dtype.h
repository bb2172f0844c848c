// Number formats of tensors, and the exact conversions between them.
#ifndef HEADWISE_TENSOR_DTYPE_H_
#define HEADWISE_TENSOR_DTYPE_H_

#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

namespace headwise {

enum class DType : uint8_t { kF32, kF16, kBF16, kI32 };

int64_t SizeOf(DType dtype);           // bytes per element
std::string_view NameOf(DType dtype);  // "f32", "f16", "bf16", "i32"
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

float F16ToF32(uint16_t bits);
// Rounds to nearest, ties to even; overflow gives infinity, small values subnormals.
uint16_t F32ToF16(float value);

// Element `idx` of an array of `dtype` as f32; dtype must be a float format.
float LoadAsF32(DType dtype, const void* data, int64_t idx);
void StoreF32As(DType dtype, void* data, int64_t idx, float value);

}  // namespace headwise

#endif  // HEADWISE_TENSOR_DTYPE_H_
