// Products in bytes on tile registers (matmul_amx_bytes-inl.h) of weights whose runs have had one scale for each group
// since they were loaded (RoundToGroupScales, packed_weights.h): registers read codes where they lie, nothing is made
// of them.
//
// All of K of some rows of x that fit there together stays in the second-level cache, while two panels of 16 outputs
// after the other pass by: of few rows K as a whole, so that weights come as one stream, at the speed of memory; of
// many rows a group of K at a time, whose sums wait for the next in scratch, as in matmul_amx-inl.h.
#ifndef HEADWISE_BACKEND_CPU_KERNELS_MATMUL_AMX_GROUPS_INL_H_
#define HEADWISE_BACKEND_CPU_KERNELS_MATMUL_AMX_GROUPS_INL_H_

#include "backend/cpu/kernels/matmul_amx_bytes-inl.h"

namespace headwise::cpu::HW_ISA {
namespace {

#if HW_TILES

// Bytes of x that pass by each panel; a quarter and four times as many take as long, or up to 8 % longer.
constexpr int64_t kAmxPassingBytes = 256 << 10;

// Where codes, unsigned, and scales of two panels lie, from a group of K on.
class GroupOfPanels {
 public:
  static constexpr WeightType kType = WeightType::kQ8_0;
  static constexpr int64_t kGroupRuns = kGroupElements / kRunElements;
  static constexpr int64_t kRegisterRuns = kRegisterBytes / kRunElements;
  // From one register of a panel to the next.
  static constexpr int64_t kStride = RunCodesAt(kType, kRegisterRuns) - RunCodesAt(kType, 0);
  static constexpr int64_t kBytes = kGroupRegisters * kStride;
  static_assert(BlockScalesAt(kType, kGroupRuns) == kBytes &&
                RunCodesAt(kType, kGroupRuns) == RunCodesAt(kType, 0) + kBytes);
  static_assert(RunCodesAt(kType, 1) == RunCodesAt(kType, 0) + kRegisterBytes * kRegisterRows / kRegisterRuns);

  GroupOfPanels(const TileArgs& args, int64_t pair, int64_t group) {
    const int64_t panel_bytes = PanelBytes(kType, args.depth);
    first_[0] = static_cast<const uint8_t*>(args.weight) + 2 * pair * panel_bytes + group * kBytes;
    first_[1] = first_[0] + panel_bytes;
  }
  // Of a pair with one panel the second is the first again, and comes to nothing.
  void HoldTo(int64_t num_outputs, int64_t pair) {
    if (num_outputs - pair * kPairOutputs <= kPanelRows) first_[1] = first_[0];
  }
  HWY_INLINE const uint8_t* Codes(int panel, int64_t i) const {
    return first_[panel] + RunCodesAt(kType, 0) + i * kStride;
  }
  HWY_INLINE const uint8_t* Scales(int panel) const { return first_[panel] + BlockScalesAt(kType, 0); }

 private:
  const uint8_t* first_[2];
};

struct GroupScales {
  // Nothing else is on its way to the first-level cache; what asks would do is then less than what they cost.
  static constexpr bool kAsksForScratch = false;
  const float* of_x;
  const int32_t* x_starts;
  const uint8_t* of_outputs[2];  // f16, of each panel

  HWY_INLINE VF OfOutputs(int64_t panel, int64_t sub) const { return HalvesAsF32(of_outputs[panel] + 2 * sub); }
  HWY_INLINE VI Centered(VI sum, int64_t row) const { return hn::Add(sum, hn::Set(DI(), x_starts[row])); }
};

// Lines that the second-level cache is asked for beside products, so many beside each register of K.
class LinesAhead {
 public:
  LinesAhead(const void* first, int64_t num_bytes, int64_t num_registers)
      : at_(static_cast<const uint8_t*>(first)),
        end_(at_ + num_bytes),
        per_register_((num_bytes / 64 + num_registers - 1) / num_registers) {}
  HWY_INLINE void Some() {
    for (int64_t i = 0; i < per_register_ && at_ < end_; ++i, at_ += 64) PrefetchToL2(at_);
  }

