// The few instructions that Highway 1.0.3 lacks: bf16 dot products and conversions (AVX-512 BF16). Elsewhere the same
// functions are made of what there is: slower, and equal up to the order of two additions.
#ifndef HEADWISE_BACKEND_CPU_KERNELS_NATIVE_INL_H_
#define HEADWISE_BACKEND_CPU_KERNELS_NATIVE_INL_H_

#include <cstdint>

#include "backend/cpu/kernels/vector-inl.h"

namespace headwise::cpu::HW_ISA {
namespace {

// f32 -> bf16 in the low half of each lane, to nearest, ties to even; NaN may become another NaN or infinity.
HWY_INLINE VU RoundToBF16(VF x) {
  const DU du;
  const VU bits = hn::BitCast(du, x);
  const VU lsb = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  return hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du, 0x7FFFu)), lsb));
}

HWY_INLINE VF LowHalves(VF pairs) {
  const DU du;
  return hn::BitCast(DF(), hn::ShiftLeft<16>(hn::BitCast(du, pairs)));
}
HWY_INLINE VF HighHalves(VF pairs) {
  const DU du;
  return hn::BitCast(DF(), hn::And(hn::BitCast(du, pairs), hn::Set(du, 0xFFFF0000u)));
}

#if defined(__AVX512BF16__)

constexpr bool kHasBF16Dot = true;

// sum[i] + a[2i] b[2i] + a[2i+1] b[2i+1]; a and b hold bf16 pairs in the bits of f32 lanes.
HWY_INLINE VF BF16Dot(VF sum, VF a, VF b) {
  return VF{_mm512_dpbf16_ps(sum.raw, reinterpret_cast<__m512bh>(a.raw), reinterpret_cast<__m512bh>(b.raw))};
}

// Lane i: bf16(even[i]) below bf16(odd[i]).
HWY_INLINE VF PackBF16Pairs(VF even, VF odd) {
  // Converts to 16 evens, then 16 odds; the permutation interleaves them.
  const __m512i halves = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(odd.raw, even.raw));
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21,
                                         5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return VF{_mm512_castsi512_ps(_mm512_permutexvar_epi16(order, halves))};
}

// Neighbours of the sequence lo, hi as pairs: lane 0 holds lo[0], lo[1].
HWY_INLINE VF PackBF16Sequence(VF lo, VF hi) {
  return VF{reinterpret_cast<__m512>(_mm512_cvtne2ps_pbh(hi.raw, lo.raw))};
}

#else

constexpr bool kHasBF16Dot = false;

HWY_INLINE VF BF16Dot(VF sum, VF a, VF b) {
  sum = hn::MulAdd(LowHalves(a), LowHalves(b), sum);
  return hn::MulAdd(HighHalves(a), HighHalves(b), sum);
}

HWY_INLINE VF PackBF16Pairs(VF even, VF odd) {
  return hn::BitCast(DF(), hn::Or(RoundToBF16(even), hn::ShiftLeft<16>(RoundToBF16(odd))));
}

HWY_INLINE VF PackBF16Sequence(VF lo, VF hi) {
  const DF df;
  return PackBF16Pairs(hn::ConcatEven(df, hi, lo), hn::ConcatOdd(df, hi, lo));
}

#endif

// One pair, as the bits of a float.
HWY_INLINE float PackBF16Pair(float low, float high) {
  const auto round = [](float x) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, x);
    return (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  };
  return __builtin_bit_cast(float, round(low) | (round(high) << 16));
}

}  // namespace
}  // namespace headwise::cpu::HW_ISA

#endif  // HEADWISE_BACKEND_CPU_KERNELS_NATIVE_INL_H_
