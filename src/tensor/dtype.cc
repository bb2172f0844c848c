#include "tensor/dtype.h"

#include "base/check.h"

namespace headwise {

int64_t SizeOf(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kI32 ? 4 : 2;
}

std::string_view NameOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kF16:
      return "f16";
    case DType::kBF16:
      return "bf16";
    case DType::kI32:
      return "i32";
  }
  return "?";
}

std::optional<DType> DTypeByName(std::string_view name) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kI32}) {
    if (NameOf(dtype) == name) return dtype;
  }
  return std::nullopt;
}

float F16ToF32(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
  const uint32_t exponent = (bits >> 10) & 0x1Fu;
  const uint32_t mantissa = bits & 0x3FFu;
  float value;
  if (exponent == 0) {
    // Subnormal: mantissa * 2^-24, exact in f32.
    value = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -value : value;
  }
  const uint32_t wide =
      exponent == 31 ? sign | 0x7F800000u | (mantissa << 13) : sign | ((exponent + 112) << 23) | (mantissa << 13);
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

uint16_t F32ToF16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  bits &= 0x7FFFFFFFu;
  if (bits > 0x7F800000u) return sign | 0x7E00u;
  if (bits >= 0x477FF000u) return sign | 0x7C00u;  // 65520 and above round to infinity
  if (bits < 0x38800000u) {
    // Below 2^-14: adding 0.5 aligns the mantissa to multiples of 2^-24, and the FPU rounds to nearest even.
    float magnitude;
    std::memcpy(&magnitude, &bits, sizeof(magnitude));
    magnitude += 0.5f;
    std::memcpy(&bits, &magnitude, sizeof(bits));
    return static_cast<uint16_t>(sign | (bits - 0x3F000000u));
  }
  const uint32_t rounded = bits + 0xFFFu + ((bits >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

float LoadAsF32(DType dtype, const void* data, int64_t idx) {
  switch (dtype) {
    case DType::kF32:
      return static_cast<const float*>(data)[idx];
    case DType::kF16:
      return F16ToF32(static_cast<const uint16_t*>(data)[idx]);
    case DType::kBF16:
      return BF16ToF32(static_cast<const uint16_t*>(data)[idx]);
    case DType::kI32:
      break;
  }
  HW_CHECK(false, "{} is not a float format", NameOf(dtype));
}

void StoreF32As(DType dtype, void* data, int64_t idx, float value) {
  switch (dtype) {
    case DType::kF32:
      static_cast<float*>(data)[idx] = value;
      return;
    case DType::kF16:
      static_cast<uint16_t*>(data)[idx] = F32ToF16(value);
      return;
    case DType::kBF16:
      static_cast<uint16_t*>(data)[idx] = F32ToBF16(value);
      return;
    case DType::kI32:
      break;
  }
  HW_CHECK(false, "{} is not a float format", NameOf(dtype));
}

}  // namespace headwise
