// In every format below but f8_e4m3 and nf4 the product of scales and code is exact in f32: 11 significant bits of an
// f16 by at most 13 of the codes. Only adding a minimum rounds, so that no order or fusing of the operations changes a
// bit of what is read; and in those two one product, whose scale may have all bits of an f32.
#include "tensor/blocks.h"

#include <cmath>

#include "base/check.h"
#include "tensor/block_codes.h"
#include "tensor/block_reader.h"
#include "tensor/blocks_search.h"

namespace headwise {
namespace {

using WriteBlock = void (*)(const float* values, uint8_t* block);

// The values of a block with one scale: `level` is what a code stands for, in units of it.
template <typename Level>
void ScaleCodes(const BlockCodes& block, const Level& level, float* values) {
  const float scale = F16ToF32(block.d);
  for (int i = 0; i < kSmallBlock; ++i) values[i] = scale * static_cast<float>(level(block.codes[i]));
}

void AddMinimum(const BlockCodes& block, float* values) {
  const float minimum = F16ToF32(block.min);
  for (int i = 0; i < kSmallBlock; ++i) values[i] += minimum;
}

// q4_k and q5_k.
void ScaleAffine(const BlockCodes& block, float* values) {
  const float scale = F16ToF32(block.d), minimum = F16ToF32(block.min);
  for (int i = 0; i < kSuperBlock; ++i) {
    values[i] = scale * static_cast<float>(block.scales[i / 32]) * static_cast<float>(block.codes[i]) -
                minimum * static_cast<float>(block.mins[i / 32]);
  }
}

void ScaleQ2K(const BlockCodes& block, float* values) {
  const float scale = F16ToF32(block.d), minimum = F16ToF32(block.min);
  for (int i = 0; i < kSuperBlock; ++i) {
    values[i] = scale * static_cast<float>(block.scales[i / 16]) * static_cast<float>(block.codes[i]) -
                minimum * static_cast<float>(block.mins[i / 16]);
  }
}

// A signed scale for every kRun elements: `level` is what a code stands for, in units of it.
template <int kRun, typename Level>
void ScaleRuns(const BlockCodes& block, const Level& level, float* values) {
  const float scale = F16ToF32(block.d);
  for (int i = 0; i < kSuperBlock; ++i) {
    values[i] = scale * static_cast<float>(static_cast<int8_t>(block.scales[i / kRun])) *
                static_cast<float>(level(block.codes[i]));
  }
}

// One scale for all of the block.
template <typename Level>
void ScaleAll(float scale, const BlockCodes& block, int64_t num_elements, const Level& level, float* values) {
  for (int64_t i = 0; i < num_elements; ++i) values[i] = scale * static_cast<float>(level(block.codes[i]));
}

void ReadValues(DType dtype, const std::byte* bytes, float* values) {
  BlockCodes block;
  ReadBlock(dtype, bytes, block);
  switch (dtype) {
    case DType::kQ8_0:
      return ScaleCodes(
          block, [](int code) { return code - 128; }, values);
    case DType::kQ4_0:
      return ScaleCodes(
          block, [](int code) { return code - 8; }, values);
    case DType::kQ5_0:
      return ScaleCodes(
          block, [](int code) { return code - 16; }, values);
    case DType::kIQ4_NL:
      return ScaleCodes(
          block, [](int code) { return kIQ4Levels[code]; }, values);
    case DType::kQ4_1:
    case DType::kQ5_1:
      ScaleCodes(
          block, [](int code) { return code; }, values);
      return AddMinimum(block, values);
    case DType::kQ6_K:
      return ScaleRuns<16>(
          block, [](int code) { return code - 32; }, values);
    case DType::kQ3_K:
      return ScaleRuns<16>(
          block, [](int code) { return code - 4; }, values);
    case DType::kIQ4_XS:
      return ScaleRuns<32>(
          block, [](int code) { return kIQ4Levels[code]; }, values);
    case DType::kQ2_K:
      return ScaleQ2K(block, values);
    case DType::kTQ1_0:
    case DType::kTQ2_0:
      return ScaleAll(
          F16ToF32(block.d), block, kSuperBlock, [](int code) { return code - 1; }, values);
    case DType::kMXFP4:
      return ScaleAll(
          E8M0ToF32(block.exponent) / 2, block, kSmallBlock, [](int code) { return kMXFP4Levels[code]; }, values);
    case DType::kU4:
      return ScaleCodes(
          block, [&](int code) { return code - block.zero; }, values);
    case DType::kF8E4M3:
      return ScaleAll(
          block.scale, block, BlockElements(dtype), [](uint8_t code) { return E4M3ToF32(code); }, values);
    case DType::kNF4:
      return ScaleAll(
          block.scale, block, BlockElements(dtype), [](int code) { return kNF4Levels[code]; }, values);
    default:
      return ScaleAffine(block, values);
  }
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

// The scale is the power of two under which the largest magnitude lies between 4 and 8 of the levels' halves, so that
// it is the largest level (6) or the one below, or is cut to it. Of two levels that are as near the smaller magnitude.
void WriteMXFP4(const float* values, uint8_t* block) {
  float largest = 0;
  for (int i = 0; i < kSmallBlock; ++i) largest = std::max(largest, std::abs(values[i]));
  const int exponent = largest > 0 ? std::clamp(std::ilogb(largest) - 2 + 127, 0, 254) : 0;
  block[0] = static_cast<uint8_t>(exponent);
  const float scale = E8M0ToF32(block[0]) / 2;
  const auto code = [&](int i) {
    int best = 0;
    float smallest = std::abs(values[i]);
    for (int level = 1; level < 16; ++level) {
      const float error = std::abs(scale * static_cast<float>(kMXFP4Levels[level]) - values[i]);
      if (error >= smallest) continue;
      smallest = error;
      best = level;
    }
    return best;
  };
  for (int j = 0; j < kSmallBlock / 2; ++j) {
    block[1 + j] = static_cast<uint8_t>(code(j) | (code(j + kSmallBlock / 2) << 4));
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
    case DType::kMXFP4:
      return WriteMXFP4;
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
  HW_CHECK(IsBlockFormat(dtype), "{} does not stand for floats", NameOf(dtype));
  const int64_t num_bytes = BytesOf(dtype, num_elements);
  const auto* block = static_cast<const std::byte*>(data);
  for (const std::byte* end = block + num_bytes; block != end; block += BlockBytes(dtype)) {
    ReadValues(dtype, block, values);
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
