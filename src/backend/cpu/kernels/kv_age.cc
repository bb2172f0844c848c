// Pages of q8 made pages of q4. Every operation is the definition's, each rounded correctly, so that all instruction
// sets store the same numbers.
#include "backend/cpu/kernels/isa_functions.h"
#include "backend/cpu/kernels/kv_page-inl.h"

namespace headwise::cpu::HW_ISA {
namespace {

constexpr float kInfinity = __builtin_inff();
constexpr float kLargestHalf = 65504.0f;

// Of the elements of one scale.
struct Range {
  VF low = hn::Set(kDF, kInfinity);
  VF high = hn::Set(kDF, -kInfinity);

  HWY_INLINE void Add(VF x) {
    low = hn::Min(low, x);
    high = hn::Max(high, x);
  }
};

// Scale and low as they are read.
struct Step {
  float scale;
  float low;

  HWY_INLINE VI Codes(VF x) const {
    // Where there is no number to divide by, scale and low alone say what the elements are.
    if (!(scale > 0.0f && scale <= kLargestHalf && low >= -kLargestHalf && low <= kLargestHalf)) return hn::Zero(DI());
    // An inverse would round otherwise.
    const VF exact = hn::Div(hn::Sub(x, hn::Set(kDF, low)), hn::Set(kDF, scale));
    return hn::NearestInt(hn::Min(hn::Max(exact, hn::Zero(kDF)), hn::Set(kDF, 15.0f)));
  }
};

// A row of q8 is no number where its scale is none: `poison`, 0 times the scales, then is NaN.
HWY_INLINE Step StoreStep(const Range& range, float poison, std::byte* scale_to, std::byte* low_to) {
  const float low = hn::GetLane(hn::MinOfLanes(kDF, range.low)) + poison;
  const float high = hn::GetLane(hn::MaxOfLanes(kDF, range.high));
  const uint16_t scale_half = ToF16((high - low) / 15.0f);
  const uint16_t low_half = ToF16(low);
  __builtin_memcpy(scale_to, &scale_half, sizeof(scale_half));
  __builtin_memcpy(low_to, &low_half, sizeof(low_half));
  return {FromF16(scale_half), FromF16(low_half)};
}

HWY_INLINE VB LoadCodes(const std::byte* codes) {
  return hn::Xor(hn::LoadU(D8(), Bytes(codes)), hn::Set(D8(), uint8_t{0x80}));
}

// Calls body.operator()<i>() for the four bytes of a lane.
template <typename Body>
HWY_INLINE void ForBytes(const Body& body) {
  body.template operator()<0>();
  body.template operator()<1>();
  body.template operator()<2>();
  body.template operator()<3>();
}

// Keys of all tokens, of 8 dimensions from 8 * `octet` on. `from` and `to` are the first groups.
void AgeKeys(const AgeArgs& args, int64_t octet, const Group& from, const Group& to, float poison) {
  const int64_t num_vecs = args.page_tokens / kLanes;
  const int64_t padded_dim = args.padded_dim;
  const int64_t from_bytes = GroupBytes(KvType::kQ8, padded_dim);
  const int64_t to_bytes = GroupBytes(KvType::kQ4, padded_dim);
  auto* scales = const_cast<std::byte*>(to.k_scales);
  // A vector of tokens, of one quad of dimensions.
  const auto codes_at = [&](int64_t quad, int64_t vec) HW_INLINE_LAMBDA {
    return LoadCodes(from.k + vec / kSub * from_bytes + 4 * (quad * kGroupTokens + vec % kSub * kLanes));
  };
  const auto scale_at = [&](int64_t vec)
                            HW_INLINE_LAMBDA { return HalvesAsF32(Bytes(from.k_scales) + 2 * vec * kLanes); };
  Step steps[8];
  for (int64_t half = 0; half < 2; ++half) {
    Range ranges[4];
    for (int64_t vec = 0; vec < num_vecs; ++vec) {
      const VB codes = codes_at(2 * octet + half, vec);
      const VF scale = scale_at(vec);
      ForBytes([&]<int kByte>() HW_INLINE_LAMBDA { ranges[kByte].Add(hn::Mul(ByteAsF32<kByte>(codes), scale)); });
    }
    for (int64_t i = 0; i < 4; ++i) {
      const int64_t d = 8 * octet + 4 * half + i;
      steps[4 * half + i] = StoreStep(ranges[i], poison, scales + 2 * d, scales + 2 * (padded_dim + d));
    }
  }
  for (int64_t vec = 0; vec < num_vecs; ++vec) {
    const VF scale = scale_at(vec);
    const VB quads[2] = {codes_at(2 * octet, vec), codes_at(2 * octet + 1, vec)};
    VI packed = hn::Zero(DI());
    ForBytes([&]<int kByte>() HW_INLINE_LAMBDA {
      const VI low = steps[kByte].Codes(hn::Mul(ByteAsF32<kByte>(quads[0]), scale));
      const VI high = steps[4 + kByte].Codes(hn::Mul(ByteAsF32<kByte>(quads[1]), scale));
      packed = hn::Or(packed, hn::ShiftLeft<8 * kByte>(hn::Or(low, hn::ShiftLeft<4>(high))));
    });
    auto* out = const_cast<std::byte*>(to.k) + vec / kSub * to_bytes + 4 * (octet * kGroupTokens + vec % kSub * kLanes);
    hn::StoreU(packed, DI(), reinterpret_cast<int32_t*>(out));
  }
}

// Values of 8 tokens of a group from 8 * `octet` on, of 32 dimensions or what is left of them.
void AgeValues(const AgeArgs& args, int64_t octet, int64_t run, const Group& from, const Group& to) {
  const int64_t padded_dim = args.padded_dim;
  const int64_t begin = run * kScaleDims;
  const int64_t end = begin + kScaleDims < padded_dim ? begin + kScaleDims : padded_dim;
  const ValueScaleSteps stride = StepsOf(args.page_tokens, padded_dim);
  auto* scales = const_cast<std::byte*>(to.v_scales) + run * stride.run;
  const auto codes_at = [&](int64_t half, int64_t d)
                            HW_INLINE_LAMBDA { return LoadCodes(from.v + 4 * ((2 * octet + half) * padded_dim + d)); };
  VF from_scales[8];
  for (int64_t i = 0; i < 8; ++i) from_scales[i] = hn::Set(kDF, LoadHalf(from.v_scales, 8 * octet + i));
  Step steps[8];
  for (int64_t half = 0; half < 2; ++half) {
    Range ranges[4];
    for (int64_t d = begin; d < end; d += kLanes) {
      const VB codes = codes_at(half, d);
      // What only fills the row up is none of its numbers.
      const auto exists = hn::Lt(hn::Iota(kDF, static_cast<float>(d)), hn::Set(kDF, static_cast<float>(args.dim)));
      ForBytes([&]<int kByte>() HW_INLINE_LAMBDA {
        const VF x = hn::Mul(ByteAsF32<kByte>(codes), from_scales[4 * half + kByte]);
        Range with = ranges[kByte];
        with.Add(x);
        ranges[kByte] = {hn::IfThenElse(exists, with.low, ranges[kByte].low),
                         hn::IfThenElse(exists, with.high, ranges[kByte].high)};
      });
    }
    for (int64_t i = 0; i < 4; ++i) {
      const int64_t slot = 8 * octet + 4 * half + i;
      const float poison = 0.0f * LoadHalf(from.v_scales, slot);
      steps[4 * half + i] = StoreStep(ranges[i], poison, scales + 2 * slot, scales + stride.low + 2 * slot);
    }
  }
  for (int64_t d = begin; d < end; d += kLanes) {
    const VB quads[2] = {codes_at(0, d), codes_at(1, d)};
    VI packed = hn::Zero(DI());
    ForBytes([&]<int kByte>() HW_INLINE_LAMBDA {
      const VI low = steps[kByte].Codes(hn::Mul(ByteAsF32<kByte>(quads[0]), from_scales[kByte]));
      const VI high = steps[4 + kByte].Codes(hn::Mul(ByteAsF32<kByte>(quads[1]), from_scales[4 + kByte]));
      packed = hn::Or(packed, hn::ShiftLeft<8 * kByte>(hn::Or(low, hn::ShiftLeft<4>(high))));
    });
    hn::StoreU(packed, DI(), reinterpret_cast<int32_t*>(const_cast<std::byte*>(to.v) + 4 * (octet * padded_dim + d)));
  }
}

}  // namespace

void Age(const AgeArgs& args) {
  const auto group_of = [&](const std::byte* page, KvType type, int64_t slot) {
    return GroupOf(page, type, args.page_tokens, args.padded_dim, slot);
  };
  const Group first_from = group_of(args.from, KvType::kQ8, 0);
  const Group first_to = group_of(args.to, KvType::kQ4, 0);
  float poison = 0.0f;
  for (int64_t i = 0; i < args.page_tokens; ++i) poison += 0.0f * LoadHalf(first_from.k_scales, i);
  for (int64_t octet = 0; octet < args.padded_dim / 8; ++octet) AgeKeys(args, octet, first_from, first_to, poison);
  for (int64_t slot = 0; slot < args.page_tokens; slot += kGroupTokens) {
    const Group from = group_of(args.from, KvType::kQ8, slot);
    const Group to = group_of(args.to, KvType::kQ4, slot);
    for (int64_t octet = 0; octet < kGroupTokens / 8; ++octet) {
      for (int64_t run = 0; run < NumScaleRuns(args.padded_dim); ++run) AgeValues(args, octet, run, from, to);
    }
  }
}

}  // namespace headwise::cpu::HW_ISA
