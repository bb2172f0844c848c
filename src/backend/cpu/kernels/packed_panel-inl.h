// Reading panels of block-format weights (packed_weights.h) as vectors: scales as f32, codes as bytes. Included by the
// matmul kernel sources only, once per instruction set.
#ifndef HEADWISE_BACKEND_CPU_KERNELS_PACKED_PANEL_INL_H_
#define HEADWISE_BACKEND_CPU_KERNELS_PACKED_PANEL_INL_H_

#include <hwy/highway.h>

#include "backend/cpu/kernels/native-inl.h"
#include "backend/cpu/kernels/packed_weights.h"
#include "backend/cpu/kernels/vector-inl.h"

namespace headwise::cpu::HW_ISA {
namespace {

// A panel is computed in pieces of as many outputs as a vector has lanes.
constexpr int64_t kSubPanels = kPanelRows / kLanes;

// body.operator()<0>() ... <7>(): which bits of a byte belong to a quad is known when compiling.
template <int kQuad = 0, typename Body>
HWY_INLINE void ForQuads(const Body& body) {
  body.template operator()<kQuad>();
  if constexpr (kQuad + 1 < kRunQuads) ForQuads<kQuad + 1>(body);
}

HWY_INLINE VF BytesAsF32(const uint8_t* bytes) {
  const hn::Rebind<uint8_t, DF> d8;
  return hn::ConvertTo(kDF, hn::PromoteTo(DI(), hn::LoadU(d8, bytes)));
}
HWY_INLINE VF SignedBytesAsF32(const uint8_t* bytes) {
  const hn::Rebind<int8_t, DF> d8;
  return hn::ConvertTo(kDF, hn::PromoteTo(DI(), hn::LoadU(d8, reinterpret_cast<const int8_t*>(bytes))));
}

// Outputs [sub * kLanes, + kLanes) of one panel.
template <WeightType kType>
class PanelReader {
 public:
  static constexpr PackedFormat kFormat = FormatOf(kType);
  // Bits of an unpacked code.
  static constexpr int kCodeBits = kFormat.has_levels ? 8 : kFormat.bits;

  // 1.5 KiB are too little for some formats; behind 6 KiB all get slower.
  static constexpr int64_t kBytesAhead = kFormat.has_super ? 6144 : 4096;

  HWY_INLINE explicit PanelReader(const void* panel = nullptr, int64_t sub = 0)
      : panel_(static_cast<const uint8_t*>(panel)), lane_(sub * kLanes) {}

  // Requires: `run` is the first of a block, or the block has been begun.
  HWY_INLINE void BeginRun(int64_t run) {
    const int64_t run_of_block = run % BlockRuns(kType);
    run_ = run;
    const uint8_t* block = panel_ + BlockScalesAt(kType, run / BlockRuns(kType));
    run_codes_ = panel_ + RunCodesAt(kType, run) + (HasWholeCodes(kType) ? 4 : 1) * lane_;
    if (run_of_block == 0) BeginBlock(block);
    if constexpr (kFormat.has_super) {
      run_scales_ = block + SuperScalesAt(kType) + run_of_block * kFormat.super_bytes * kPanelRows + lane_;
    }
  }

  // Of elements [16 half, 16 half + 16) of the run.
  template <int kHalf>
  HWY_INLINE VF A() const {
    if constexpr (kType == WeightType::kQ2_K) {
      return hn::Mul(d_, NibblesAsF32<0>(run_scales_ + kHalf * kPanelRows));
    } else if constexpr (kFormat.has_half_runs) {
      return hn::Mul(d_, SignedBytesAsF32(run_scales_ + kHalf * kPanelRows));
    } else if constexpr (kType == WeightType::kIQ4_XS) {
      return hn::Mul(d_, SignedBytesAsF32(run_scales_));
    } else if constexpr (kFormat.has_super) {
      return hn::Mul(d_, BytesAsF32(run_scales_));
    } else {
      return d_;
    }
  }
  template <int kHalf = 0>
  HWY_INLINE VF B() const {
    if constexpr (kType == WeightType::kQ2_K) {
      return hn::Neg(hn::Mul(min_, NibblesAsF32<4>(run_scales_ + kHalf * kPanelRows)));
    } else if constexpr (kFormat.has_super) {
      return hn::Neg(hn::Mul(min_, BytesAsF32(run_scales_ + kPanelRows)));
    } else {
      return min_;
    }
  }

