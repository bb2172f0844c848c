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

// Not for q8 and q4.
template <KvType kType>
constexpr int64_t kElementBytes = kType == KvType::kF32 ? 4 : 2;

HWY_INLINE int64_t GroupBytes(KvType type, int64_t padded_dim) {
  const int64_t elements = kGroupTokens * padded_dim;
  switch (type) {
    case KvType::kF32:
      return 4 * elements;
    case KvType::kF16:
    case KvType::kBF16:
      return 2 * elements;
    case KvType::kQ8:
      return elements;
    case KvType::kQ4:
      return elements / 2;
  }
  return 0;
}

// A group of 16 tokens, at positions [pos, pos + 16), pos a multiple of 16.
struct Group {
  KvType type;
  const std::byte* k;
  const std::byte* v;
  int64_t pos;
  // f16. q8: of the group's tokens, [16] each. q4: of keys the page's scales and lows [2][Dp]; of values the first of
  // scales and lows [2][Dp/32][P], the group's 16 of each P.
  const std::byte* k_scales;
  const std::byte* v_scales;
};

HWY_INLINE Group GroupOf(const std::byte* page, KvType type, int64_t page_tokens, int64_t padded_dim, int64_t pos) {
  const int64_t group_bytes = GroupBytes(type, padded_dim);
  const int64_t slot = pos % page_tokens;
  const std::byte* k = page + slot / kGroupTokens * group_bytes;
  const int64_t half_bytes = page_tokens / kGroupTokens * group_bytes;
  const std::byte* scales = page + 2 * half_bytes;
  if (type == KvType::kQ4) return {type, k, k + half_bytes, pos, scales, scales + 4 * padded_dim + 2 * slot};
  if (type != KvType::kQ8) return {type, k, k + half_bytes, pos, nullptr, nullptr};
  return {type, k, k + half_bytes, pos, scales + 2 * slot, scales + 2 * (page_tokens + slot)};
}

// What lies behind `group` in its page.
HWY_INLINE void StepGroup(int64_t group_bytes, Group& group) {
  group.k += group_bytes;
  group.v += group_bytes;
  group.pos += kGroupTokens;
  if (group.type == KvType::kQ8) group.k_scales += 2 * kGroupTokens;
  if (group.v_scales != nullptr) group.v_scales += 2 * kGroupTokens;
}

HWY_INLINE bool IsAged(const KvPages& pages, int64_t page_idx) {
  return page_idx >= pages.aged_begin && page_idx < pages.aged_end;
}

HWY_INLINE KvType TypeAt(const KvPages& pages, int64_t pos) {
  return IsAged(pages, pos / pages.page_tokens) ? KvType::kQ4 : pages.type;
}

HWY_INLINE Group GroupAt(const KvPages& pages, int64_t pos) {
  const int64_t page_idx = pos / pages.page_tokens;
  int64_t entry = page_idx;
  if (page_idx >= pages.num_sink) {
    const int64_t behind = page_idx - pages.ring_first;
    entry = pages.num_sink + (behind < pages.ring_pages ? behind : behind % pages.ring_pages);
  }
  const uint32_t page = pages.table[entry];
  const bool is_aged = IsAged(pages, page_idx);
  const KvSpace& space = is_aged ? pages.aged : pages.newest;
  const uint32_t in_extent = page & ((uint32_t{1} << space.extent_shift) - 1);
  const std::byte* bytes =
      space.extents[page >> space.extent_shift] + static_cast<int64_t>(in_extent) * space.page_bytes;
  return GroupOf(bytes, is_aged ? KvType::kQ4 : pages.type, pages.page_tokens, pages.padded_dim, pos);
}

// Of the page of the token at `pos`, whose blocks have bounds: those of its block. As HeadWork::Bounds in
// backend/kv_step.h.
HWY_INLINE uint16_t* BoundsOf(const KvPages& pages, int64_t block_tokens, int64_t pos) {
  const uint32_t page = pages.table[pos / pages.page_tokens];
  const uint32_t in_extent = page & ((uint32_t{1} << pages.newest.extent_shift) - 1);
  std::byte* end = pages.newest.extents[page >> pages.newest.extent_shift] +
                   static_cast<int64_t>(in_extent + 1) * pages.newest.page_bytes;
  auto* first = reinterpret_cast<uint16_t*>(end) - pages.page_tokens / kGroupTokens * 2 * pages.padded_dim;
  return first + pos % pages.page_tokens / block_tokens * 2 * pages.padded_dim;
}

