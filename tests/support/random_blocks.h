// Rows of block formats that no quantizer made: every code and scale occurs.
#ifndef HEADWISE_TESTS_SUPPORT_RANDOM_BLOCKS_H_
#define HEADWISE_TESTS_SUPPORT_RANDOM_BLOCKS_H_

#include <cstddef>
#include <cstring>
#include <random>
#include <vector>

#include "tensor/dtype.h"
#include "tensor/tensor.h"

namespace headwise {

inline constexpr DType kBlockFormats[] = {DType::kQ8_0, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0,  DType::kQ5_1,
                                          DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kIQ4_NL};

// Where the two-byte scales of a block lie.
inline std::vector<size_t> HalvesOf(DType dtype) {
  switch (dtype) {
    case DType::kQ6_K:
      return {208};
    case DType::kQ4_1:
    case DType::kQ5_1:
    case DType::kQ4_K:
    case DType::kQ5_K:
      return {0, 2};
    default:
      return {0};
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
  }
  return bytes;
}

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_RANDOM_BLOCKS_H_
