// What a logit weighs when a token is drawn, in whole numbers: sums of them do not depend on their order, so that a
// host and a device draw the same id from the same logits. No std:: code: a device may use it.
#ifndef HEADWISE_TENSOR_DRAW_WEIGHT_H_
#define HEADWISE_TENSOR_DRAW_WEIGHT_H_

#include <cstdint>

namespace headwise {

// Of the highest logit. Weights of a vocabulary of up to kMaxDrawIds ids add up in 64 bits.
inline constexpr int kDrawWeightBits = 43;
inline constexpr int64_t kMaxDrawIds = int64_t{1} << 20;

// Distances are below the highest logit, in halvings of the probability, in steps of 2^-26. From kNotDrawn on a logit
// weighs nothing.
inline constexpr int kDrawDistanceBits = 26;
inline constexpr uint32_t kNotDrawn = uint32_t{kDrawWeightBits} << kDrawDistanceBits;

// log2(e) / temperature. Requires: temperature > 0.
constexpr float DrawScale(float temperature) {
  return static_cast<float>(1.4426950408889634 / temperature);
}

// Of NaN and -infinity kNotDrawn. Requires: `highest` is finite.
constexpr uint32_t DrawDistance(float logit, float highest, float scale) {
  const float below = highest - logit;
  if (below <= 0) return 0;  // with an infinite scale too
  const float halvings = below * scale;
  if (!(halvings < static_cast<float>(kDrawWeightBits))) return kNotDrawn;
  return static_cast<uint32_t>(halvings * static_cast<float>(1u << kDrawDistanceBits));
}

// Products and sums that are rounded each by itself: nothing may contract them, so that all machines agree. Host files
// that include this are compiled with -ffp-contract=off.
constexpr float DrawTimes(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
constexpr float DrawPlus(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}

// 2^kDrawWeightBits * 2^-distance: within 3e-7 of it, relatively, and then rounded down. At least 1 but from kNotDrawn
// on.
constexpr uint64_t DrawWeight(uint32_t distance) {
  if (distance >= kNotDrawn) return 0;
  // What is behind whole halvings, as the first 23 bits behind a one.
  constexpr uint32_t kOne = 0x3f800000;
  const uint32_t part_bits = distance << (32 - kDrawDistanceBits) >> 9;
  const float part = DrawPlus(__builtin_bit_cast(float, kOne | part_bits), -1.0f);
  // 2^-part by a polynomial, exact at 0, fitted in between.
  float power = 1.1498085950734094e-4f;
  power = DrawPlus(DrawTimes(power, part), -1.2917894637212157e-3f);
  power = DrawPlus(DrawTimes(power, part), 9.597169235348701e-3f);
  power = DrawPlus(DrawTimes(power, part), -5.5499278008937836e-2f);
  power = DrawPlus(DrawTimes(power, part), 2.4022610485553741e-1f);
  power = DrawPlus(DrawTimes(power, part), -6.931471824645996e-1f);
  power = DrawPlus(DrawTimes(power, part), 1.0f);
  // From 1/2 to 1: whole numbers of 2^-24.
  const auto bits = __builtin_bit_cast(uint32_t, power);
  const uint64_t units = uint64_t{(bits & 0x7fffff) | 0x800000} << ((bits >> 23) - 126);
  return units << (kDrawWeightBits - 24) >> (distance >> kDrawDistanceBits);
}

// floor(a * b / 2^64)
constexpr uint64_t DrawShare(uint64_t a, uint64_t b) {
  const uint64_t a_low = a & 0xffffffff, a_high = a >> 32;
  const uint64_t b_low = b & 0xffffffff, b_high = b >> 32;
  const uint64_t middle = a_high * b_low + ((a_low * b_low) >> 32);
  return a_high * b_high + (middle >> 32) + ((a_low * b_high + (middle & 0xffffffff)) >> 32);
}

}  // namespace headwise

#endif  // HEADWISE_TENSOR_DRAW_WEIGHT_H_