// Runs of 32 dimensions, the last of which may be shorter.
HWY_INLINE int64_t NumScaleRuns(int64_t padded_dim) {
  return (padded_dim + kScaleDims - 1) / kScaleDims;
}

// Bytes from the scale of a value of q4 to that of its next 32 dimensions, and to its low.
struct ValueScaleSteps {
  int64_t run;
  int64_t low;
};
HWY_INLINE ValueScaleSteps StepsOf(int64_t page_tokens, int64_t padded_dim) {
  return {2 * page_tokens, 2 * page_tokens * NumScaleRuns(padded_dim)};
}

#if defined(__F16C__)
HWY_INLINE uint16_t ToF16(float x) {
  return static_cast<uint16_t>(_mm_extract_epi16(_mm_cvtps_ph(_mm_set_ss(x), _MM_FROUND_TO_NEAREST_INT), 0));
}
#else
// To nearest, ties to even, as the instruction does and as F32ToF16 (tensor/dtype.h), whose code cannot be called from
// here. Highway's own emulation cuts instead.
HWY_INLINE uint16_t ToF16(float x) {
  uint32_t bits = __builtin_bit_cast(uint32_t, x);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  bits &= 0x7FFFFFFFu;
  if (bits > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u);
  if (bits >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);
  if (bits < 0x38800000u) {
    const float aligned = __builtin_bit_cast(float, bits) + 0.5f;
    return static_cast<uint16_t>(sign | (__builtin_bit_cast(uint32_t, aligned) - 0x3F000000u));
  }
  const uint32_t rounded = bits + 0xFFFu + ((bits >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}
#endif

HWY_INLINE const uint8_t* Bytes(const std::byte* bytes) {
  return reinterpret_cast<const uint8_t*>(bytes);
}

// Number `idx` of f16 as they lie in memory.
HWY_INLINE float LoadHalf(const std::byte* halves, int64_t idx) {
  uint16_t half;
  __builtin_memcpy(&half, halves + 2 * idx, sizeof(half));
  return FromF16(half);
}

// The two codes in every byte of q4.
HWY_INLINE VB LowCodes(VB codes) {
  return hn::And(codes, hn::Set(D8(), uint8_t{0x0F}));
}
HWY_INLINE VB HighCodes(VB codes) {
  const DU du;
  return LowCodes(hn::BitCast(D8(), hn::ShiftRight<4>(hn::BitCast(du, codes))));
}

// The scales of a group as f32.
HWY_INLINE void LoadScales(const std::byte* halves, float* scales) {
  for (int64_t i = 0; i < kGroupTokens; i += kLanes) hn::StoreU(HalvesAsF32(Bytes(halves) + 2 * i), kDF, scales + i);
}

// The same of a group at `pos`, but 0 for slots outside [begin, end): these may hold anything, also NaN.
HWY_INLINE void VisibleScales(const std::byte* halves, int64_t pos, int64_t begin, int64_t end, float* scales) {
  LoadScales(halves, scales);
  if (pos >= begin && pos + kGroupTokens <= end) return;
  for (int64_t i = 0; i < kGroupTokens; ++i) {
    if (pos + i < begin || pos + i >= end) scales[i] = 0.0f;
  }
}

// Vector number `vec` (of kLanes elements) of row `even` and of the row behind it, which is `row_elements` further; for
// bf16 both come from one row of pairs. Not for q8 and q4.
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

// 2^x for x <= 126; below -126 it gives about 1e-38, not a subnormal. NaN stays NaN: it is the operand that Max gives
// where it cannot compare.
HWY_INLINE VF Exp2(VF x) {
  return Exp2InRange(hn::Max(hn::Set(kDF, -126.0f), x));
}

// Calls `body` with the cache's type as a compile-time constant; for q8 and q4, whose rows are no plain numbers, not at
// all.
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
    case KvType::kQ4:                         \
      break;                                  \
  }

// A score, or what it is multiplied by, in units of log 2; rounded once, as the drivers do.
HWY_INLINE float InLog2(float x) {
  return static_cast<float>(x * 1.44269504088896340736);
}
constexpr float kLn2 = 0.69314718055994530942f;
// Below every score; finite, so that differences of two are never NaN.
constexpr float kLowest = -1e30f;

// Online softmax: how far, in log 2, scores may exceed the maximum that p = 2^(score - max) are made with before it is
// raised and sums so far shrink. As exact, since floats have the same precision at any size, and nearly always the
// first maximum does.
constexpr float kMaxSlack = 8.0f;

}  // namespace
}  // namespace headwise::cpu::HW_ISA

#endif  // HEADWISE_BACKEND_CPU_KERNELS_KV_PAGE_INL_H_
