// The few instructions that Highway 1.0.3 lacks: dot products of bf16 and of bytes, conversions to bf16 (AVX-512 BF16
// and VNNI), powers of 2. Elsewhere the same functions are made of what there is: slower, and equal up to the order of
// two additions, powers of 2 up to their stated error.
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

using D8 = hn::Repartition<uint8_t, DF>;
using VB = hn::Vec<D8>;
using DI = hn::RebindToSigned<DF>;
using VI = hn::Vec<DI>;

// sum[i] += code[4i] x[4i] + ... + code[4i+3] x[4i+3] for codes of at most kBits unsigned bits and x signed bytes, not
// -128. Where codes of 8 bits would overflow 16-bit sums, they are read as code - 128 instead: kCentersCodes.
#if defined(__AVX512VNNI__)

constexpr bool kCentersCodes = false;
constexpr bool kHasInt8Dot = true;

template <int kBits>
HWY_INLINE VI CodeDot(VI sum, VB codes, VI x) {
  return VI{_mm512_dpbusd_epi32(sum.raw, codes.raw, x.raw)};
}

#elif defined(__AVX2__) || defined(__SSSE3__)

constexpr bool kCentersCodes = true;
constexpr bool kHasInt8Dot = true;

template <int kBits>
HWY_INLINE VI CodeDot(VI sum, VB codes, VI x) {
#if defined(__AVX2__)
  using V = __m256i;
  const auto abs = [](V a) { return _mm256_abs_epi8(a); };
  const auto sign = [](V a, V b) { return _mm256_sign_epi8(a, b); };
  const auto pairs = [](V a, V b) { return _mm256_maddubs_epi16(a, b); };
  const auto quads = [](V a) { return _mm256_madd_epi16(a, _mm256_set1_epi16(1)); };
#else
  using V = __m128i;
  const auto abs = [](V a) { return _mm_abs_epi8(a); };
  const auto sign = [](V a, V b) { return _mm_sign_epi8(a, b); };
  const auto pairs = [](V a, V b) { return _mm_maddubs_epi16(a, b); };
  const auto quads = [](V a) { return _mm_madd_epi16(a, _mm_set1_epi16(1)); };
#endif
  V magnitudes = codes.raw;
  V signed_x = x.raw;
  if constexpr (kBits == 8) {
    // |code - 128| |x| + the same is at most 128 * 127 * 2, which 16 bits hold.
    const V centered = hn::Xor(codes, hn::Set(D8(), uint8_t{0x80})).raw;
    magnitudes = abs(centered);
    signed_x = sign(signed_x, centered);
  }
  return hn::Add(sum, VI{quads(pairs(magnitudes, signed_x))});
}

#else

constexpr bool kCentersCodes = false;
constexpr bool kHasInt8Dot = false;

template <int kBits>
HWY_INLINE VI CodeDot(VI sum, VB codes, VI x) {
  const DI di;
  const VI code = hn::BitCast(di, codes);
  const VI mask = hn::Set(di, 0xFF);
  sum = hn::Add(sum, hn::Mul(hn::And(code, mask), hn::ShiftRight<24>(hn::ShiftLeft<24>(x))));
  sum = hn::Add(sum, hn::Mul(hn::And(hn::ShiftRight<8>(code), mask), hn::ShiftRight<24>(hn::ShiftLeft<16>(x))));
  sum = hn::Add(sum, hn::Mul(hn::And(hn::ShiftRight<16>(code), mask), hn::ShiftRight<24>(hn::ShiftLeft<8>(x))));
  return hn::Add(sum, hn::Mul(hn::And(hn::ShiftRight<24>(code), mask), hn::ShiftRight<24>(x)));
}

#endif

