// The vector that all kernels of one instruction set compute with: up to 16 f32 lanes; and 2^x on it. Included by
// kernel sources only, once per instruction set.
#ifndef HEADWISE_BACKEND_CPU_KERNELS_VECTOR_INL_H_
#define HEADWISE_BACKEND_CPU_KERNELS_VECTOR_INL_H_

#include <hwy/highway.h>

#include <cstdint>

// Arrays of vectors live in registers only where the loops over them are unrolled, which -O2 does not do by itself.
#if defined(__clang__)
#define HW_UNROLL _Pragma("clang loop unroll(full)")
#else
#define HW_UNROLL _Pragma("GCC unroll 16")
#endif
#define HW_INLINE_LAMBDA __attribute__((always_inline))

namespace headwise::cpu::HW_ISA {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, 16>;
using VF = hn::Vec<DF>;
using DU = hn::RebindToUnsigned<DF>;
using VU = hn::Vec<DU>;
constexpr DF kDF;
constexpr int64_t kLanes =
    static_cast<int64_t>(HWY_MAX_BYTES / sizeof(float) < 16 ? HWY_MAX_BYTES / sizeof(float) : 16);

// Which cache to ask for a line into depends on who else asks. The hardware follows memory that is read in one run of
// hundreds of KiB, and then asks earlier than any instruction; it needs to see the run go on, which requests into the
// first-level cache, a little ahead of what is read, show it. Where reading jumps every few KiB, as from page to page,
// the hardware comes too late and each line must be asked for: into the second level, because the first has places for
// so few lines under way that they, not the memory, set the speed. On Zen 4 the wrong one of the two costs a third for
// weights, and more than half for pages. The address may be anything.
HWY_INLINE void PrefetchOfRun(const void* line) {
  __builtin_prefetch(line, /*rw=*/0, /*locality=*/3);
}
HWY_INLINE void PrefetchToL2(const void* line) {
  __builtin_prefetch(line, /*rw=*/0, /*locality=*/2);
}

// x * 2^n for whole numbers n from -126 to 127. NaN stays NaN.
HWY_INLINE VF TimesPowerOf2(VF x, VF n) {
#if defined(__AVX512F__)
  return VF{_mm512_scalef_ps(x.raw, n.raw)};
#else
  const hn::RebindToSigned<DF> di;
  const auto exponent = hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127));
  return hn::Mul(x, hn::BitCast(kDF, hn::ShiftLeft<23>(exponent)));
#endif
}

// 2^x for |x| <= 126, where polynomial(f) is 2^f for |f| <= 0.5.
template <typename Polynomial>
HWY_INLINE VF Exp2By(VF x, Polynomial polynomial) {
  const VF n = hn::Round(x);
  return TimesPowerOf2(polynomial(hn::Sub(x, n)), n);
}

// 2^x for |x| <= 126, relative error below 2e-7: a degree-6 Taylor polynomial (its next term is (0.5 ln 2)^7 / 7! =
// 1.2e-7).
HWY_INLINE VF Exp2InRange(VF x) {
  return Exp2By(x, [](VF f) HW_INLINE_LAMBDA {
    VF p = hn::Set(kDF, 1.5403530e-4f);
    p = hn::MulAdd(p, f, hn::Set(kDF, 1.3333558e-3f));
    p = hn::MulAdd(p, f, hn::Set(kDF, 9.6181291e-3f));
    p = hn::MulAdd(p, f, hn::Set(kDF, 5.5504109e-2f));
    p = hn::MulAdd(p, f, hn::Set(kDF, 2.4022651e-1f));
    p = hn::MulAdd(p, f, hn::Set(kDF, 6.9314718e-1f));
    return hn::MulAdd(p, f, hn::Set(kDF, 1.0f));
  });
}

// 1 - 2 / (e^2x + 1): to 2e-7 of 1, wherever x is. NaN stays NaN.
HWY_INLINE VF Tanh(VF x) {
  constexpr float kTwoLog2E = 2.88539008f;
  constexpr float kNearlyOne = 30.0f;  // beyond it tanh is 1 in f32
  const VF exponent = hn::Mul(x, hn::Set(kDF, kTwoLog2E));
  const VF clamped = hn::Min(hn::Max(exponent, hn::Set(kDF, -kNearlyOne)), hn::Set(kDF, kNearlyOne));
  const VF one = hn::Set(kDF, 1.0f);
  const VF tanh = hn::Sub(one, hn::Div(hn::Set(kDF, 2.0f), hn::Add(Exp2InRange(clamped), one)));
  return hn::IfThenElse(hn::Eq(x, x), tanh, x);
}

}  // namespace
}  // namespace headwise::cpu::HW_ISA

#endif  // HEADWISE_BACKEND_CPU_KERNELS_VECTOR_INL_H_
