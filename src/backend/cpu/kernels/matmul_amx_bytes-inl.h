// Products of many rows in bytes on tile registers (tiles-inl.h), Compute::kW8A8: x and block-format weights are
// rounded to bytes with one scale for a group of 512 elements of a row of x, and of an output. Sums of a group are
// whole numbers, and a register's product has twice the elements of K that one of bf16 has. All else is as in
// matmul_amx-inl.h.
//
// A group's sums leave their registers between the first products of the next one, and are scaled by vectors between
// the products of the one after that, when they have long arrived in the first-level cache.
#ifndef HEADWISE_BACKEND_CPU_KERNELS_MATMUL_AMX_BYTES_INL_H_
#define HEADWISE_BACKEND_CPU_KERNELS_MATMUL_AMX_BYTES_INL_H_

#include "backend/cpu/kernels/matmul_amx-inl.h"
#include "backend/cpu/kernels/packed_panel-inl.h"

namespace headwise::cpu::HW_ISA {
namespace {

#if HW_TILES

constexpr int64_t kGroupRegisters = kGroupElements / kRegisterBytes;
static_assert(kGroupRegisters == 8 && kAmxBlockGroups * kGroupElements == 4 * kAmxBlockSteps);

// What a group's sums are scaled with. Rows count from the work's first, outputs from its panel's.
struct RoundedScales {
  static constexpr bool kAsksForScratch = true;
  const float* of_x;
  const float* of_outputs;  // [kPairOutputs]

  HWY_INLINE VF OfOutputs(int64_t panel, int64_t sub) const {
    return hn::Load(kDF, of_outputs + panel * kRegisterSteps + sub);
  }
  HWY_INLINE VI Centered(VI sum, int64_t /*row*/) const { return sum; }
};

// Sums of bytes of kRowRegisters x 2 registers: of the group under way in registers 0 to 3, of the one before it on
// their way to memory, of the one before that being scaled.
template <typename Scales>
class AmxByteSums {
 public:
  HWY_INLINE AmxByteSums(Tiles& tiles, float* waiting) : tiles_(tiles), codes_(reinterpret_cast<int32_t*>(waiting)) {}
  // What becomes of a group's sums.
  struct Group {
    AmxPlace from, to;
    Scales scales = {};
    int row_registers = 0;  // 0: none
  };
  HWY_INLINE void BeginGroup(const Group& group) {
    scaled_ = left_;
    left_ = current_;
    current_ = group;
    parity_ = !parity_;
    if (group.row_registers == 1 && left_.row_registers == 2) {
      // Its products do not come to these.
      Replace<2>();
      Replace<3>();
    }
  }
  // Comes before the first product of a group that adds to it.
  template <int kSum>
  HWY_INLINE void Replace() {
    if (left_.row_registers * 2 > kSum) tiles_.Store<kSum>(CodesOf(parity_) + kSum * kRegisterFloats, kRegisterBytes);
    tiles_.Zero<kSum>();
  }
  HWY_INLINE void ReplaceAll() {
    Replace<0>();
    Replace<1>();
    Replace<2>();
    Replace<3>();
  }
  // Part of where the sums belong that are to be scaled beside the next group's products.
  template <int kPart>
  HWY_INLINE void Ask() const {
    if (Scales::kAsksForScratch || left_.from.is_out) left_.from.template Ask<kPart>();
    if (left_.to.first == left_.from.first) return;
    if (Scales::kAsksForScratch || left_.to.is_out) left_.to.template Ask<kPart>();
  }
  // An eighth of what is to be scaled beside a group's products: half a register.
  HWY_INLINE void Scale(int part) const {
    if (part / 2 >= scaled_.row_registers * 2) return;
    constexpr int64_t kRows = kRegisterRows / 2;
    const int64_t panel = part / 2 % 2;
    const int64_t first = part / 4 * kRegisterRows + part % 2 * kRows;
    const int32_t* codes = CodesOf(!parity_) + (part / 2 * kRegisterRows + part % 2 * kRows) * kRegisterSteps;
    float* to = scaled_.to.Row(first) + panel * scaled_.to.panel_stride;
    const bool is_sum = scaled_.from.first != nullptr;
    const float* from = is_sum ? scaled_.from.Row(first) + panel * scaled_.from.panel_stride : nullptr;
    HW_UNROLL
    for (int64_t sub = 0; sub < kRegisterSteps; sub += kLanes) {
      const VF weight_scale = scaled_.scales.OfOutputs(panel, sub);
      HW_UNROLL
      for (int64_t row = 0; row < kRows; ++row) {
        const VI code_sum = scaled_.scales.Centered(hn::Load(DI(), codes + row * kRegisterSteps + sub), first + row);
        const VF scaled = hn::Mul(hn::ConvertTo(kDF, code_sum), hn::Set(kDF, scaled_.scales.of_x[first + row]));
        const VF sum = is_sum ? hn::LoadU(kDF, from + row * scaled_.from.row_stride + sub) : hn::Zero(kDF);
        hn::StoreU(hn::MulAdd(scaled, weight_scale, sum), kDF, to + row * scaled_.to.row_stride + sub);
      }
    }
  }
  HWY_NOINLINE void Finish() {
    if (current_.row_registers + left_.row_registers == 0) return;
    for (int i = 0; i < 2; ++i) {
      BeginGroup({});
      ReplaceAll();
      for (int part = 0; part < 8; ++part) Scale(part);
    }
    BeginGroup({});
  }