// 2^x for x <= 126, relative error below 8e-5: for what is then rounded to bf16 (2e-3) or to bytes. Below -125 it is
// that or less; NaN stays NaN.
#if defined(__AVX512DQ__)
HWY_INLINE VF CoarseExp2(VF x) {
  // The best polynomial of degree 3 over what lies above the integer below x.
  const VF f = VF{_mm512_reduce_ps(x.raw, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};
  VF p = hn::Set(kDF, 7.8024523e-2f);
  p = hn::MulAdd(p, f, hn::Set(kDF, 2.2606715e-1f));
  p = hn::MulAdd(p, f, hn::Set(kDF, 6.9583355e-1f));
  p = hn::MulAdd(p, f, hn::Set(kDF, 9.9992521e-1f));
  return VF{_mm512_scalef_ps(p.raw, x.raw)};  // rounds x down by itself
}
#else
HWY_INLINE VF CoarseExp2(VF x) {
  // The best polynomial of degree 3 over what lies around the nearest integer. Below -125 there would be subnormals,
  // which are slow. Of two operands that Max cannot compare it gives the second.
  return Exp2By(hn::Max(hn::Set(kDF, -125.0f), x), [](VF f) HW_INLINE_LAMBDA {
    VF p = hn::Set(kDF, 5.5171669e-2f);
    p = hn::MulAdd(p, f, hn::Set(kDF, 2.4261112e-1f));
    p = hn::MulAdd(p, f, hn::Set(kDF, 6.9326099e-1f));
    return hn::MulAdd(p, f, hn::Set(kDF, 9.9992807e-1f));
  });
}
#endif

// x[64], within -127 .. 127, to nearest as bytes; returns sums of them, spread over lanes. Where x is no number, any.
constexpr int64_t kByteVecs = 64 / kLanes;
#if defined(__AVX512VNNI__)
HWY_INLINE VI RoundToBytes(const VF* x, int8_t* bytes) {
  __m512i words[2];
  for (int i = 0; i < 2; ++i) {
    words[i] = _mm512_packs_epi32(_mm512_cvtps_epi32(x[2 * i].raw), _mm512_cvtps_epi32(x[2 * i + 1].raw));
  }
  // Packing keeps to blocks of 128 bits, each of which now has four elements of every vector.
  const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
  const __m512i packed = _mm512_permutexvar_epi32(order, _mm512_packs_epi16(words[0], words[1]));
  _mm512_storeu_si512(bytes, packed);
  return VI{_mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), packed)};
}
#else
HWY_INLINE VI RoundToBytes(const VF* x, int8_t* bytes) {
  const hn::Rebind<int8_t, DF> d8;
  VI sum = hn::Zero(DI());
  HW_UNROLL
  for (int64_t i = 0; i < kByteVecs; ++i) {
    const VI code = hn::NearestInt(x[i]);
    sum = hn::Add(sum, code);
    hn::StoreU(hn::DemoteTo(d8, code), d8, bytes + i * kLanes);
  }
  return sum;
}
#endif

