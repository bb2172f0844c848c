// Writing keys and values into pages and what keys of a block lie between, and the compensation token's running mean.
#include "backend/cpu/kernels/isa_functions.h"
#include "backend/cpu/kernels/kv_page-inl.h"

namespace headwise::cpu::HW_ISA {
namespace {

HWY_INLINE uint16_t ToBF16(float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

// Where element (token slot, d) of a key or value group lies, in elements.
template <KvType kType>
HWY_INLINE int64_t KeyIndex(int64_t slot, int64_t d) {
  if constexpr (kType == KvType::kBF16) return (d / 2 * kGroupTokens + slot) * 2 + d % 2;
  if constexpr (kType == KvType::kQ8) return (d / 4 * kGroupTokens + slot) * 4 + d % 4;
  return d * kGroupTokens + slot;
}
template <KvType kType>
HWY_INLINE int64_t ValueIndex(int64_t slot, int64_t d, int64_t padded_dim) {
  if constexpr (kType == KvType::kBF16) return (slot / 2 * padded_dim + d) * 2 + slot % 2;
  if constexpr (kType == KvType::kQ8) return (slot / 4 * padded_dim + d) * 4 + slot % 4;
  return slot * padded_dim + d;
}

template <KvType kType>
HWY_INLINE void StoreElement(std::byte* group, int64_t idx, float x) {
  if constexpr (kType == KvType::kF32) {
    reinterpret_cast<float*>(group)[idx] = x;
  } else if constexpr (kType == KvType::kF16) {
    reinterpret_cast<uint16_t*>(group)[idx] = ToF16(x);
  } else {
    reinterpret_cast<uint16_t*>(group)[idx] = ToBF16(x);
  }
}

// `scale` is the row's, for q8 only.
template <KvType kType>
HWY_INLINE float LoadElement(const std::byte* group, int64_t idx, float scale) {
  if constexpr (kType == KvType::kQ8) {
    return scale * static_cast<float>(Bytes(group)[idx] - 128);
  } else if constexpr (kType == KvType::kF32) {
    return reinterpret_cast<const float*>(group)[idx];
  } else if constexpr (kType == KvType::kF16) {
    return FromF16(reinterpret_cast<const uint16_t*>(group)[idx]);
  } else {
    return __builtin_bit_cast(float, uint32_t{reinterpret_cast<const uint16_t*>(group)[idx]} << 16);
  }
}

// Elements [d, d + kLanes) of a row of `dim`; zeros behind its end.
HWY_INLINE VF LoadRow(const float* x, int64_t d, int64_t dim) {
  if (d + kLanes <= dim) return hn::LoadU(kDF, x + d);
  alignas(64) float tail[kLanes] = {};
  for (int64_t i = 0; d + i < dim; ++i) tail[i] = x[d + i];
  return hn::Load(kDF, tail);
}

// Elements [idx, idx + kLanes) of a group of f32 or f16.
template <KvType kType>
HWY_INLINE void StoreVector(std::byte* group, int64_t idx, VF x) {
  if constexpr (kType == KvType::kF32) {
    hn::StoreU(x, kDF, reinterpret_cast<float*>(group) + idx);
  } else {
#if defined(__F16C__)
    const hn::Rebind<hwy::float16_t, DF> d16;
    hn::StoreU(hn::DemoteTo(d16, x), d16, reinterpret_cast<hwy::float16_t*>(group) + idx);
#else
    alignas(64) float elements[kLanes];
    hn::Store(x, kDF, elements);
    for (int64_t i = 0; i < kLanes; ++i) StoreElement<kType>(group, idx + i, elements[i]);
#endif
  }
}

// All keys of a group of f32 or f16, side by side by dimension. The padding takes part in dot products, against zeros
// of the query: it must be finite.
template <KvType kType>
void AppendWholeKeys(const float* x, int64_t stride, int64_t dim, int64_t padded_dim, std::byte* group) {
  const VI slots = hn::Mul(hn::Iota(DI(), 0), hn::Set(DI(), static_cast<int32_t>(stride)));
  for (int64_t d = 0; d < padded_dim; ++d) {
    HW_UNROLL
    for (int64_t s = 0; s < kSub; ++s) {
      const VF keys = d < dim ? hn::GatherIndex(kDF, x + s * kLanes * stride + d, slots) : hn::Zero(kDF);
      StoreVector<kType>(group, KeyIndex<kType>(s * kLanes, d), keys);
    }
  }
}

template <KvType kType>
HWY_INLINE void AppendKey(const float* x, int64_t dim, int64_t padded_dim, int64_t slot, std::byte* group) {
  for (int64_t d = 0; d < padded_dim; ++d) {
    StoreElement<kType>(group, KeyIndex<kType>(slot, d), d < dim ? x[d] : 0.0f);
  }
}

template <KvType kType>
HWY_INLINE void AppendValue(const float* x, int64_t dim, int64_t padded_dim, int64_t slot, std::byte* group) {
  if constexpr (kType == KvType::kBF16) {
    for (int64_t d = 0; d < padded_dim; ++d) {
      StoreElement<kType>(group, ValueIndex<kType>(slot, d, padded_dim), d < dim ? x[d] : 0.0f);
    }
  } else {
    for (int64_t d = 0; d < padded_dim; d += kLanes) {
      StoreVector<kType>(group, ValueIndex<kType>(slot, d, padded_dim), LoadRow(x, d, dim));
    }
  }
}

// Elements become the same bits whichever way they go.
template <KvType kType>
void AppendAs(const AppendArgs& args) {
  const int64_t dim = args.pages.dim;
  const int64_t padded_dim = args.pages.padded_dim;
  int64_t end;
  for (int64_t i = 0; i < args.num_tokens; i = end) {
    const int64_t slot = (args.first_pos + i) % kGroupTokens;
    const Group group = GroupAt(args.pages, args.first_pos + i - slot);
    end = args.num_tokens - i < kGroupTokens - slot ? args.num_tokens : i + kGroupTokens - slot;
    const bool is_whole = kType != KvType::kBF16 && end - i == kGroupTokens;
    const float* k = args.k + i * args.stride;
    const float* v = args.v + i * args.stride;
    if constexpr (kType != KvType::kBF16) {
      if (is_whole) AppendWholeKeys<kType>(k, args.stride, dim, padded_dim, const_cast<std::byte*>(group.k));
    }
    for (int64_t token = 0; token < end - i; ++token, k += args.stride, v += args.stride) {
      if (!is_whole) AppendKey<kType>(k, dim, padded_dim, slot + token, const_cast<std::byte*>(group.k));
      AppendValue<kType>(v, dim, padded_dim, slot + token, const_cast<std::byte*>(group.v));
    }
  }
}

// Writes the scale of a row of q8: its largest magnitude is code 127. NaN where an element is.
HWY_INLINE float StoreScale(const float* x, int64_t dim, const std::byte* scales, int64_t slot) {
  VF lanes = hn::Zero(kDF);
  for (int64_t d = 0; d < dim; d += kLanes) {
    const VF magnitude = hn::Abs(LoadRow(x, d, dim));
    // Once NaN, a lane stays so: nothing is greater.
    const auto replaces = hn::Or(hn::Gt(magnitude, lanes), hn::IsNaN(magnitude));
    lanes = hn::IfThenElse(replaces, magnitude, lanes);
  }
  alignas(64) float magnitudes[kLanes];
  hn::Store(lanes, kDF, magnitudes);
  float largest = 0.0f;
  for (const float magnitude : magnitudes) {
    if (magnitude > largest || magnitude != magnitude) largest = magnitude;
  }
  const uint16_t half = ToF16(largest / 127.0f);
  __builtin_memcpy(const_cast<std::byte*>(scales) + 2 * slot, &half, sizeof(half));
  return FromF16(half);
}

// code + 128 of elements [d, d + kLanes) of a row. Where there is no number to divide by, the scale alone says what the
// row is: zeros or NaN.
HWY_INLINE void BytesOf(const float* x, int64_t d, int64_t dim, float scale, uint8_t* bytes) {
  const hn::Rebind<uint8_t, DF> d8;
  VI code = hn::Zero(DI());
  if (scale > 0.0f && scale <= 65504.0f) {
    const VF exact = hn::Div(LoadRow(x, d, dim), hn::Set(kDF, scale));
    code = hn::NearestInt(hn::Min(hn::Max(exact, hn::Set(kDF, -127.0f)), hn::Set(kDF, 127.0f)));
  }
  hn::StoreU(hn::DemoteTo(d8, hn::Add(code, hn::Set(DI(), 128))), d8, bytes);
}

void AppendQ8(const AppendArgs& args) {
  const int64_t dim = args.pages.dim;
  const int64_t padded_dim = args.pages.padded_dim;
  for (int64_t i = 0; i < args.num_tokens; ++i) {
    const int64_t pos = args.first_pos + i;
    const int64_t slot = pos % kGroupTokens;
    const Group group = GroupAt(args.pages, pos - slot);
    auto* k = reinterpret_cast<uint8_t*>(const_cast<std::byte*>(group.k));
    auto* v = reinterpret_cast<uint8_t*>(const_cast<std::byte*>(group.v));
    const float* key = args.k + i * args.stride;
    const float* value = args.v + i * args.stride;
    const float k_scale = StoreScale(key, dim, group.k_scales, slot);
    const float v_scale = StoreScale(value, dim, group.v_scales, slot);
    for (int64_t d = 0; d < padded_dim; d += kLanes) {
      uint8_t bytes[kLanes];
      BytesOf(key, d, dim, k_scale, bytes);
      for (int64_t j = 0; j < kLanes; j += 4) {
        __builtin_memcpy(k + KeyIndex<KvType::kQ8>(slot, d + j), bytes + j, 4);
      }
      BytesOf(value, d, dim, v_scale, bytes);
      uint8_t* to = v + ValueIndex<KvType::kQ8>(slot, d, padded_dim);
      for (int64_t j = 0; j < kLanes; ++j) to[4 * j] = bytes[j];
    }
  }
}

// The largest f16 that is not above x, or -65504 where there is no finite one; NaN of NaN.
HWY_INLINE uint16_t HalfBelow(float x) {
  uint16_t half = ToF16(x);
  if (x != x) return half;
  if (FromF16(half) > x) half = static_cast<uint16_t>(half == 0 ? 0x8001 : half & 0x8000 ? half + 1 : half - 1);
  return (half & 0x7FFF) == 0x7C00 ? static_cast<uint16_t>(half - 1) : half;
}

// Keys of tokens [begin, end), which are in one group, join the bounds of their block; of the first, nothing joined
// before.
template <KvType kType>
HWY_INLINE void JoinBounds(const KvPages& pages, int64_t begin, int64_t end, bool is_first, uint16_t* low) {
  uint16_t* const high = low + pages.padded_dim;
  const Group group = GroupAt(pages, begin / kGroupTokens * kGroupTokens);
  for (int64_t d = 0; d < pages.padded_dim; ++d) {
    float least = is_first ? __builtin_inff() : FromF16(low[d]);
    float largest = is_first ? -__builtin_inff() : FromF16(high[d]);
    for (int64_t slot = begin % kGroupTokens; slot < begin % kGroupTokens + end - begin; ++slot) {
      const float k_scale = kType == KvType::kQ8 ? LoadHalf(group.k_scales, slot) : 0.0f;
      const float key = LoadElement<kType>(group.k, KeyIndex<kType>(slot, d), k_scale);
      // Once NaN, a bound stays so: nothing is less or greater.
      if (key < least || key != key) least = key;
      if (key > largest || key != key) largest = key;
    }
    const bool exists = d < pages.dim;
    low[d] = exists ? HalfBelow(least) : uint16_t{0};
    high[d] = exists ? static_cast<uint16_t>(HalfBelow(-largest) ^ 0x8000) : uint16_t{0};
  }
}

// Rounding a minimum is the minimum of what was rounded: bounds do not depend on how tokens came.
template <KvType kType>
void BoundKeysAs(const BoundKeysArgs& args) {
  const int64_t all_end = args.first_pos + args.num_tokens;
  for (int64_t pos = args.first_pos; pos < all_end;) {
    const int64_t group_end = (pos / kGroupTokens + 1) * kGroupTokens;
    const int64_t end = group_end < all_end ? group_end : all_end;
    JoinBounds<kType>(args.pages, pos, end, pos % args.block_tokens == 0, BoundsOf(args.pages, args.block_tokens, pos));
    pos = end;
  }
}

// element(d, key, value) gives the elements of a token: mean += (x - mean) / n for each. [razor §3.3] Before the first
// the mean may be anything.
template <typename Element>
HWY_INLINE void MoveMean(const FoldArgs& args, int64_t num_folded, const Element& element) {
  const int64_t dim = args.pages.dim;
  const float inverse = 1.0f / static_cast<float>(num_folded);
  for (int64_t d = 0; d < dim; ++d) {
    float key, value;
    element(d, key, value);
    args.state[d] = num_folded == 1 ? key : args.state[d] + (key - args.state[d]) * inverse;
    args.state[dim + d] = num_folded == 1 ? value : args.state[dim + d] + (value - args.state[dim + d]) * inverse;
  }
}

template <KvType kType>
void FoldToken(const FoldArgs& args, const Group& group, int64_t slot, int64_t num_folded) {
  const int64_t padded_dim = args.pages.padded_dim;
  const float k_scale = kType == KvType::kQ8 ? LoadHalf(group.k_scales, slot) : 0.0f;
  const float v_scale = kType == KvType::kQ8 ? LoadHalf(group.v_scales, slot) : 0.0f;
  MoveMean(args, num_folded, [&](int64_t d, float& key, float& value) {
    key = LoadElement<kType>(group.k, KeyIndex<kType>(slot, d), k_scale);
    value = LoadElement<kType>(group.v, ValueIndex<kType>(slot, d, padded_dim), v_scale);
  });
}

void FoldQ4Token(const FoldArgs& args, const Group& group, int64_t slot, int64_t num_folded) {
  const int64_t padded_dim = args.pages.padded_dim;
  const ValueScaleSteps steps = StepsOf(args.pages.page_tokens, padded_dim);
  // Number `idx` of 8 in each 4 bytes, of which there are `stride` to the next 8.
  const auto code = [](const std::byte* codes, int64_t stride, int64_t column, int64_t idx) {
    const uint8_t both = Bytes(codes)[4 * (idx / 8 * stride + column) + idx % 4];
    return static_cast<float>(idx % 8 < 4 ? both & 15 : both >> 4);
  };
  MoveMean(args, num_folded, [&](int64_t d, float& key, float& value) {
    const std::byte* v_scales = group.v_scales + d / kScaleDims * steps.run;
    key = LoadHalf(group.k_scales, d) * code(group.k, kGroupTokens, slot, d) + LoadHalf(group.k_scales, padded_dim + d);
    value = LoadHalf(v_scales, slot) * code(group.v, padded_dim, d, slot) + LoadHalf(v_scales + steps.low, slot);
  });
}

// The mean token joins what the kept keys gave: two partial softmaxes merge by their log-sum-exp.
void MergeMean(const FoldArgs& args, int64_t row, int64_t q_idx, int64_t num_folded) {
  const int64_t dim = args.pages.dim;
  const float* q = args.q + row * args.stride + q_idx * dim;
  float* out = args.out + row * args.stride + q_idx * dim;
  float& lse = args.lse[row * args.lse_stride + q_idx];
  double dot = 0;
  for (int64_t d = 0; d < dim; ++d) dot += static_cast<double>(q[d]) * args.state[d];
  double score = dot * args.scale;
  if (args.score_cap != 0.0f) score = args.score_cap * __builtin_tanh(score / args.score_cap);
  score += __builtin_log(static_cast<double>(num_folded));
  if (args.slopes != nullptr) {
    const double mean_pos = static_cast<double>(args.sink) + static_cast<double>(num_folded - 1) / 2;
    score += args.slopes[q_idx] * (mean_pos - static_cast<double>(args.first_pos + row));
  }
  const double max = score > lse ? score : lse;
  const double kept = __builtin_exp(lse - max);
  const double mean = __builtin_exp(score - max);
  const auto kept_share = static_cast<float>(kept / (kept + mean));
  const auto mean_share = static_cast<float>(mean / (kept + mean));
  for (int64_t d = 0; d < dim; ++d) out[d] = kept_share * out[d] + mean_share * args.state[dim + d];
  lse = static_cast<float>(max + __builtin_log(kept + mean));
}

template <KvType kType>
void FoldAs(const FoldArgs& args) {
  int64_t num_folded = args.num_folded;
  const auto fold_up_to = [&](int64_t end) {
    for (int64_t pos = args.sink + num_folded; pos < end; ++pos) {
      const Group group = GroupAt(args.pages, pos / kGroupTokens * kGroupTokens);
      ++num_folded;
      if (kType == KvType::kQ8 && group.type == KvType::kQ4) {
        FoldQ4Token(args, group, pos % kGroupTokens, num_folded);
      } else {
        FoldToken<kType>(args, group, pos % kGroupTokens, num_folded);
      }
    }
  };
  for (int64_t row = 0; row < args.num_rows; ++row) {
    fold_up_to(args.first_pos + row - args.recent + 1);
    if (num_folded == 0) continue;
    for (int64_t q_idx = 0; q_idx < args.num_q; ++q_idx) MergeMean(args, row, q_idx, num_folded);
  }
  fold_up_to(args.fold_end);
}

// A token's numbers as they are, its scales with them; kElementBytes-wide elements in the order of `kType`.
template <KvType kType, typename Element>
void MoveSlot(const KvPages& pages, int64_t from_slot, int64_t to_slot) {
  const Group from = GroupAt(pages, from_slot / kGroupTokens * kGroupTokens);
  const Group to = GroupAt(pages, to_slot / kGroupTokens * kGroupTokens);
  from_slot %= kGroupTokens;
  to_slot %= kGroupTokens;
  const auto* from_k = reinterpret_cast<const Element*>(from.k);
  const auto* from_v = reinterpret_cast<const Element*>(from.v);
  auto* to_k = reinterpret_cast<Element*>(const_cast<std::byte*>(to.k));
  auto* to_v = reinterpret_cast<Element*>(const_cast<std::byte*>(to.v));
  for (int64_t d = 0; d < pages.padded_dim; ++d) {
    to_k[KeyIndex<kType>(to_slot, d)] = from_k[KeyIndex<kType>(from_slot, d)];
    to_v[ValueIndex<kType>(to_slot, d, pages.padded_dim)] = from_v[ValueIndex<kType>(from_slot, d, pages.padded_dim)];
  }
  if (kType != KvType::kQ8) return;
  __builtin_memcpy(const_cast<std::byte*>(to.k_scales) + 2 * to_slot, from.k_scales + 2 * from_slot, 2);
  __builtin_memcpy(const_cast<std::byte*>(to.v_scales) + 2 * to_slot, from.v_scales + 2 * from_slot, 2);
}

// Behind the codes of a page positions [P] i32, then scores [P] f32.
HWY_INLINE uint32_t* NotesOf(const KvPages& pages, int64_t slot) {
  const uint32_t page = pages.table[slot / pages.page_tokens];
  const uint32_t in_extent = page & ((uint32_t{1} << pages.newest.extent_shift) - 1);
  std::byte* end = pages.newest.extents[page >> pages.newest.extent_shift] +
                   static_cast<int64_t>(in_extent + 1) * pages.newest.page_bytes;
  return reinterpret_cast<uint32_t*>(end) - 2 * pages.page_tokens + slot % pages.page_tokens;
}

}  // namespace

void MoveSlots(const MoveSlotsArgs& args) {
  for (int64_t i = 0; i < args.num_tokens; ++i) {
    const int64_t from = args.from[i];
    const int64_t to = args.to[i];
    switch (args.pages.type) {
      case KvType::kF32:
        MoveSlot<KvType::kF32, uint32_t>(args.pages, from, to);
        break;
      case KvType::kF16:
        MoveSlot<KvType::kF16, uint16_t>(args.pages, from, to);
        break;
      case KvType::kBF16:
        MoveSlot<KvType::kBF16, uint16_t>(args.pages, from, to);
        break;
      case KvType::kQ8:
        MoveSlot<KvType::kQ8, uint8_t>(args.pages, from, to);
        break;
      case KvType::kQ4:  // pages of such heads do not age
        break;
    }
    const uint32_t* from_notes = NotesOf(args.pages, from);
    uint32_t* to_notes = NotesOf(args.pages, to);
    to_notes[0] = from_notes[0];
    to_notes[args.pages.page_tokens] = from_notes[args.pages.page_tokens];
  }
}

void BoundKeys(const BoundKeysArgs& args) {
  if (args.pages.type == KvType::kQ8) return BoundKeysAs<KvType::kQ8>(args);
  HW_WITH_FLOAT_KV_TYPE(args.pages.type, BoundKeysAs<kType>(args));
}
void Append(const AppendArgs& args) {
  if (args.pages.type == KvType::kQ8) return AppendQ8(args);
  HW_WITH_FLOAT_KV_TYPE(args.pages.type, AppendAs<kType>(args));
}
void Fold(const FoldArgs& args) {
  if (args.pages.type == KvType::kQ8) return FoldAs<KvType::kQ8>(args);
  HW_WITH_FLOAT_KV_TYPE(args.pages.type, FoldAs<kType>(args));
}

}  // namespace headwise::cpu::HW_ISA
