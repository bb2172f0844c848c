// The matmul kernels of one instruction set: dispatch on the weights' type.
#include "backend/cpu/kernels/isa_functions.h"
#include "backend/cpu/kernels/matmul_amx_bytes-inl.h"
#include "backend/cpu/kernels/matmul_amx_groups-inl.h"
#include "backend/cpu/kernels/matmul_amx_int8-inl.h"
#include "backend/cpu/kernels/matmul_few_rows-inl.h"
#include "backend/cpu/kernels/matmul_kernels.h"
#include "backend/cpu/kernels/matmul_packed-inl.h"
#include "backend/cpu/kernels/matmul_packed_tile-inl.h"
#include "backend/cpu/kernels/matmul_tile-inl.h"

namespace headwise::cpu::HW_ISA {
namespace {

// Calls `body` with the type of packed weights as a compile-time constant.
#define HW_PACKED_CASE(type, body)           \
  case WeightType::type: {                   \
    constexpr auto kType = WeightType::type; \
    body;                                    \
    return;                                  \
  }
#define HW_WITH_PACKED_TYPE(type, body) \
  switch (type) {                       \
    HW_PACKED_CASE(kQ8_0, body)         \
    HW_PACKED_CASE(kQ4_0, body)         \
    HW_PACKED_CASE(kQ4_1, body)         \
    HW_PACKED_CASE(kQ5_0, body)         \
    HW_PACKED_CASE(kQ5_1, body)         \
    HW_PACKED_CASE(kQ4_K, body)         \
    HW_PACKED_CASE(kQ5_K, body)         \
    HW_PACKED_CASE(kQ6_K, body)         \
    HW_PACKED_CASE(kIQ4_NL, body)       \
    HW_PACKED_CASE(kMXFP4, body)        \
    HW_PACKED_CASE(kQ2_K, body)         \
    HW_PACKED_CASE(kQ3_K, body)         \
    HW_PACKED_CASE(kIQ4_XS, body)       \
    HW_PACKED_CASE(kTQ2_0, body)        \
    HW_PACKED_CASE(kU4, body)           \
    HW_PACKED_CASE(kF8E4M3, body)       \
    HW_PACKED_CASE(kNF4, body)          \
    default:                            \
      return;                           \
  }

template <typename Steps>
void TileBy(const TileArgs& args) {
  switch (args.type) {
    case WeightType::kF32:
      return TileOf<Steps, PlainWeights<Steps, WeightType::kF32>>(args);
    case WeightType::kF16:
      return TileOf<Steps, PlainWeights<Steps, WeightType::kF16>>(args);
    case WeightType::kBF16:
      return TileOf<Steps, PlainWeights<Steps, WeightType::kBF16>>(args);
    default:
      HW_WITH_PACKED_TYPE(args.type, (TileOf<Steps, PanelWeights<Steps, kType>>(args)));
  }
}

}  // namespace

void FewRows(const FewRowsArgs& args) {
  if (args.scratch != nullptr) {
    switch (args.type) {
      case WeightType::kF32:
        return ManyRowsOf<WeightType::kF32>(args);
      case WeightType::kF16:
        return ManyRowsOf<WeightType::kF16>(args);
      case WeightType::kBF16:
        return ManyRowsOf<WeightType::kBF16>(args);
      default:
        return;  // panels: PackedFewRows
    }
  }
  switch (args.type) {
    case WeightType::kF32:
      return kFewRowsOf<WeightType::kF32>[args.num_rows - 1](args);
    case WeightType::kF16:
      return kFewRowsOf<WeightType::kF16>[args.num_rows - 1](args);
    case WeightType::kBF16:
      return kFewRowsOf<WeightType::kBF16>[args.num_rows - 1](args);
    default:
      return;  // panels: PackedFewRows
  }
}

void PackedFewRows(const PackedArgs& args) {
  HW_WITH_PACKED_TYPE(args.type, PackedFewRowsOf<kType>(args));
}

namespace {

template <WeightType kType>
void PackedTileBy(const PackedArgs& args, void* scratch) {
#if HW_TILES
  AmxPackedTileOf<kType>(args, scratch);
#else
  PackedTileOf<kType>(args, scratch);
#endif
}

}  // namespace

void PackedTile(const PackedArgs& args, void* scratch) {
  HW_WITH_PACKED_TYPE(args.type, if constexpr (HasWholeCodes(kType)) PackedTileBy<kType>(args, scratch));
}

namespace {

// Below it the inverse might not be finite.
constexpr float kLeastRounded = 0x1p-100f;

struct Largest {
  float magnitude;
  // 0, or NaN where an element is one or is infinite: neither has a code, and the largest element may be another.
  float other;
};
// Of whole vectors of elements, in so many chains side by side, because in each a vector waits for the one before.
template <int kChains>
HWY_INLINE Largest LargestOf(const float* x, int64_t n) {
  VF largest[kChains], others[kChains];
  for (int c = 0; c < kChains; ++c) largest[c] = others[c] = hn::Zero(kDF);
  const auto take = [&](int64_t i, int c) HW_INLINE_LAMBDA {
    const VF elements = hn::LoadU(kDF, x + i);
    largest[c] = hn::Max(largest[c], hn::Abs(elements));
    others[c] = hn::MulAdd(elements, hn::Zero(kDF), others[c]);
  };
  int64_t i = 0;
  for (; i + kChains * kLanes <= n; i += kChains * kLanes) {
    HW_UNROLL
    for (int c = 0; c < kChains; ++c) take(i + c * kLanes, c);
  }
  for (; i < n; i += kLanes) take(i, 0);
  for (int c = 1; c < kChains; ++c) {
    largest[0] = hn::Max(largest[0], largest[c]);
    others[0] = hn::Add(others[0], others[c]);
  }
  return {hn::GetLane(hn::MaxOfLanes(kDF, largest[0])), hn::GetLane(hn::SumOfLanes(kDF, others[0]))};
}

}  // namespace

void QuantizeRow(const float* x, int64_t n, QuantizedRun* to, int64_t stride) {
  for (int64_t run = 0; run < n / kRunElements; ++run, to += stride) {
    const auto [magnitude, other] = LargestOf<1>(x + run * kRunElements, kRunElements);
    if (other != 0.0f) {
      // What the scale is, every product is.
      for (int8_t& code : to->codes) code = 0;
      to->scale = to->scaled_sum = other;
      to->start_8 = to->start_16 = to->start_128 = to->start_32[0] = to->start_32[1] = 0;
      continue;
    }
    // So small that its inverse might not be finite: nothing.
    const float inverse = magnitude > kLeastRounded ? 127.0f / magnitude : 0.0f;
    VI sums[2] = {hn::Zero(DI()), hn::Zero(DI())};
    alignas(64) int32_t codes[kRunElements];
    for (int64_t i = 0; i < kRunElements; i += kLanes) {
      const VF scaled = hn::Mul(hn::LoadU(kDF, x + run * kRunElements + i), hn::Set(kDF, inverse));
      const VI rounded = hn::NearestInt(scaled);
      hn::Store(rounded, DI(), codes + i);
      sums[i / (kRunElements / 2)] = hn::Add(sums[i / (kRunElements / 2)], rounded);
    }
    for (int64_t i = 0; i < kRunElements; ++i) to->codes[i] = static_cast<int8_t>(codes[i]);
    const int32_t half_sums[2] = {hn::GetLane(hn::SumOfLanes(DI(), sums[0])),
                                  hn::GetLane(hn::SumOfLanes(DI(), sums[1]))};
    const int32_t sum = half_sums[0] + half_sums[1];
    to->scale = magnitude / 127.0f;
    to->scaled_sum = to->scale * static_cast<float>(sum);
    to->start_8 = -8 * sum;
    to->start_16 = -16 * sum;
    to->start_128 = -128 * sum;
    to->start_32[0] = -32 * half_sums[0];
    to->start_32[1] = -32 * half_sums[1];
  }
}

GroupSummary QuantizeGroup(const float* x, int64_t n, int8_t* to, int64_t stride) {
  constexpr int64_t kPiece = 64;
  const auto [magnitude, other] = LargestOf<4>(x, n);
  VI sum = hn::Zero(DI());
  const float inverse = other == 0.0f && magnitude > kLeastRounded ? 127.0f / magnitude : 0.0f;
  for (int64_t begin = 0; begin < n; begin += kPiece, to += stride) {
    const hn::Rebind<int8_t, DF> d8;
    HW_UNROLL
    for (int64_t i = 0; i < kPiece; i += kLanes) {
      VI codes = hn::Zero(DI());
      if (inverse != 0.0f && begin + i < n) {
        codes = hn::NearestInt(hn::Mul(hn::LoadU(kDF, x + begin + i), hn::Set(kDF, inverse)));
      }
      sum = hn::Add(sum, codes);
      hn::StoreU(hn::DemoteTo(d8, codes), d8, to + i);
    }
  }
  return {.scale = other != 0.0f ? other : magnitude / 127.0f, .code_sum = hn::GetLane(hn::SumOfLanes(DI(), sum))};
}

void Tile(const TileArgs& args) {
#if HW_TILES
  if (args.steps == StepType::kByteQuad && args.x_starts != nullptr) return AmxGroupsTile(args);
  if (args.steps == StepType::kByteQuad) {
    HW_WITH_PACKED_TYPE(args.type, if constexpr (HasWholeCodes(kType)) AmxTileOf<BytesRegister<kType>>(args));
    return;
  }
#endif
  if constexpr (kMultipliesBF16) {
    if (args.steps == StepType::kBF16Pair) return TileBy<BF16Steps>(args);
  }
  TileBy<F32Steps>(args);
}

void RoundRow(const float* x, int64_t n, float* pairs) {
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    hn::StoreU(PackBF16Sequence(hn::LoadU(kDF, x + i), hn::LoadU(kDF, x + i + kLanes)), kDF, pairs + i / 2);
  }
  for (; i < n; i += 2) pairs[i / 2] = PackBF16Pair(x[i], i + 1 < n ? x[i + 1] : 0.0f);
}

}  // namespace headwise::cpu::HW_ISA
