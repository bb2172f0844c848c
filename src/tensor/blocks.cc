// In every format below the product of scales and code is exact in f32: 11 significant bits of an f16 by at most 12 of
// the codes. Only adding a minimum rounds, so that no order or fusing of the operations changes a bit of what is read.
#include "tensor/blocks.h"

#include <cmath>

#include "base/check.h"
#include "tensor/block_codes.h"
#include "tensor/blocks_search.h"

namespace headwise {
namespace {

using ReadBlock = void (*)(const uint8_t* block, float* values);
using WriteBlock = void (*)(const float* values, uint8_t* block);

// Code i of 32 that are packed into 16 bytes: byte j holds codes j and 16 + j.
int Nibble(const uint8_t* packed, int i) {
  return (packed[i % 16] >> (4 * (i / 16))) & 15;
}
// Code i of 256 that are packed into 128 bytes: 32 bytes hold two sub-blocks of 32.
int SuperNibble(const uint8_t* packed, int i) {
  const int sub_block = i / 32;
  return (packed[32 * (sub_block / 2) + i % 32] >> (4 * (sub_block % 2))) & 15;
}
// Bit i of 32, as the fifth bit of a code.
int FifthBit(const uint8_t* bits, int i) {
  return ((bits[i / 8] >> (i % 8)) & 1) << 4;
}

void ReadQ8_0(const uint8_t* block, float* values) {
  const float scale = LoadHalf(block);
  for (int i = 0; i < kSmallBlock; ++i) values[i] = scale * static_cast<float>(static_cast<int8_t>(block[2 + i]));
}

void ReadQ4_0(const uint8_t* block, float* values) {
  const float scale = LoadHalf(block);
  for (int i = 0; i < kSmallBlock; ++i) values[i] = scale * static_cast<float>(Nibble(block + 2, i) - 8);
}

void ReadQ4_1(const uint8_t* block, float* values) {
  const float scale = LoadHalf(block), minimum = LoadHalf(block + 2);
  for (int i = 0; i < kSmallBlock; ++i) values[i] = scale * static_cast<float>(Nibble(block + 4, i)) + minimum;
}

void ReadQ5_0(const uint8_t* block, float* values) {
  const float scale = LoadHalf(block);
  for (int i = 0; i < kSmallBlock; ++i) {
    values[i] = scale * static_cast<float>((Nibble(block + 6, i) | FifthBit(block + 2, i)) - 16);
  }
}

void ReadQ5_1(const uint8_t* block, float* values) {
  const float scale = LoadHalf(block), minimum = LoadHalf(block + 2);
  for (int i = 0; i < kSmallBlock; ++i) {
    values[i] = scale * static_cast<float>(Nibble(block + 8, i) | FifthBit(block + 4, i)) + minimum;
  }
}

// q4_k, and with `fifth_bits` [32] q5_k: bit s of byte j belongs to element j of sub-block s.
void ReadAffine(const uint8_t* block, const uint8_t* fifth_bits, const uint8_t* nibbles, float* values) {
  const float scale = LoadHalf(block), minimum = LoadHalf(block + 2);
  const AffineCodes codes = UnpackAffineCodes(block + 4);
  for (int i = 0; i < kSuperBlock; ++i) {
    const auto sub_block = static_cast<size_t>(i / 32);
    int code = SuperNibble(nibbles, i);
    if (fifth_bits != nullptr) code |= ((fifth_bits[i % 32] >> sub_block) & 1) << 4;
    values[i] = scale * static_cast<float>(codes.scales[sub_block]) * static_cast<float>(code) -
                minimum * static_cast<float>(codes.minima[sub_block]);
  }
}

void ReadQ4K(const uint8_t* block, float* values) {
  ReadAffine(block, nullptr, block + 4 + kAffineCodesBytes, values);
}

void ReadQ5K(const uint8_t* block, float* values) {
  const uint8_t* fifth_bits = block + 4 + kAffineCodesBytes;
  ReadAffine(block, fifth_bits, fifth_bits + 32, values);
}

void ReadQ6K(const uint8_t* block, float* values) {
  const uint8_t *low = block, *high = block + 128, *scales = block + 192;
  const float scale = LoadHalf(block + 208);
  for (int i = 0; i < kSuperBlock; ++i) {
    const int half = i / 128, within = i % 128;
    const int low_bits = (low[64 * half + within % 64] >> (4 * (within / 64))) & 15;
    const int high_bits = (high[32 * half + within % 32] >> (2 * (within / 32))) & 3;
    values[i] = scale * static_cast<float>(static_cast<int8_t>(scales[i / 16])) *
                static_cast<float>((low_bits | (high_bits << 4)) - 32);
  }
}

void ReadIQ4NL(const uint8_t* block, float* values) {
  // Steps grow with distance from zero, as values of a bell-shaped distribution thin out. Fixed by the format.
  constexpr int8_t kLevels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  const float scale = LoadHalf(block);
  for (int i = 0; i < kSmallBlock; ++i) values[i] = scale * static_cast<float>(kLevels[Nibble(block + 2, i)]);
}

// 1 / scale, or 0 where that is infinite: the f16 scale is 0 then, whatever the codes.
float Inverse(float scale) {
  const float inverse = 1 / scale;
  return std::isfinite(inverse) ? inverse : 0.0f;
}

void WriteQ8_0(const float* values, uint8_t* block) {
  float largest = 0;
  for (int i = 0; i < kSmallBlock; ++i) largest = std::max(largest, std::abs(values[i]));
  const float scale = LimitToHalf(largest / 127);
  const float inverse = Inverse(scale);
  StoreHalf(scale, block);
  for (int i = 0; i < kSmallBlock; ++i) {
    const float code = std::clamp(std::round(values[i] * inverse), -127.0f, 127.0f);
    block[2 + i] = static_cast<uint8_t>(static_cast<int8_t>(code));
  }
}

void WriteQ4_0(const float* values, uint8_t* block) {
  // The value of largest magnitude, the first of equals, gets code 0, which stands for -8 scales: there are eight steps
  // on its side and seven on the other.
  float extreme = values[0];
  for (int i = 1; i < kSmallBlock; ++i) {
    if (std::abs(values[i]) > std::abs(extreme)) extreme = values[i];
  }
  const float scale = LimitToHalf(extreme / -8);
  const float inverse = Inverse(scale);
  StoreHalf(scale, block);
  const auto code = [&](int i) {
    // Product and sum round once, as in a fused multiply-add: in double the product is exact.
    const auto shifted = static_cast<float>(double{values[i]} * double{inverse} + 8.5);
    return static_cast<uint8_t>(std::clamp(shifted, 0.0f, 15.0f));
  };
  for (int j = 0; j < kSmallBlock / 2; ++j) {
    block[2 + j] = static_cast<uint8_t>(code(j) | (code(j + kSmallBlock / 2) << 4));
  }
}

ReadBlock ReaderOf(DType dtype) {
  switch (dtype) {
    case DType::kQ8_0:
      return ReadQ8_0;
    case DType::kQ4_0:
      return ReadQ4_0;
    case DType::kQ4_1:
      return ReadQ4_1;
    case DType::kQ5_0:
      return ReadQ5_0;
    case DType::kQ5_1:
      return ReadQ5_1;
    case DType::kQ4_K:
      return ReadQ4K;
    case DType::kQ5_K:
      return ReadQ5K;
    case DType::kQ6_K:
      return ReadQ6K;
    case DType::kIQ4_NL:
      return ReadIQ4NL;
    default:
      return nullptr;
  }
}

WriteBlock WriterOf(DType dtype) {
  switch (dtype) {
    case DType::kQ8_0:
      return WriteQ8_0;
    case DType::kQ4_0:
      return WriteQ4_0;
    case DType::kQ4_K:
      return QuantizeQ4K;
    case DType::kQ6_K:
      return QuantizeQ6K;
    default:
      return nullptr;
  }
}

}  // namespace

void ToF32(DType dtype, const void* data, int64_t num_elements, float* values) {
  if (IsPlainFloat(dtype)) {
    for (int64_t i = 0; i < num_elements; ++i) values[i] = LoadAsF32(dtype, data, i);
    return;
  }
  const ReadBlock read = ReaderOf(dtype);
  HW_CHECK(read != nullptr, "{} does not stand for floats", NameOf(dtype));
  const int64_t num_bytes = BytesOf(dtype, num_elements);
  const auto* block = static_cast<const uint8_t*>(data);
  for (const uint8_t* end = block + num_bytes; block != end; block += BlockBytes(dtype)) {
    read(block, values);
    values += BlockElements(dtype);
  }
}

bool CanQuantize(DType dtype) {
  return IsPlainFloat(dtype) || WriterOf(dtype) != nullptr;
}

void FromF32(DType dtype, const float* values, int64_t num_elements, void* data) {
  if (IsPlainFloat(dtype)) {
    for (int64_t i = 0; i < num_elements; ++i) StoreF32As(dtype, data, i, values[i]);
    return;
  }
  const WriteBlock write = WriterOf(dtype);
  HW_CHECK(write != nullptr, "{} can be read, not written", NameOf(dtype));
  const int64_t num_bytes = BytesOf(dtype, num_elements);
  auto* block = static_cast<uint8_t*>(data);
  for (const uint8_t* end = block + num_bytes; block != end; block += BlockBytes(dtype)) {
    write(values, block);
    values += BlockElements(dtype);
  }
}

}  // namespace headwise
