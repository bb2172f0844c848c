#include "tensor/dtype.h"

#include <iterator>

#include "base/check.h"

namespace headwise {

namespace {

struct Format {
  std::string_view name;
  int64_t block_elements;
  int64_t block_bytes;
};

// In the order of DType. Bytes of blocks: two-byte scales and minima, then packed scales, high bits, low bits.
constexpr Format kFormats[] = {
    {"f32", 1, 4},
    {"f16", 1, 2},
    {"bf16", 1, 2},
    {"i32", 1, 4},
    {"q8_0", 32, 2 + 32},
    {"q4_0", 32, 2 + 16},
    {"q4_1", 32, 4 + 16},
    {"q5_0", 32, 2 + 4 + 16},
    {"q5_1", 32, 4 + 4 + 16},
    {"q4_k", 256, 4 + 12 + 128},
    {"q5_k", 256, 4 + 12 + 32 + 128},
    {"q6_k", 256, 2 + 16 + 64 + 128},
    {"iq4_nl", 32, 2 + 16},
    {"mxfp4", 32, 1 + 16},
    {"q2_k", 256, 16 + 64 + 4},
    {"q3_k", 256, 32 + 64 + 12 + 2},
    {"iq4_xs", 256, 2 + 2 + 4 + 128},
    {"tq1_0", 256, 48 + 4 + 2},
    {"tq2_0", 256, 64 + 2},
    {"u4", 32, 2 + 1 + 16},
    {"f8_e4m3", 64, 4 + 64},
    {"nf4", 64, 4 + 32},
};

const Format& FormatOf(DType dtype) {
  return kFormats[static_cast<size_t>(dtype)];
}

}  // namespace

int64_t BlockElements(DType dtype) {
  return FormatOf(dtype).block_elements;
}

int64_t BlockBytes(DType dtype) {
  return FormatOf(dtype).block_bytes;
}

int64_t SizeOf(DType dtype) {
  HW_CHECK(!IsBlockFormat(dtype), "{} has no bytes per element", NameOf(dtype));
  return BlockBytes(dtype);
}

int64_t BytesOf(DType dtype, int64_t num_elements) {
  HW_CHECK(num_elements % BlockElements(dtype) == 0, "{} elements of {}", num_elements, NameOf(dtype));
  return num_elements / BlockElements(dtype) * BlockBytes(dtype);
}

std::string_view NameOf(DType dtype) {
  return FormatOf(dtype).name;
}

std::optional<DType> DTypeByName(std::string_view name) {
  for (size_t i = 0; i < std::size(kFormats); ++i) {
    if (kFormats[i].name == name) return static_cast<DType>(i);
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
    default:
      break;
  }
  HW_CHECK(false, "{} is not a plain float format", NameOf(dtype));
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
    default:
      break;
  }
  HW_CHECK(false, "{} is not a plain float format", NameOf(dtype));
}

}  // namespace headwise
