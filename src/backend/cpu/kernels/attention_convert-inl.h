// Keys and values of a group of slots, in whatever format they are cached, into the order and format of the products of
// prefill. Included by attention_prefill.cc only, once per instruction set.
#ifndef HEADWISE_BACKEND_CPU_KERNELS_ATTENTION_CONVERT_INL_H_
#define HEADWISE_BACKEND_CPU_KERNELS_ATTENTION_CONVERT_INL_H_

#include "backend/cpu/kernels/attention_kernels.h"
#include "backend/cpu/kernels/kv_page-inl.h"
#include "backend/cpu/kernels/native-inl.h"

namespace headwise::cpu::HW_ISA {
namespace {

// Stores two vectors of neighbours along the summed dimension, even and odd, as steps: one row of pairs, or two rows.
template <typename Steps>
HWY_INLINE void StoreSteps(VF even, VF odd, float* row, int64_t stride) {
  if constexpr (Steps::kPerStep == 2) {
    hn::Store(PackBF16Pairs(even, odd), kDF, row);
  } else {
    hn::Store(even, kDF, row);
    hn::Store(odd, kDF, row + stride);
  }
}

// One group's keys into columns of the key tile, its values into rows of the value tile. Slots outside [begin, end) are
// never read by a row, but may hold anything: their values become zero, for 0 * NaN is NaN.
template <typename Steps, KvType kType>
void ConvertGroup(const Group& group, int64_t begin, int64_t end, int64_t padded_dim, float* k_tile, float* v_tile) {
  constexpr int64_t kStep = 2 / Steps::kPerStep;  // tile rows per pair
  for (int64_t pair = 0; pair < padded_dim / 2; ++pair) {
    for (int64_t s = 0; s < kSub; ++s) {
      VF even, odd;
      LoadRowPair<kType>(group.k, pair, kGroupTokens, s, even, odd);
      StoreSteps<Steps>(even, odd, k_tile + pair * kStep * kPrefillKeys + s * kLanes, kPrefillKeys);
    }
  }
  const VF zero = hn::Zero(kDF);
  for (int64_t pair = 0; pair < kGroupTokens / 2; ++pair) {
    const int64_t pos = group.pos + 2 * pair;
    const bool has_even = pos >= begin && pos < end;
    const bool has_odd = pos + 1 >= begin && pos + 1 < end;
    for (int64_t vec = 0; vec < padded_dim / kLanes; ++vec) {
      VF even, odd;
      LoadRowPair<kType>(group.v, pair, padded_dim, vec, even, odd);
      StoreSteps<Steps>(has_even ? even : zero, has_odd ? odd : zero, v_tile + pair * kStep * padded_dim + vec * kLanes,
                        padded_dim);
    }
  }
}

// The same for q8: scaled here, so that products are those of the other formats.
template <typename Steps>
void ConvertQ8Group(const Group& group, int64_t begin, int64_t end, int64_t padded_dim, float* k_tile, float* v_tile) {
  constexpr int64_t kStep = 2 / Steps::kPerStep;  // tile rows per pair
  const auto store_pairs = [](VB values, const VF(&scale)[4], float* to, int64_t stride) HW_INLINE_LAMBDA {
    StoreSteps<Steps>(hn::Mul(ByteAsF32<0>(values), scale[0]), hn::Mul(ByteAsF32<1>(values), scale[1]), to, stride);
    StoreSteps<Steps>(hn::Mul(ByteAsF32<2>(values), scale[2]), hn::Mul(ByteAsF32<3>(values), scale[3]),
                      to + kStep * stride, stride);
  };
  const VB sign = hn::Set(D8(), uint8_t{0x80});
  for (int64_t s = 0; s < kSub; ++s) {
    const VF scale = HalvesAsF32(Bytes(group.k_scales) + 2 * s * kLanes);
    const uint8_t* from = Bytes(group.k) + 4 * s * kLanes;
    for (int64_t quad = 0; quad < padded_dim / 4; ++quad) {
      store_pairs(hn::Xor(hn::LoadU(D8(), from + quad * 4 * kGroupTokens), sign), {scale, scale, scale, scale},
                  k_tile + quad * 2 * kStep * kPrefillKeys + s * kLanes, kPrefillKeys);
    }
  }
  float scales[kGroupTokens];
  VisibleScales(group.v_scales, group.pos, begin, end, scales);
  for (int64_t quad = 0; quad < kGroupTokens / 4; ++quad) {
    VF scale[4];
    for (int64_t i = 0; i < 4; ++i) scale[i] = hn::Set(kDF, scales[4 * quad + i]);
    const uint8_t* from = Bytes(group.v) + quad * 4 * padded_dim;
    for (int64_t d = 0; d < padded_dim; d += kLanes) {
      store_pairs(hn::Xor(hn::LoadU(D8(), from + 4 * d), sign), scale, v_tile + quad * 2 * kStep * padded_dim + d,
                  padded_dim);
    }
  }
}

// The same for q4.
template <typename Steps>
void ConvertQ4Group(const Group& group, int64_t begin, int64_t end, int64_t page_tokens, int64_t padded_dim,
                    float* k_tile, float* v_tile) {
  constexpr int64_t kStep = 2 / Steps::kPerStep;  // tile rows per pair
  // Four rows of the tile: those of the low codes, or of the high ones.
  const auto store_quad = [](VB codes, const float* scale, const float* low, float* to,
                             int64_t stride) HW_INLINE_LAMBDA {
    const auto element = [&](VF code, int64_t i) HW_INLINE_LAMBDA {
      return hn::MulAdd(code, hn::Set(kDF, scale[i]), hn::Set(kDF, low[i]));
    };
    StoreSteps<Steps>(element(ByteAsF32<0>(codes), 0), element(ByteAsF32<1>(codes), 1), to, stride);
    StoreSteps<Steps>(element(ByteAsF32<2>(codes), 2), element(ByteAsF32<3>(codes), 3), to + kStep * stride, stride);
  };
  alignas(64) float scales[kGroupTokens];
  alignas(64) float lows[kGroupTokens];
  for (int64_t d = 0; d < padded_dim; d += 16) {
    for (int64_t i = 0; i < 16; i += kLanes) {
      hn::Store(HalvesAsF32(Bytes(group.k_scales) + 2 * (d + i)), kDF, scales + i);
      hn::Store(HalvesAsF32(Bytes(group.k_scales) + 2 * (padded_dim + d + i)), kDF, lows + i);
    }
    for (int64_t i = 0; i < 16; i += 8) {
      float* to = k_tile + (d + i) / Steps::kPerStep * kPrefillKeys;
      for (int64_t s = 0; s < kSub; ++s) {
        const VB codes = hn::LoadU(D8(), Bytes(group.k) + (d + i) / 2 * kGroupTokens + 4 * s * kLanes);
        store_quad(LowCodes(codes), scales + i, lows + i, to + s * kLanes, kPrefillKeys);
        store_quad(HighCodes(codes), scales + i + 4, lows + i + 4, to + 2 * kStep * kPrefillKeys + s * kLanes,
                   kPrefillKeys);
      }
    }
  }
  const ValueScaleSteps steps = StepsOf(page_tokens, padded_dim);
  for (int64_t d = 0; d < padded_dim; d += kLanes) {
    if (d % kScaleDims == 0) {
      const std::byte* halves = group.v_scales + d / kScaleDims * steps.run;
      VisibleScales(halves, group.pos, begin, end, scales);
      VisibleScales(halves + steps.low, group.pos, begin, end, lows);
    }
    for (int64_t i = 0; i < kGroupTokens; i += 8) {
      const VB codes = hn::LoadU(D8(), Bytes(group.v) + i / 2 * padded_dim + 4 * d);
      float* to = v_tile + i / Steps::kPerStep * padded_dim + d;
      store_quad(LowCodes(codes), scales + i, lows + i, to, padded_dim);
      store_quad(HighCodes(codes), scales + i + 4, lows + i + 4, to + 2 * kStep * padded_dim, padded_dim);
    }
  }
}

}  // namespace
}  // namespace headwise::cpu::HW_ISA

#endif  // HEADWISE_BACKEND_CPU_KERNELS_ATTENTION_CONVERT_INL_H_