  // Lane i: the codes of output i for elements [4 kQuad, 4 kQuad + 4) of the run.
  template <int kQuad>
  HWY_INLINE VB Codes() const {
    const D8 d8;
    if constexpr (kFormat.bits == 8) {
      return hn::Load(d8, run_codes_ + kQuad * kQuadBytes);
    } else {
      constexpr bool kHasPairs = kFormat.bits < 4;
      VB codes = hn::Load(d8, run_codes_ + (kHasPairs ? kQuad / 4 : kQuad % 4) * kQuadBytes);
      if constexpr (kHasPairs) {
        codes = Bits<kQuad % 4 * 2, 0, 0x03>(codes);
      } else {
        codes = Bits<kQuad / 4 * 4, 0, 0x0F>(codes);
      }
      if constexpr (kFormat.bits == 3) {
        codes = hn::Or(codes, Bits<kQuad, 2, 0x04>(hn::Load(d8, run_codes_ + 2 * kQuadBytes)));
      } else if constexpr (kFormat.bits == 5) {
        codes = hn::Or(codes, Bits<kQuad, 4, 0x10>(hn::Load(d8, run_codes_ + 4 * kQuadBytes)));
      } else if constexpr (kFormat.bits == 6) {
        codes = hn::Or(codes, Bits<kQuad % 4 * 2, 4, 0x30>(hn::Load(d8, run_codes_ + (4 + kQuad / 4) * kQuadBytes)));
      }
      if constexpr (kFormat.has_levels) {
        const VB table = hn::LoadDup128(d8, kType == WeightType::kMXFP4 ? kMXFP4Table : kIQ4Table);
        codes = hn::TableLookupBytes(table, codes);
      }
      return codes;
    }
  }

  // The same as codes - offset: signed bytes.
  template <int kQuad>
  HWY_INLINE VB Values() const {
    if constexpr (kFormat.offset == 0) return Codes<kQuad>();
    return hn::Sub(Codes<kQuad>(), hn::Set(D8(), static_cast<uint8_t>(kFormat.offset)));
  }

  // What A is multiplied with, of elements 4 kQuad + i of the run: w[i].
  template <int kQuad>
  HWY_INLINE void Levels(VF (&w)[4]) const {
    if constexpr (kType == WeightType::kF8E4M3) {
      HW_UNROLL
      for (int i = 0; i < 4; ++i) w[i] = FloatsOf(run_codes_ + kQuad * kQuadBytes + i * kPanelRows);
    } else if constexpr (kType == WeightType::kNF4) {
      HW_UNROLL
      for (int i = 0; i < 4; ++i) {
        w[i] = NF4Of(NibblesAsI32<kQuad / 4 * 4>(run_codes_ + kQuad % 4 * kQuadBytes + i * kPanelRows));
      }
    } else {
      const VB values = Values<kQuad>();
      w[0] = ByteAsF32<0>(values);
      w[1] = ByteAsF32<1>(values);
      w[2] = ByteAsF32<2>(values);
      w[3] = ByteAsF32<3>(values);
    }
  }

  // Once for every run of K. Panels follow each other, so what lies ahead of the last run is the next panel.
  HWY_INLINE void Prefetch() const {
    const uint8_t* ahead = run_codes_ + kBytesAhead;
    int64_t bytes = RunCodeBytes(kType);
    if constexpr (kFormat.has_super) {
      // A run's share of the stretch: asked for at once, the many lines of its scales would be a step in what moves on
      // evenly, and the hardware would lose it (half of the speed of q6_k).
      bytes += BlockScaleBytes(kType) / kSuperRuns;
      ahead = panel_ + kBytesAhead + run_ * bytes;
    } else if (run_ % (StretchBlocks(kType) * BlockRuns(kType)) == 0) {
      for (int64_t line = StretchScaleBytes(kType); line > 0; line -= 64) PrefetchOfRun(ahead - line);
    }
    for (int64_t line = 0; line < bytes; line += 64) PrefetchOfRun(ahead + line);
  }

 private:
  HWY_INLINE void BeginBlock(const uint8_t* block) {
    if constexpr (kFormat.scale == ScaleKind::kFloat) {
      d_ = hn::LoadU(kDF, reinterpret_cast<const float*>(block) + lane_);
      if constexpr (kType == WeightType::kF8E4M3) d_ = hn::Mul(d_, hn::Set(kDF, kFloatsUnit));
    } else if constexpr (kFormat.scale == ScaleKind::kExponent) {
      d_ = HalvedPowersOf2(block + lane_);
    } else {
      d_ = HalvesAsF32(block + 2 * lane_);
    }
    if constexpr (kFormat.has_zero) {
      min_ = hn::Neg(hn::Mul(d_, BytesAsF32(block + 2 * kPanelRows + lane_)));
    } else if constexpr (kFormat.has_min) {
      min_ = HalvesAsF32(block + 2 * (kPanelRows + lane_));
    }
  }

  // 2^(byte - 128), which is half of the scale: levels are twice what codes stand for. 255 gives infinity, of which a
  // product with a level of 0 is NaN.
  static HWY_INLINE VF HalvedPowersOf2(const uint8_t* bytes) {
    const DU du;
    const hn::Rebind<uint8_t, DF> d8;
    const VU exponent = hn::PromoteTo(du, hn::LoadU(d8, bytes));
    const VF powers = hn::Mul(hn::BitCast(kDF, hn::ShiftLeft<23>(exponent)), hn::Set(kDF, 0.5f));
    const auto is_least = hn::RebindMask(kDF, hn::Eq(exponent, hn::Zero(du)));
    return hn::IfThenElse(is_least, hn::Set(kDF, 0x1p-128f), powers);
  }

