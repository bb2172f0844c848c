// Codes of a run as the left operand of an integer product, out of the words in which they lie (block_order.h): a few
// operations on four codes at a time. For host and device.
#ifndef HEADWISE_BACKEND_CUDA_BLOCK_OPERANDS_H_
#define HEADWISE_BACKEND_CUDA_BLOCK_OPERANDS_H_

#include <cstdint>

#include "backend/cuda/block_order.h"

#ifdef __CUDACC__
#define HW_HOST_DEVICE __host__ __device__
#else
#define HW_HOST_DEVICE
#endif

namespace headwise::cuda {

// Bits of a byte that a code takes: it is multiplied by 2^(8 - b).
constexpr int OperandBits(const BlockOrder& order) {
  return order.has_levels ? 8 : order.bits;
}
// By which sums of products take that back.
constexpr float OperandFactor(const BlockOrder& order) {
  return 1.0f / static_cast<float>(1 << (8 - OperandBits(order)));
}
// Whether bytes are numbers from -128 on, not from 0 on.
constexpr bool HasSignedOperands(const BlockOrder& order) {
  return !order.has_min;
}
constexpr int LowWords(const BlockOrder& order) {  // of a lane, of a run
  return order.bits == 8 ? 4 : 2;
}

// Four bytes out of the eight of a and b, each by one of the lowest four nibbles of `selector`, 0 to 7.
HW_HOST_DEVICE inline uint32_t PermuteBytes(uint32_t a, uint32_t b, uint32_t selector) {
#ifdef __CUDA_ARCH__
  // Not __byte_perm, which takes off the fourth bits first.
  uint32_t chosen;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(chosen) : "r"(a), "r"(b), "r"(selector));
  return chosen;
#else
  const uint64_t bytes = (uint64_t{b} << 32) | a;
  uint32_t chosen = 0;
  for (int i = 0; i < 4; ++i) chosen |= static_cast<uint32_t>((bytes >> ((selector >> 4 * i & 7) * 8)) & 255) << 8 * i;
  return chosen;
#endif
}
// Levels of the four codes in the lowest four nibbles. `upper`: 3210, and 4 more where a code is 8 or more.
template <DType kType>
HW_HOST_DEVICE inline uint32_t LevelsOf(uint32_t codes, uint32_t upper) {
  constexpr auto levels = [](int first) {
    uint32_t bytes = 0;
    for (int i = 0; i < 4; ++i) bytes |= (static_cast<uint32_t>(LevelOf(OrderOf(kType), first + i)) & 255) << 8 * i;
    return bytes;
  };
  constexpr uint32_t kLevels[4] = {levels(0), levels(4), levels(8), levels(12)};
  return PermuteBytes(PermuteBytes(kLevels[0], kLevels[1], codes), PermuteBytes(kLevels[2], kLevels[3], codes), upper);
}

// The four registers of run `run`. `low`: the lane's words of it; `high`: the word with its high bits, of formats that
// have them apart.
template <DType kType>
HW_HOST_DEVICE inline void OperandsOf(const uint32_t (&low)[LowWords(OrderOf(kType))], uint32_t high, int run,
                                      uint32_t (&a)[4]) {
  constexpr BlockOrder kOrder = OrderOf(kType);
  if constexpr (kOrder.bits == 8) {
    for (int i = 0; i < 4; ++i) a[i] = low[i];
  } else if constexpr (kOrder.has_levels) {
    for (int row = 0; row < 2; ++row) {
      const uint32_t codes = low[row] & 0x77777777u;
      const uint32_t upper = ((low[row] >> 1) & 0x44444444u) | 0x32103210u;
      a[row] = LevelsOf<kType>(codes, upper);
      a[row + 2] = LevelsOf<kType>(codes >> 16, upper >> 16);
    }
  } else {
    constexpr int kShift = 8 - kOrder.bits;  // of a low nibble; a high one is 4 less
    constexpr uint32_t kMask = 0x0F0F0F0Fu << kShift;
    for (int row = 0; row < 2; ++row) {
      a[row] = (low[row] << kShift) & kMask;
      a[row + 2] = (low[row] >> (4 - kShift)) & kMask;
    }
    for (int i = 0; i < 4; ++i) {
      if constexpr (kOrder.bits == 5) a[i] |= (high << (7 - (run % 2 * 4 + i))) & 0x80808080u;
      if constexpr (kOrder.bits == 6) a[i] |= (high << (6 - 2 * i)) & 0xC0C0C0C0u;
    }
  }
}

}  // namespace headwise::cuda

#endif  // HEADWISE_BACKEND_CUDA_BLOCK_OPERANDS_H_
