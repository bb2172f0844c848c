// Reading pages of the cpu backend (layout: attention_kernels.h). Included by kernel sources only, once per instruction
// set.
#ifndef HEADWISE_BACKEND_CPU_KERNELS_KV_PAGE_INL_H_
#define HEADWISE_BACKEND_CPU_KERNELS_KV_PAGE_INL_H_

#include <hwy/highway.h>

#include "backend/cpu/kernels/attention_kernels.h"
#include "backend/cpu/kernels/native-inl.h"
#include "backend/cpu/kernels/vector-inl.h"

namespace headwise::cpu::HW_ISA {
namespace {

// Vectors per group of 16 tokens.
constexpr int64_t kSub = kGroupTokens / kLanes;

// Not for q8.
template <KvType kType>
constexpr int64_t kElementBytes = kType == KvType::kF32 ? 4 : 2;

HWY_INLINE int64_t GroupBytes(const KvPages& pages) {
  return kGroupTokens * pages.padded_dim * (pages.type == KvType::kF32 ? 4 : pages.type == KvType::kQ8 ? 1 : 2);
}

// A group of 16 tokens, at positions [pos, pos + 16), pos a multiple of 16.
struct Group {
  const std::byte* k;
  const std::byte* v;
  int64_t pos;
  const std::byte* k_scales;  // [16] f16, q8 only
  const std::byte* v_scales;
};

HWY_INLINE std::byte* PageOf(const KvPages& pages, int64_t pos) {
  const int64_t page_idx = pos / pages.page_tokens;
  return page_idx < pages.num_sink ? pages.sink[page_idx] : pages.recent[page_idx - pages.recent_first];
}

HWY_INLINE Group GroupAt(const KvPages& pages, int64_t pos) {
  const int64_t group_bytes = GroupBytes(pages);
  const std::byte* page = PageOf(pages, pos);
  const int64_t slot = pos % pages.page_tokens;
  const std::byte* k = page + slot / kGroupTokens * group_bytes;
  const int64_t half_bytes = pages.page_tokens / kGroupTokens * group_bytes;
  if (pages.type != KvType::kQ8) return {k, k + half_bytes, pos, nullptr, nullptr};
  const std::byte* scales = page + 2 * half_bytes + 2 * slot;
  return {k, k + half_bytes, pos, scales, scales + 2 * pages.page_tokens};
}

HWY_INLINE const uint8_t* Bytes(const std::byte* bytes) {
  return reinterpret_cast<const uint8_t*>(bytes);
}

// The scales of a group at `pos` as f32, but 0 for slots outside [begin, end): these may hold anything, also NaN.
HWY_INLINE void VisibleScales(const std::byte* halves, int64_t pos, int64_t begin, int64_t end, float* scales) {
  for (int64_t i = 0; i < kGroupTokens; i += kLanes) hn::StoreU(HalvesAsF32(Bytes(halves) + 2 * i), kDF, scales + i);
  if (pos >= begin && pos + kGroupTokens <= end) return;
  for (int64_t i = 0; i < kGroupTokens; ++i) {
    if (pos + i < begin || pos + i >= end) scales[i] = 0.0f;
  }
}

// Vector number `vec` (of kLanes elements) of row `even` and of the row behind it, which is `row_elements` further; for
// bf16 both come from one row of pairs. Not for q8.
template <KvType kType>
HWY_INLINE void LoadRowPair(const std::byte* rows, int64_t pair_idx, int64_t row_elements, int64_t vec, VF& even,
                            VF& odd) {
  if constexpr (kType == KvType::kF32) {
    const float* row = reinterpret_cast<const float*>(rows) + 2 * pair_idx * row_elements + vec * kLanes;
    even = hn::LoadU(kDF, row);
    odd = hn::LoadU(kDF, row + row_elements);
  } else if constexpr (kType == KvType::kF16) {
    const uint8_t* row = Bytes(rows) + 2 * (2 * pair_idx * row_elements + vec * kLanes);
    even = HalvesAsF32(row);
    odd = HalvesAsF32(row + 2 * row_elements);
  } else {
    const DU du;
    const auto* row = reinterpret_cast<const uint32_t*>(rows) + pair_idx * row_elements + vec * kLanes;
    const auto pairs = hn::LoadU(du, row);
    even = hn::BitCast(kDF, hn::ShiftLeft<16>(pairs));
    odd = hn::BitCast(kDF, hn::And(pairs, hn::Set(du, 0xFFFF0000u)));
  }
}

// 2^x for x <= 0; below -126 it gives about 1e-38, not a subnormal.
HWY_INLINE VF Exp2(VF x) {
  return Exp2InRange(hn::Max(x, hn::Set(kDF, -126.0f)));
}

// Calls `body` with the cache's type as a compile-time constant; for q8, whose rows are no plain numbers, not at all.
#define HW_WITH_FLOAT_KV_TYPE(type, body)     \
  switch (type) {                             \
    case KvType::kF32: {                      \
      constexpr KvType kType = KvType::kF32;  \
      body;                                   \
      break;                                  \
    }                                         \
    case KvType::kF16: {                      \
      constexpr KvType kType = KvType::kF16;  \
      body;                                   \
      break;                                  \
    }                                         \
    case KvType::kBF16: {                     \
      constexpr KvType kType = KvType::kBF16; \
      body;                                   \
      break;                                  \
    }                                         \
    case KvType::kQ8:                         \
      break;                                  \
  }

constexpr float kLog2E = 1.44269504088896340736f;
constexpr float kLn2 = 0.69314718055994530942f;
// Below every score; finite, so that differences of two are never NaN.
constexpr float kLowest = -1e30f;

}  // namespace
}  // namespace headwise::cpu::HW_ISA

#endif  // HEADWISE_BACKEND_CPU_KERNELS_KV_PAGE_INL_H_
