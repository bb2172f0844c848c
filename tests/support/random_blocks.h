// Rows of block formats that no quantizer made: every code and scale occurs.
#ifndef HEADWISE_TESTS_SUPPORT_RANDOM_BLOCKS_H_
#define HEADWISE_TESTS_SUPPORT_RANDOM_BLOCKS_H_

#include <cstddef>
#include <cstring>
#include <iterator>
#include <random>
#include <span>
#include <string_view>
#include <vector>

#include "tensor/dtype.h"
#include "tensor/tensor.h"

namespace headwise {

inline constexpr DType kBlockFormats[] = {DType::kQ8_0, DType::kQ4_0,   DType::kQ4_1,   DType::kQ5_0,   DType::kQ5_1,
                                          DType::kQ4_K, DType::kQ5_K,   DType::kQ6_K,   DType::kIQ4_NL, DType::kMXFP4,
                                          DType::kQ2_K, DType::kQ3_K,   DType::kIQ4_XS, DType::kTQ1_0,  DType::kTQ2_0,
                                          DType::kU4,   DType::kF8E4M3, DType::kNF4};

// Those that a backend adopts: GPUs have kernels of the first ten.
inline std::span<const DType> BlockFormatsOf(std::string_view backend) {
  return std::span(kBlockFormats).first(backend == "cuda" ? 10 : std::size(kBlockFormats));
}

// Where the two-byte scales of a block lie.
inline std::vector<size_t> HalvesOf(DType dtype) {
  switch (dtype) {
    case DType::kQ6_K:
      return {208};
    case DType::kQ2_K:
      return {80, 82};
    case DType::kQ3_K:
      return {108};
    case DType::kTQ1_0:
      return {52};
    case DType::kTQ2_0:
      return {64};
    case DType::kMXFP4:
    case DType::kF8E4M3:
    case DType::kNF4:
      return {};
    case DType::kQ4_1:
    case DType::kQ5_1:
    case DType::kQ4_K:
    case DType::kQ5_K:
      return {0, 2};
    default:
      return {0};
  }
}

// What in a block is neither a half nor any byte: exponents and f32 scales of the same size as halves, zero points, and
// floats of 8 bits that are numbers.
inline void LimitBlock(DType dtype, float scale, std::byte* block) {
  if (dtype == DType::kMXFP4) block[0] = static_cast<std::byte>(121 + static_cast<int>(block[0]) % 4);
  if (dtype == DType::kU4) block[2] = static_cast<std::byte>(static_cast<int>(block[2]) % 17);
  if (HasFloatCodes(dtype)) std::memcpy(block, &scale, sizeof(scale));
  if (dtype != DType::kF8E4M3) return;
  for (int i = 4; i < 68; ++i) {
    if ((block[i] & std::byte{0x7F}) == std::byte{0x7F}) block[i] ^= std::byte{1};
  }
}

// Halves are of both signs and between 1/64 and 1/4.
inline std::vector<std::byte> RandomBlocks(DType dtype, const Shape& shape, std::mt19937& rng) {
  std::vector<std::byte> bytes(static_cast<size_t>(BytesOf(dtype, shape.num_elements())));
  std::uniform_int_distribution<int> any(0, 255);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(any(rng));
  std::uniform_real_distribution<float> scale(1.0f / 64, 0.25f);
  for (size_t block = 0; block < bytes.size(); block += static_cast<size_t>(BlockBytes(dtype))) {
    for (const size_t at : HalvesOf(dtype)) {
      const uint16_t half = F32ToF16(any(rng) < 128 ? scale(rng) : -scale(rng));
      std::memcpy(bytes.data() + block + at, &half, sizeof(half));
    }
    const float of_floats = !HasFloatCodes(dtype) ? 0.0f : dtype == DType::kF8E4M3 ? scale(rng) / 64 : 4 * scale(rng);
    LimitBlock(dtype, of_floats, bytes.data() + block);
  }
  return bytes;
}

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_RANDOM_BLOCKS_H_
