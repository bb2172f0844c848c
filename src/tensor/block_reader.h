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

// Twice what the 4-bit floats of mxfp4 stand for (a sign, 2 bits of exponent, 1 of fraction), so that they are whole.
inline constexpr int8_t kMXFP4Levels[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// What the codes of nf4 stand for: quantiles of a normal distribution, the outermost at 1 [qlora §3, appendix E]; as
// bitsandbytes has them.
inline constexpr float kNF4Levels[16] = {-1.0f,
                                         -0.6961928009986877f,
                                         -0.5250730514526367f,
                                         -0.39491748809814453f,
                                         -0.28444138169288635f,
                                         -0.18477343022823334f,
                                         -0.09105003625154495f,
                                         0.0f,
                                         0.07958029955625534f,
                                         0.16093020141124725f,
                                         0.24611230194568634f,
                                         0.33791524171829224f,
                                         0.44070982933044434f,
                                         0.5626170039176941f,
                                         0.7229568362236023f,
                                         1.0f};

// Element i stands for
//   q8_0, q4_0, q5_0    d * (code - offset)                          offset 128, 8, 16
//   q4_1, q5_1          d * code + min
//   iq4_nl              d * kIQ4Levels[code]
//   q4_k, q5_k          (d * scales[i / 32]) * code - (min * mins[i / 32])
//   q6_k, q3_k          (d * scales[i / 16]) * (code - offset)       offset 32, 4; scales are signed here
//   q2_k                (d * scales[i / 16]) * code - (min * mins[i / 16])
//   iq4_xs              (d * scales[i / 32]) * kIQ4Levels[code]      scales are signed here
//   tq1_0, tq2_0        d * (code - 1)
//   mxfp4               exponent / 2 * kMXFP4Levels[code]            exponent as E8M0ToF32 has it
//   u4                  d * (code - zero)
//   f8_e4m3             scale * E4M3ToF32(code)
//   nf4                 scale * kNF4Levels[code]
// with every operation in f32.
struct BlockCodes {
  uint16_t d = 0;    // f16
  uint16_t min = 0;  // f16
  uint8_t exponent = 0;
  uint8_t zero = 0;  // 0 to 16
  float scale = 0;
  uint8_t scales[16] = {};
  uint8_t mins[16] = {};
  uint8_t codes[256] = {};  // BlockElements(dtype) of them
};

// Requires: a block format; BlockBytes(dtype) bytes.
void ReadBlock(DType dtype, const std::byte* block, BlockCodes& codes);

}  // namespace headwise

#endif  // HEADWISE_TENSOR_BLOCK_READER_H_
