// Reading rows of weights as vectors of f32 or of bf16 pairs. Included by the matmul kernel sources only, once per
// instruction set.
#ifndef HEADWISE_BACKEND_CPU_KERNELS_MATMUL_LOAD_INL_H_
#define HEADWISE_BACKEND_CPU_KERNELS_MATMUL_LOAD_INL_H_

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "backend/cpu/kernels/matmul_kernels.h"
#include "backend/cpu/kernels/native-inl.h"
#include "backend/cpu/kernels/tiles-inl.h"
#include "backend/cpu/kernels/vector-inl.h"

namespace headwise::cpu::HW_ISA {
namespace {

template <WeightType kType>
struct ElementOf {
  using Type = uint16_t;
};
template <>
struct ElementOf<WeightType::kF32> {
  using Type = float;
};
template <WeightType kType>
using Element = typename ElementOf<kType>::Type;

// kLanes elements as f32.
template <WeightType kType>
HWY_INLINE VF LoadF32(const Element<kType>* from) {
  if constexpr (kType == WeightType::kF32) {
    return hn::LoadU(kDF, from);
  } else if constexpr (kType == WeightType::kF16) {
    const hn::Rebind<hwy::float16_t, DF> d16;
    return hn::PromoteTo(kDF, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(from)));
  } else {
    const hn::Rebind<hwy::bfloat16_t, DF> d16;
    return hn::PromoteTo(kDF, hn::LoadU(d16, reinterpret_cast<const hwy::bfloat16_t*>(from)));
  }
}

struct F32Steps {
  static constexpr int64_t kPerStep = 1;
  static constexpr bool kInTiles = false;
  static HWY_INLINE VF Dot(VF sum, VF a, VF b) { return hn::MulAdd(a, b, sum); }
  template <WeightType kType>
  static HWY_INLINE VF Load(const Element<kType>* from) {
    return LoadF32<kType>(from);
  }
};

// Where there are tile registers, they multiply these.
struct BF16Steps {
  static constexpr int64_t kPerStep = 2;
  static constexpr bool kInTiles = kHasTiles;
  static HWY_INLINE VF Dot(VF sum, VF a, VF b) { return BF16Dot(sum, a, b); }
  template <WeightType kType>
  static HWY_INLINE VF Load(const Element<kType>* from) {
    if constexpr (kType == WeightType::kBF16) {
      const hn::RebindToUnsigned<DF> du;
      return hn::BitCast(kDF, hn::LoadU(du, reinterpret_cast<const uint32_t*>(from)));
    } else {
      return PackBF16Sequence(LoadF32<kType>(from), LoadF32<kType>(from + kLanes));
    }
  }
};

// GCC folds a load into each of its uses, and of 64 bytes the CPU loads no more per cycle than it multiplies. Where
// there are only 16 registers the folding is welcome.
HWY_INLINE void KeepInRegister([[maybe_unused]] VF& x) {
#if HWY_ARCH_X86 && HWY_MAX_BYTES >= 64
  asm("" : "+v"(x.raw));
#endif
}

// The last elements of a row, fewer than a vector takes, in a buffer that is zero behind them: reading past a row's end
// would leave the mapped file at the last one.
template <typename T, int64_t kSize>
struct Tail {
  HWY_INLINE Tail(const T* from, int64_t num) {
    for (int64_t i = 0; i < kSize; ++i) data[i] = i < num ? from[i] : T{0};
  }
  alignas(64) T data[kSize];
};

}  // namespace
}  // namespace headwise::cpu::HW_ISA

#endif  // HEADWISE_BACKEND_CPU_KERNELS_MATMUL_LOAD_INL_H_
