// A block of a block format taken apart: its codes in the order of the elements they stand for, and the numbers that
// scale them. What reads blocks reads them through this, so that each layout is written down once.
#ifndef HEADWISE_TENSOR_BLOCK_READER_H_
#define HEADWISE_TENSOR_BLOCK_READER_H_

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace headwise {

// Steps grow with distance from zero, as values of a bell-shaped distribution thin out. Fixed by the format.
inline constexpr int8_t kIQ4Levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// Element i stands for
//   q8_0, q4_0, q5_0    d * (code - offset)                          offset 128, 8, 16
//   q4_1, q5_1          d * code + min
//   iq4_nl              d * kIQ4Levels[code]
//   q4_k, q5_k          (d * scales[i / 32]) * code - (min * mins[i / 32])
//   q6_k                (d * scales[i / 16]) * (code - 32)           scales are signed here
// with every operation in f32.
struct BlockCodes {
  uint16_t d = 0;    // f16
  uint16_t min = 0;  // f16
  uint8_t scales[16] = {};
  uint8_t mins[8] = {};
  uint8_t codes[256] = {};  // BlockElements(dtype) of them
};

// Requires: a block format; BlockBytes(dtype) bytes.
void ReadBlock(DType dtype, const std::byte* block, BlockCodes& codes);

}  // namespace headwise

#endif  // HEADWISE_TENSOR_BLOCK_READER_H_