 private:
  HWY_INLINE int32_t* CodesOf(bool parity) const { return codes_ + (parity ? 4 * kRegisterFloats : 0); }

  Tiles& tiles_;
  int32_t* codes_;  // [2][4 registers]
  bool parity_ = false;
  Group current_, left_, scaled_;
};
static_assert(kAmxWaitingFloats == 2 * 4 * kRegisterFloats);

template <int kRowRegisters, typename Register>
HWY_INLINE void AmxMicro(Tiles& tiles, const AmxBlock& block, const AmxWork& work, AmxByteSums<RoundedScales>& sums,
                         AmxBeside<Register>& beside) {
  const AmxOperands<kRowRegisters, true> operands(block, work.row_register);
  constexpr int64_t kGroupSteps = kGroupRegisters * kRegisterSteps;
  AmxByteSums<RoundedScales>::Group group = {
      .from = work.from,
      .to = work.to,
      .scales = {.of_x = block.x_scales + work.row_register * kRegisterRows, .of_outputs = block.scales},
      .row_registers = kRowRegisters,
  };
  // One pass even without steps: sums have to be zero.
  for (int64_t first = 0; first == 0 || first < block.num_steps; first += kGroupSteps) {
    sums.BeginGroup(group);
    group.from = group.to;
    group.scales.of_x += block.x_scales_stride;
    group.scales.of_outputs += kPairOutputs;
    const auto one_step = [&](int64_t part) HW_INLINE_LAMBDA {
      operands.Multiply(tiles, first + part * kRegisterSteps, [&]<int kSum>() HW_INLINE_LAMBDA {
        if (part == 0) sums.Replace<kSum>();
      });
    };
    beside.reordering.Finish(beside.registers_per_group);
    if (first + kGroupSteps > block.num_steps) {
      if (block.num_steps == 0) sums.ReplaceAll();
      for (int part = 0; part < kGroupRegisters; ++part) {
        if (first + part * kRegisterSteps < block.num_steps) one_step(part);
        sums.Scale(part);
      }
      continue;
    }
    const auto one_part = [&]<int kPart>() HW_INLINE_LAMBDA {
      one_step(kPart);
      sums.Ask<kPart>();
      beside.AskForX();
      sums.Scale(kPart);
    };
    if (beside.reordering.num_left() == 0) {
      ForEighths(one_part);
      continue;
    }
    const Register next = beside.reordering.Next();
    ForEighths([&]<int kPart>() HW_INLINE_LAMBDA {
      one_part.template operator()<kPart>();
      next.template Fill<kPart>();
    });
  }
}

// How the codes of a format become bytes: code * a + b in 16-bit fixed point.
template <WeightType kType>
struct CodesToBytes {
  static constexpr PackedFormat kFormat = FormatOf(kType);
  // Codes of 8 bits are places in a table of signed bytes, or signed bytes themselves, + 128: there is no b.
  static constexpr bool kAreSigned = PanelReader<kType>::kCodeBits == 8;
  // What weights are between, in units of the format's scale; of tq2_0 so that its three levels become whole numbers.
  static constexpr float kLowest = kType == WeightType::kMXFP4 ? -12.0f
                                   : kFormat.has_levels        ? -127.0f
                                                               : static_cast<float>(-kFormat.offset);
  static constexpr float kHighest = kType == WeightType::kMXFP4   ? 12.0f
                                    : kType == WeightType::kTQ2_0 ? 2.0f * 127 / 126
                                    : kFormat.has_levels          ? 113.0f
                                                         : static_cast<float>((1 << kFormat.bits) - 1 - kFormat.offset);
  // Products are of 15 bits behind the point. Unsigned codes are shifted to just below it, signed ones so far that
  // their factor is below 1; unsigned ones keep kFraction bits until b is added.
  static constexpr int kFraction = kAreSigned ? 0 : 6;
  static constexpr int kShift = !kAreSigned ? 15 - kFormat.bits : kType == WeightType::kMXFP4 ? 4 : 0;
  static constexpr float kUnitOfA = static_cast<float>(1 << (15 + kFraction - kShift));
  static constexpr float kUnitOfB = static_cast<float>(1 << kFraction);

