// Pieces of the block formats that both their readers and their writers need. Private to tensor/blocks*.cc.
#ifndef HEADWISE_TENSOR_BLOCK_CODES_H_
#define HEADWISE_TENSOR_BLOCK_CODES_H_

#include <algorithm>
#include <array>
#include <cstdint>

#include "tensor/dtype.h"

namespace headwise {

constexpr int kSmallBlock = 32;   // elements of q8_0, q4_0, ...
constexpr int kSuperBlock = 256;  // elements of q4_k, q5_k, q6_k

// Bytes are put together by hand: blocks lie at any address, and the files are little-endian.
inline float LoadHalf(const uint8_t* bytes) {
  return F16ToF32(static_cast<uint16_t>(bytes[0] | (bytes[1] << 8)));
}
inline void StoreHalf(float value, uint8_t* bytes) {
  const uint16_t bits = F32ToF16(value);
  bytes[0] = static_cast<uint8_t>(bits);
  bytes[1] = static_cast<uint8_t>(bits >> 8);
}

// An infinite scale would turn the zeros of its block into NaN.
constexpr float kLargestHalf = 65504.0f;
inline float LimitToHalf(float value) {
  return std::clamp(value, -kLargestHalf, kLargestHalf);
}

// The scales and minima of the eight sub-blocks of q4_k and q5_k, 6 bits each. Of the 12 bytes, 0-3 hold the first four
// scales, 4-7 the first four minima, and 8-11 the low four bits of the other scales (low nibble) and minima (high
// nibble); their upper two bits are the top bits of bytes 0-3 and 4-7.
struct AffineCodes {
  std::array<uint8_t, 8> scales{};
  std::array<uint8_t, 8> minima{};
};
constexpr int kAffineCodesBytes = 12;

inline AffineCodes UnpackAffineCodes(const uint8_t* packed) {
  AffineCodes codes;
  for (size_t i = 0; i < 4; ++i) {
    codes.scales[i] = packed[i] & 63;
    codes.minima[i] = packed[4 + i] & 63;
    codes.scales[4 + i] = static_cast<uint8_t>((packed[8 + i] & 15) | ((packed[i] >> 6) << 4));
    codes.minima[4 + i] = static_cast<uint8_t>((packed[8 + i] >> 4) | ((packed[4 + i] >> 6) << 4));
  }
  return codes;
}

inline void PackAffineCodes(const AffineCodes& codes, uint8_t* packed) {
  for (size_t i = 0; i < 4; ++i) {
    packed[i] = static_cast<uint8_t>(codes.scales[i] | ((codes.scales[4 + i] >> 4) << 6));
    packed[4 + i] = static_cast<uint8_t>(codes.minima[i] | ((codes.minima[4 + i] >> 4) << 6));
    packed[8 + i] = static_cast<uint8_t>((codes.scales[4 + i] & 15) | ((codes.minima[4 + i] & 15) << 4));
  }
}

}  // namespace headwise

#endif  // HEADWISE_TENSOR_BLOCK_CODES_H_