 private:
  const uint8_t *at_, *end_;
  int64_t per_register_;
};

// A group of K of 32 rows, or 16, and 32 outputs.
template <int kRowRegisters>
HWY_INLINE void AmxGroupMicro(Tiles& tiles, const float* x, int64_t x_register_stride, const GroupOfPanels& panels,
                              int64_t num_registers, const AmxByteSums<GroupScales>::Group& group,
                              AmxByteSums<GroupScales>& sums, LinesAhead (&ahead)[2]) {
  sums.BeginGroup(group);
  const auto one_register = [&](int64_t i) HW_INLINE_LAMBDA {
    const float* const x0 = x + i * kRegisterFloats;
    const auto before = [&]<int kSum>() HW_INLINE_LAMBDA {
      if (i == 0) sums.template Replace<kSum>();
    };
    tiles.LoadPassing<4>(x0, kRegisterBytes);
    tiles.Load<6>(panels.Codes(0, i), kQuadBytes);
    before.template operator()<0>();
    tiles.DotInt8<0, 4, 6>();
    tiles.Load<7>(panels.Codes(1, i), kQuadBytes);
    before.template operator()<1>();
    tiles.DotInt8<1, 4, 7>();
    if constexpr (kRowRegisters == 2) {
      tiles.LoadPassing<5>(x0 + x_register_stride, kRegisterBytes);
      before.template operator()<2>();
      tiles.DotInt8<2, 5, 6>();
      before.template operator()<3>();
      tiles.DotInt8<3, 5, 7>();
    }
  };
  if (num_registers == kGroupRegisters) {
    ForEighths([&]<int kPart>() HW_INLINE_LAMBDA {
      one_register(kPart);
      sums.template Ask<kPart>();
      ahead[kPart % 2].Some();
      sums.Scale(kPart);
    });
    return;
  }
  for (int part = 0; part < kGroupRegisters; ++part) {
    if (part < num_registers) one_register(part);
    sums.Scale(part);
  }
}

inline void AmxGroupsTile(const TileArgs& args) {
  const int64_t num_registers = args.x_stride / kRegisterSteps;  // of K
  const int64_t num_groups = (num_registers + kGroupRegisters - 1) / kGroupRegisters;
  const int64_t num_pairs = (args.num_outputs + kPairOutputs - 1) / kPairOutputs;
  const int64_t row_registers = (args.num_rows + kRegisterRows - 1) / kRegisterRows;
  const int64_t row_pairs = (row_registers + 1) / 2;
  const int64_t fitting = kAmxPassingBytes / (row_registers * kRegisterRows * kGroupElements);
  const int64_t groups_together = fitting > 1 ? fitting : 1;
  const auto registers_of = [&](int64_t group) HW_INLINE_LAMBDA {
    const int64_t left = num_registers - group * kGroupRegisters;
    return left < kGroupRegisters ? left : kGroupRegisters;
  };
  // Where groups lie in blocks of as many steps.
  static_assert(kAmxBlockGroups == 1);
  const int64_t x_register_stride = registers_of(0) * kRegisterFloats;
  float* const scratch_sums = args.scratch + kAmxWaitingFloats;
  for (int64_t pair = 0; pair < num_pairs; ++pair) AmxPair(args, scratch_sums, pair).Prepare();
  // Behind the last of all the next task's, which are its neighbours.
  const auto next_panels = [&](int64_t pair, int64_t group, int64_t first, int64_t end) {
    if (group + 1 < end) return GroupOfPanels(args, pair, group + 1);
    if (pair + 1 < num_pairs) return GroupOfPanels(args, pair + 1, first);
    return end < num_groups ? GroupOfPanels(args, 0, end) : GroupOfPanels(args, num_pairs, 0);
  };
  Tiles tiles;
  AmxByteSums<GroupScales> sums(tiles, args.scratch);
  for (int64_t first = 0; first < num_groups; first += groups_together) {
    const int64_t end = first + groups_together < num_groups ? first + groups_together : num_groups;
    for (int64_t pair = 0; pair < num_pairs; ++pair) {
      const AmxPair place(args, scratch_sums, pair);
      for (int64_t group = first; group < end; ++group) {
        GroupOfPanels panels(args, pair, group);
        panels.HoldTo(args.num_outputs, pair);
        const GroupOfPanels next = next_panels(pair, group, first, end);
        // Beside every other register of K each.
        const int64_t beside = row_pairs * kGroupRegisters / 2;
        LinesAhead ahead[2] = {{next.Scales(0), GroupOfPanels::kBytes, beside},
                               {next.Scales(1), GroupOfPanels::kBytes, beside}};
        for (int64_t row = 0; row < row_registers; row += 2) {
          const AmxWork work = place.Work(row, group == 0, group + 1 == num_groups);
          const int64_t first_scale = group * args.x_scales_stride + row * kRegisterRows;
          const bool is_pair = row + 1 < row_registers;
          const AmxByteSums<GroupScales>::Group sums_of = {
              .from = work.from,
              .to = work.to,
              .scales = {.of_x = args.x_scales + first_scale,
                         .x_starts = args.x_starts + first_scale,
                         .of_outputs = {panels.Scales(0), panels.Scales(1)}},
              .row_registers = is_pair ? 2 : 1};
          const float* const x = args.x + group * args.x_block_stride + row * x_register_stride;
          if (is_pair) {
            AmxGroupMicro<2>(tiles, x, x_register_stride, panels, registers_of(group), sums_of, sums, ahead);
          } else {
            AmxGroupMicro<1>(tiles, x, x_register_stride, panels, registers_of(group), sums_of, sums, ahead);
          }
        }
      }
    }
  }
  sums.Finish();
  for (int64_t pair = 0; pair < num_pairs; ++pair) AmxPair(args, scratch_sums, pair).Copy();
}

#endif

}  // namespace
}  // namespace headwise::cpu::HW_ISA

#endif  // HEADWISE_BACKEND_CPU_KERNELS_MATMUL_AMX_GROUPS_INL_H_