  // Fixed-point numbers of outputs, each in both halves of its lane.
  static HWY_INLINE VI Fixed(VF value, int32_t plus) {
    const VI rounded = hn::Min(hn::Add(hn::NearestInt(value), hn::Set(DI(), plus)), hn::Set(DI(), 0x7FFF));
    return hn::Or(hn::And(rounded, hn::Set(DI(), 0xFFFF)), hn::ShiftLeft<16>(rounded));
  }

  static HWY_INLINE VB Bytes(VB codes, VI a, VI b) {
    const hn::Repartition<int16_t, D8> d16;
    const auto factor = hn::BitCast(d16, a);
    const auto low_half = hn::Set(d16, int16_t{0xFF});
    if constexpr (kAreSigned) {
      const auto pairs = hn::BitCast(d16, hn::Xor(codes, hn::Set(D8(), uint8_t{0x80})));
      const auto even = hn::ShiftRight<8 - kShift>(hn::ShiftLeft<8>(pairs));
      auto odd = hn::ShiftRight<8 - kShift>(pairs);
      if constexpr (kShift > 0) odd = hn::AndNot(hn::Set(d16, int16_t{(1 << kShift) - 1}), odd);
      const auto high = hn::ShiftLeft<8>(hn::MulFixedPoint15(odd, factor));
      return hn::BitCast(D8(), hn::Or(high, hn::And(hn::MulFixedPoint15(even, factor), low_half)));
    } else {
      const auto addend = hn::BitCast(d16, b);
      const auto pairs = hn::BitCast(d16, codes);
      const auto even = hn::ShiftLeft<kShift>(pairs);
      const auto odd = hn::ShiftLeft<kShift - 8>(hn::AndNot(low_half, pairs));
      const auto low = hn::ShiftRight<kFraction>(hn::Add(hn::MulFixedPoint15(even, factor), addend));
      const auto high = hn::ShiftLeft<8 - kFraction>(hn::Add(hn::MulFixedPoint15(odd, factor), addend));
      return hn::BitCast(D8(), hn::Or(hn::AndNot(low_half, high), hn::And(low, low_half)));
    }
  }
};

// Below it nothing is left of a group: the inverse might not be finite.
constexpr float kLeastMagnitude = 0x1p-100f;

// The weights of 16 outputs and 64 elements of K in the making: bytes, [16 quads][16 outputs][4].
template <WeightType kType>
class BytesRegister {
  static constexpr PackedFormat kFormat = FormatOf(kType);
  static constexpr int kHalves = kFormat.has_half_runs ? 2 : 1;
  using Format = CodesToBytes<kType>;

 public:
  using Sums = AmxByteSums<RoundedScales>;

  // What the registers of 16 outputs and a group share.
  class Group {
   public:
    HWY_INLINE explicit Group(float* scales) : scales_(scales) {}
    HWY_NOINLINE void Begin(const TileArgs& args, int64_t first_output, int64_t group) {
      const uint8_t* panel = PanelOf(args, first_output);
      const int64_t runs_left = args.depth / kRunElements - group * kGroupRuns;
      const int64_t num_runs = runs_left < kGroupRuns ? runs_left : kGroupRuns;
      float* scales = scales_ + group % kAmxBlockGroups * kPairOutputs + first_output % kPairOutputs;
      for (int64_t sub = 0; sub < kSubPanels; ++sub) {
        alignas(64) float a[kGroupRuns][kHalves][kLanes];
        alignas(64) float b[kGroupRuns][kHalves][kLanes];
        PanelReader<kType> reader(panel, sub);
        VF largest = hn::Zero(kDF);
        VF others = hn::Zero(kDF);  // 0, or NaN where a number is one or is infinite
        for (int64_t run = 0; run < num_runs; ++run) {
          reader.BeginRun(group * kGroupRuns + run);
          HW_UNROLL
          for (int half = 0; half < kHalves; ++half) {
            const VF scale = half == 0 ? reader.template A<0>() : reader.template A<1>();
            VF low = hn::Mul(scale, hn::Set(kDF, Format::kLowest));
            if constexpr (kFormat.has_min) low = half == 0 ? reader.template B<0>() : reader.template B<1>();
            const VF high = hn::MulAdd(scale, hn::Set(kDF, Format::kHighest - Format::kLowest), low);
            largest = hn::Max(largest, hn::Max(hn::Abs(low), hn::Abs(high)));
            others = hn::MulAdd(high, hn::Zero(kDF), others);
            hn::Store(scale, kDF, a[run][half]);
            hn::Store(low, kDF, b[run][half]);
          }
        }
        const auto is_some = hn::Gt(largest, hn::Set(kDF, kLeastMagnitude));
        const VF inverse = hn::IfThenElseZero(is_some, hn::Div(hn::Set(kDF, 127.0f), largest));
        hn::Store(hn::MulAdd(largest, hn::Set(kDF, 1.0f / 127.0f), others), kDF, scales + sub * kLanes);
        const VF unit_of_a = hn::Mul(inverse, hn::Set(kDF, Format::kUnitOfA));
        const VF unit_of_b = hn::Mul(inverse, hn::Set(kDF, Format::kUnitOfB));
        for (int64_t run = 0; run < num_runs; ++run) {
          HW_UNROLL
          for (int half = 0; half < kHalves; ++half) {
            Lines& lines = lines_[run];
            const VI factor = Format::Fixed(hn::Mul(hn::Load(kDF, a[run][half]), unit_of_a), 0);
            hn::Store(factor, DI(), lines.a[half] + sub * kLanes);
            if constexpr (!Format::kAreSigned) {
              // Half a unit more, to round to nearest.
              const VF addend = hn::Mul(hn::Load(kDF, b[run][half]), unit_of_b);
              hn::Store(Format::Fixed(addend, 1 << (Format::kFraction - 1)), DI(), lines.b[half] + sub * kLanes);
            }
          }
        }
      }
    }