  // Floats of 8 bits as f16 with the same bits of exponent and fraction, which are 2^-8 of their values: the widening
  // takes subnormal ones at full speed.
  static constexpr float kFloatsUnit = 256.0f;
  static HWY_INLINE VF FloatsOf(const uint8_t* bytes) {
    const hn::Rebind<uint8_t, DF> d8;
    const hn::Rebind<uint16_t, DF> d16;
    const auto wide = hn::ShiftLeft<7>(hn::PromoteTo(d16, hn::LoadU(d8, bytes)));
    // The sign is one bit higher than what was shifted with it.
    const auto sign = hn::And(hn::Add(wide, wide), hn::Set(d16, uint16_t{0x8000}));
    const auto halves = hn::Or(hn::And(wide, hn::Set(d16, uint16_t{0x3F80})), sign);
#if defined(__F16C__)
    return hn::PromoteTo(kDF, hn::BitCast(hn::Rebind<hwy::float16_t, DF>(), halves));
#else
    alignas(32) uint16_t bits[kLanes];
    hn::Store(halves, d16, bits);
    return HalvesAsF32(reinterpret_cast<const uint8_t*>(bits));
#endif
  }

  template <int kShift>
  static HWY_INLINE VI NibblesAsI32(const uint8_t* bytes) {
    const hn::Rebind<uint8_t, DF> d8;
    const VI wide = hn::PromoteTo(DI(), hn::LoadU(d8, bytes));
    return hn::And(hn::ShiftRight<kShift>(wide), hn::Set(DI(), 0x0F));
  }
  template <int kShift>
  static HWY_INLINE VF NibblesAsF32(const uint8_t* bytes) {
    return hn::ConvertTo(kDF, NibblesAsI32<kShift>(bytes));
  }

  // Places in the table of nf4 as what they stand for.
  static HWY_INLINE VF NF4Of(VI places) {
    if constexpr (kLanes == 16) {
      return hn::TableLookupLanes(hn::Load(kDF, kNF4Table), hn::IndicesFromVec(kDF, places));
    } else if constexpr (kLanes == 8) {
      const auto in_half = hn::IndicesFromVec(kDF, hn::And(places, hn::Set(DI(), 7)));
      const auto is_upper = hn::RebindMask(kDF, hn::Gt(places, hn::Set(DI(), 7)));
      return hn::IfThenElse(is_upper, hn::TableLookupLanes(hn::Load(kDF, kNF4Table + 8), in_half),
                            hn::TableLookupLanes(hn::Load(kDF, kNF4Table), in_half));
    } else {
      return hn::GatherIndex(kDF, kNF4Table, places);
    }
  }

  // Bits of every byte, from bit kFrom on, moved to bit kTo on. Shifts are of 16 bits; the mask drops what comes over
  // from the neighbour.
  template <int kFrom, int kTo, int kMask>
  static HWY_INLINE VB Bits(VB bytes) {
    const D8 d8;
    const hn::Repartition<uint16_t, D8> d16;
    auto wide = hn::BitCast(d16, bytes);
    if constexpr (kFrom > kTo) wide = hn::ShiftRight<kFrom - kTo>(wide);
    if constexpr (kFrom < kTo) wide = hn::ShiftLeft<kTo - kFrom>(wide);
    return hn::And(hn::BitCast(d8, wide), hn::Set(d8, static_cast<uint8_t>(kMask)));
  }

  // The levels of iq4_nl (tensor/block_reader.h) + 128.
  alignas(16) static constexpr uint8_t kIQ4Table[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                                        129, 141, 153, 166, 181, 197, 217, 241};
  // Likewise of mxfp4.
  alignas(16) static constexpr uint8_t kMXFP4Table[16] = {128, 129, 130, 131, 132, 134, 136, 140,
                                                          128, 127, 126, 125, 124, 122, 120, 116};
  // The levels of nf4.
  alignas(64) static constexpr float kNF4Table[16] = {
      -1.0f,
      -0.6961928009986877f,
      -0.5250730514526367f,
      -0.39491748809814453f,
      -0.28444138169288635f,
      -0.18477343022823334f,
      -0.09105003625154495f,
      0.0f,
      0.07958029955625534f,
      0.16093020141124725f,
      0.24611230194568634f,
      0.33791524171829224f,
      0.44070982933044434f,
      0.5626170039176941f,
      0.7229568362236023f,
      1.0f,
  };

  const uint8_t* panel_;
  int64_t lane_;
  const uint8_t* run_codes_ = nullptr;
  int64_t run_ = 0;
  const uint8_t* run_scales_ = nullptr;
  VF d_ = hn::Zero(kDF);
  VF min_ = hn::Zero(kDF);
};
}  // namespace
}  // namespace headwise::cpu::HW_ISA

#endif  // HEADWISE_BACKEND_CPU_KERNELS_PACKED_PANEL_INL_H_