// Of the lanes of each x: the largest, or the sum.
template <int64_t kNum>
HWY_INLINE void MaxOfEach(const VF (&x)[kNum], float (&max)[kNum]) {
  HW_UNROLL
  for (int64_t i = 0; i < kNum; ++i) max[i] = hn::GetLane(hn::MaxOfLanes(kDF, x[i]));
}
template <int64_t kNum>
HWY_INLINE void SumOfEach(const VF (&x)[kNum], float (&sum)[kNum]) {
  HW_UNROLL
  for (int64_t i = 0; i < kNum; ++i) sum[i] = hn::GetLane(hn::SumOfLanes(kDF, x[i]));
}
#if defined(__AVX512F__)
// Four at a time: one after the other they would take more than twice the instructions, each waiting for the one
// before.
template <typename Op>
HWY_INLINE void ReduceFour(const VF (&x)[4], float (&out)[4], const Op& op) {
  // Quarters of two vectors side by side, then of four: x[i] in quarter i.
  const auto halve = [&](VF a, VF b) HW_INLINE_LAMBDA {
    return op(_mm512_shuffle_f32x4(a.raw, b.raw, 0x44), _mm512_shuffle_f32x4(a.raw, b.raw, 0xEE));
  };
  const __m512 low = halve(x[0], x[1]);
  const __m512 high = halve(x[2], x[3]);
  __m512 all = op(_mm512_shuffle_f32x4(low, high, 0x88), _mm512_shuffle_f32x4(low, high, 0xDD));
  all = op(all, _mm512_permute_ps(all, 0x4E));
  all = op(all, _mm512_permute_ps(all, 0xB1));
  const __m512i quarters = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 8, 4, 0);
  _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_permutexvar_ps(quarters, all)));
}
template <>
HWY_INLINE void MaxOfEach<4>(const VF (&x)[4], float (&max)[4]) {
  ReduceFour(x, max, [](__m512 a, __m512 b) HW_INLINE_LAMBDA { return _mm512_max_ps(a, b); });
}
template <>
HWY_INLINE void SumOfEach<4>(const VF (&x)[4], float (&sum)[4]) {
  ReduceFour(x, sum, [](__m512 a, __m512 b) HW_INLINE_LAMBDA { return _mm512_add_ps(a, b); });
}
#endif

// f16 as they lie in memory. Highway's emulation takes infinity and NaN for numbers, which hide among others.
#if defined(__F16C__)
HWY_INLINE VF HalvesAsF32(const uint8_t* halves) {
  const hn::Rebind<hwy::float16_t, DF> d16;
  return hn::PromoteTo(kDF, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(halves)));
}
HWY_INLINE float FromF16(uint16_t bits) {
  return _cvtsh_ss(bits);
}
#else
// The bits in place, a power of 2 away from the number, be it subnormal or not.
HWY_INLINE VF HalvesAsF32(const uint8_t* halves) {
  const DU du;
  const hn::Rebind<uint16_t, DF> d16;
  const VU bits = hn::PromoteTo(du, hn::LoadU(d16, reinterpret_cast<const uint16_t*>(halves)));
  const VU magnitude = hn::And(bits, hn::Set(du, 0x7FFFu));
  const VF number = hn::Mul(hn::BitCast(kDF, hn::ShiftLeft<13>(magnitude)), hn::Set(kDF, 0x1p112f));
  const auto is_number = hn::Lt(magnitude, hn::Set(du, 0x7C00u));
  const VU exponent = hn::IfThenZeroElse(is_number, hn::Set(du, 0x7F800000u));
  const VU sign = hn::ShiftLeft<16>(hn::Xor(bits, magnitude));
  return hn::BitCast(kDF, hn::Or(hn::Or(hn::BitCast(du, number), exponent), sign));
}
HWY_INLINE float FromF16(uint16_t bits) {
  const uint32_t magnitude = bits & 0x7FFFu;
  const float number = __builtin_bit_cast(float, magnitude << 13) * 0x1p112f;
  const uint32_t exponent = magnitude < 0x7C00u ? 0 : 0x7F800000u;
  return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, number) | exponent | ((bits & 0x8000u) << 16));
}
#endif

// Element kElement (0 .. 3) of every lane of signed bytes, as f32.
template <int kElement>
HWY_INLINE VF ByteAsF32(VB values) {
  const VI wide = hn::BitCast(DI(), values);
  if constexpr (kElement == 3)
    return hn::ConvertTo(kDF, hn::ShiftRight<24>(wide));
  else
    return hn::ConvertTo(kDF, hn::ShiftRight<24>(hn::ShiftLeft<24 - 8 * kElement>(wide)));
}

// Elements [4 quad, 4 quad + 4) of a row of bytes in every lane.
HWY_INLINE VI QuadInLanes(const int8_t* row, int64_t quad) {
  int32_t bytes;
  __builtin_memcpy(&bytes, row + 4 * quad, sizeof(bytes));
  return hn::Set(DI(), bytes);
}

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