   private:
    friend BytesRegister;
    static constexpr int64_t kGroupRuns = kGroupElements / kRunElements;
    struct Lines {
      alignas(64) int32_t a[kHalves][kPanelRows];
      alignas(64) int32_t b[kHalves][kPanelRows];
    };
    Lines lines_[kGroupRuns];
    float* scales_;
  };

  HWY_INLINE BytesRegister(const TileArgs& args, int64_t first_output, int64_t step, float* to, Group& group)
      : group_(group), to_(reinterpret_cast<uint8_t*>(to)) {
    const int64_t first_run = step * 4 / kRunElements;
    run_of_group_ = first_run % Group::kGroupRuns;
    is_whole_ = first_run + 1 < args.depth / kRunElements;
    if (run_of_group_ == 0) group.Begin(args, first_output, first_run / Group::kGroupRuns);
    // Of these codes alone are read: a block may have begun before.
    HW_UNROLL
    for (int64_t run = 0; run < 2; ++run) {
      HW_UNROLL
      for (int64_t sub = 0; sub < kSubPanels; ++sub) {
        readers_[run][sub] = PanelReader<kType>(PanelOf(args, first_output), sub);
        readers_[run][sub].BeginRun(first_run + (is_whole_ ? run : 0));
      }
      readers_[run][0].Prefetch();
    }
  }
  template <int kPart>
  HWY_INLINE void Fill() const {
    FillQuad<kPart / 4, kPart % 4 * 2>();
    FillQuad<kPart / 4, kPart % 4 * 2 + 1>();
  }

 private:
  static HWY_INLINE const uint8_t* PanelOf(const TileArgs& args, int64_t first_output) {
    return static_cast<const uint8_t*>(args.weight) + first_output / kPanelRows * PanelBytes(kType, args.depth);
  }
  template <int kRun, int kQuad>
  HWY_INLINE void FillQuad() const {
    constexpr int kHalf = kHalves == 2 ? kQuad / 4 : 0;
    const typename Group::Lines& lines = group_.lines_[run_of_group_ + kRun];
    uint8_t* to = to_ + (kRun * kRunQuads + kQuad) * kQuadBytes;
    HW_UNROLL
    for (int64_t sub = 0; sub < kSubPanels; ++sub, to += 4 * kLanes) {
      if (kRun == 1 && !is_whole_) {
        hn::Store(hn::Zero(D8()), D8(), to);
        continue;
      }
      const VI a = hn::Load(DI(), lines.a[kHalf] + sub * kLanes);
      const VI b = Format::kAreSigned ? a : hn::Load(DI(), lines.b[kHalf] + sub * kLanes);
      hn::Store(Format::Bytes(readers_[kRun][sub].template Codes<kQuad>(), a, b), D8(), to);
    }
  }

  Group& group_;
  uint8_t* to_;
  int64_t run_of_group_;
  bool is_whole_;  // or K ends in the middle
  PanelReader<kType> readers_[2][kSubPanels];
};

#endif

}  // namespace
}  // namespace headwise::cpu::HW_ISA

#endif  // HEADWISE_BACKEND_CPU_KERNELS_MATMUL_AMX_BYTES_INL_H_
