// Products of many rows of x on tile registers (tiles-inl.h): the bf16 steps of matmul_tile-inl.h, 32 rows by 32
// outputs at a time in four registers of sums.
//
// A block of the weights of kAmxOutputs outputs is reordered as for the other instruction sets, in panels of 16
// outputs, so that 16 steps of a panel are one register. Then all rows of x go by, whose memory is one register after
// the other as it is. Sums of all rows stay in scratch from block to block, register by register, and are written out
// once: rows of `out` lie a power of two apart more often than not, and push each other out of the first-level cache.
#ifndef HEADWISE_BACKEND_CPU_KERNELS_MATMUL_AMX_INL_H_
#define HEADWISE_BACKEND_CPU_KERNELS_MATMUL_AMX_INL_H_

#include "backend/cpu/kernels/matmul_kernels.h"
#include "backend/cpu/kernels/matmul_load-inl.h"
#include "backend/cpu/kernels/tiles-inl.h"

namespace headwise::cpu::HW_ISA {
namespace {

#if HW_TILES

// A register of x serves four pairs of panels, so that rows of x may come from further away than weights do; a block's
// reordered weights, 256 KiB, come from the second-level cache for every 32 rows, and what reordering costs is spread
// over kAmxRows.
constexpr int64_t kAmxPanels = kAmxOutputs / kRegisterSteps;
// Steps that sums stay in registers for: 32 rows of x, 32 KiB, stay in the first-level cache meanwhile, while weights
// pass it by.
constexpr int64_t kAmxInnerSteps = 256;
constexpr int64_t kRegisterFloats = kRegisterRows * kRegisterSteps;
static_assert(kAmxRows % (2 * kRegisterRows) == 0 && kAmxPanels % 2 == 0 && kAmxBlockSteps % kAmxInnerSteps == 0);

// Memory that will be needed soon, asked for piece by piece while registers multiply: as many runs of as many lines.
class LinesAhead {
 public:
  HWY_INLINE LinesAhead(const void* first, int64_t num_runs, int64_t stride, int64_t run_bytes)
      : run_(static_cast<const uint8_t*>(first)), stride_(stride), run_bytes_(run_bytes), num_runs_(num_runs) {}
  int64_t num_lines() const { return num_runs_ * ((run_bytes_ + 63) / 64); }
  HWY_INLINE void Ask(int64_t num_lines) {
    for (; num_lines > 0 && num_runs_ > 0; --num_lines) {
      PrefetchToL2(run_ + at_);
      at_ += 64;
      if (at_ < run_bytes_) continue;
      at_ = 0;
      run_ += stride_;
      --num_runs_;
    }
  }

 private:
  const uint8_t* run_;
  int64_t stride_, run_bytes_, num_runs_;
  int64_t at_ = 0;
};

// What all rows of a task are multiplied with.
struct AmxBlock {
  const float* x;       // registers of the task's first 16 rows, from the block's first step on
  int64_t x_stride;     // steps of a row
  const float* panels;  // [kAmxPanels][num_steps][16]
  int64_t num_steps;    // whole registers
  float* sums;          // [rows / 16][kAmxPanels] registers
  bool is_first;        // sums begin with it
  bool is_last;         // and end with it: they are written out
};

// What is read of x after the steps under way, of both row registers: each of its lines is asked for once while they
// are multiplied, because the first of four reads would wait for the second-level cache.
struct NextRows {
  const float* x;
  int64_t lines_a_step;
};

// Registers 0 to 3 are the sums of kRowRegisters x 2, 4 and 5 hold rows of x, 6 and 7 outputs.
template <int kRowRegisters>
HWY_INLINE void AmxMicro(Tiles& tiles, const AmxBlock& block, int64_t row_register, int64_t panel, int64_t first_step,
                         int64_t num_steps, NextRows& next, int64_t lines_a_step, LinesAhead& ahead) {
  constexpr int64_t kStride = kRegisterSteps * sizeof(float);
  float* const sums0 = block.sums + (row_register * kAmxPanels + panel) * kRegisterFloats;
  float* const sums1 = sums0 + kAmxPanels * kRegisterFloats;
  if (block.is_first && first_step == 0) {
    tiles.Zero<0>();
    tiles.Zero<1>();
    if constexpr (kRowRegisters == 2) tiles.Zero<2>();
    if constexpr (kRowRegisters == 2) tiles.Zero<3>();
  } else {
    tiles.Load<0>(sums0, kStride);
    tiles.Load<1>(sums0 + kRegisterFloats, kStride);
    if constexpr (kRowRegisters == 2) tiles.Load<2>(sums1, kStride);
    if constexpr (kRowRegisters == 2) tiles.Load<3>(sums1 + kRegisterFloats, kStride);
  }
  const float* x0 = block.x + (row_register * block.x_stride + first_step) * kRegisterRows;
  const float* x1 = x0 + kRegisterRows * block.x_stride;
  const float* w0 = block.panels + (panel * block.num_steps + first_step) * kRegisterSteps;
  const float* w1 = w0 + block.num_steps * kRegisterSteps;
  for (int64_t step = 0; step < num_steps; step += kRegisterSteps) {
    tiles.LoadPassing<6>(w0 + step * kRegisterSteps, kStride);
    tiles.Load<4>(x0 + step * kRegisterRows, kStride);
    tiles.DotBF16<0, 4, 6>();
    tiles.LoadPassing<7>(w1 + step * kRegisterSteps, kStride);
    tiles.DotBF16<1, 4, 7>();
    ahead.Ask(lines_a_step);
    for (int64_t i = 0; i < next.lines_a_step; ++i, next.x += kRegisterSteps) {
      __builtin_prefetch(next.x, /*rw=*/0, /*locality=*/3);
      __builtin_prefetch(next.x + kRegisterRows * block.x_stride, /*rw=*/0, /*locality=*/3);
    }
    if constexpr (kRowRegisters == 2) {
      tiles.Load<5>(x1 + step * kRegisterRows, kStride);
      tiles.DotBF16<2, 5, 6>();
      tiles.DotBF16<3, 5, 7>();
    }
  }
  tiles.Store<0>(sums0, kStride);
  tiles.Store<1>(sums0 + kRegisterFloats, kStride);
  if constexpr (kRowRegisters == 2) tiles.Store<2>(sums1, kStride);
  if constexpr (kRowRegisters == 2) tiles.Store<3>(sums1 + kRegisterFloats, kStride);
}

// Sums of rows [first, last) to `out`.
inline void AmxWriteOut(const TileArgs& args, const float* sums, const float* bias, int64_t first, int64_t last) {
  for (int64_t row = first; row < last; ++row) {
    const float* from =
        sums + (row / kRegisterRows * kAmxPanels * kRegisterRows + row % kRegisterRows) * kRegisterSteps;
    float* out = args.out + row * args.out_stride;
    for (int64_t output = 0; output < args.num_outputs; output += kLanes) {
      const float* sum = from + output / kRegisterSteps * kRegisterFloats + output % kRegisterSteps;
      const VF value = hn::Add(hn::Load(kDF, sum), hn::Load(kDF, bias + output));
      if (args.num_outputs - output >= kLanes) {
        hn::StoreU(args.add ? hn::Add(hn::LoadU(kDF, out + output), value) : value, kDF, out + output);
        continue;
      }
      alignas(64) float values[kLanes];
      hn::Store(value, kDF, values);
      for (int64_t i = 0; i < args.num_outputs - output; ++i) {
        out[output + i] = args.add ? out[output + i] + values[i] : values[i];
      }
    }
  }
}

// All rows times the block. `ahead` is what the next block will read of the weights.
inline void AmxMultiply(Tiles& tiles, const TileArgs& args, const AmxBlock& block, const float* bias,
                        LinesAhead& ahead) {
  const int64_t num_registers = (args.num_rows + kRegisterRows - 1) / kRegisterRows;
  const int64_t num_panels = (args.num_outputs + kRegisterSteps - 1) / kRegisterSteps;
  const int64_t micro_steps = (num_registers + 1) / 2 * ((num_panels + 1) / 2) * (block.num_steps / kRegisterSteps);
  const int64_t lines_a_step = micro_steps > 0 ? (ahead.num_lines() + micro_steps - 1) / micro_steps : 0;
  for (int64_t row = 0; row < num_registers; row += 2) {
    const int64_t first_row = row * kRegisterRows;
    const int64_t last_row =
        first_row + 2 * kRegisterRows < args.num_rows ? first_row + 2 * kRegisterRows : args.num_rows;
    if (block.is_last) {
      for (int64_t r = first_row; r < last_row; ++r) {
        for (int64_t i = 0; i < args.num_outputs; i += 16) __builtin_prefetch(args.out + r * args.out_stride + i, 1, 2);
      }
    }
    for (int64_t first = 0; first == 0 || first < block.num_steps; first += kAmxInnerSteps) {
      const int64_t num_steps = block.num_steps - first < kAmxInnerSteps ? block.num_steps - first : kAmxInnerSteps;
      const bool goes_on = first + num_steps < block.num_steps;
      NextRows next = {
          .x = block.x +
               (goes_on ? row * block.x_stride + first + num_steps : (row + 2) * block.x_stride) * kRegisterRows,
          .lines_a_step = kRegisterRows * 2 / num_panels};
      for (int64_t panel = 0; panel < num_panels; panel += 2) {
        if (row + 1 < num_registers) {
          AmxMicro<2>(tiles, block, row, panel, first, num_steps, next, lines_a_step, ahead);
        } else {
          AmxMicro<1>(tiles, block, row, panel, first, num_steps, next, lines_a_step, ahead);
        }
      }
    }
    if (block.is_last) AmxWriteOut(args, block.sums, bias, first_row, last_row);
  }
}

// The weights of a block that begins with element `begin`: where they lie, in runs of K.
inline LinesAhead WeightsOf(const TileArgs& args, int64_t begin, int64_t num_steps) {
  const auto* weight = static_cast<const uint8_t*>(args.weight);
  const int64_t unit = IsPacked(args.type) ? kPanelRows : 1;
  const int64_t num_runs = (args.num_outputs + unit - 1) / unit;
  const int64_t run_stride =
      IsPacked(args.type) ? PanelBytes(args.type, args.depth) : args.depth * (args.type == WeightType::kF32 ? 4 : 2);
  const int64_t depth = args.depth > 0 ? args.depth : 1;
  // Behind the last block lies, most often, this thread's next task.
  if (begin >= args.depth) {
    weight += num_runs * run_stride;
    begin = 0;
  }
  const int64_t num_elements = num_steps * 2 < depth - begin ? num_steps * 2 : depth - begin;
  return LinesAhead(weight + run_stride * begin / depth, num_runs, run_stride, run_stride * num_elements / depth);
}

// kPack(args, first element, steps) fills scratch with a block of the weights.
template <void (*kPack)(const TileArgs&, int64_t, int64_t)>
void AmxTileOf(const TileArgs& args) {
  alignas(64) float bias[kAmxOutputs];
  for (int64_t i = 0; i < kAmxOutputs; ++i) bias[i] = args.bias != nullptr && i < args.num_outputs ? args.bias[i] : 0;
  const int64_t num_steps = args.x_stride;
  AmxBlock block = {.x = args.x,
                    .x_stride = args.x_stride,
                    .panels = args.scratch,
                    .num_steps = 0,
                    .sums = args.scratch + kAmxOutputs * kAmxBlockSteps,
                    .is_first = true,
                    .is_last = false};
  Tiles tiles;
  // One pass even without steps: sums have to be zero.
  for (int64_t first = 0; first == 0 || first < num_steps; first += kAmxBlockSteps) {
    block.num_steps = num_steps - first < kAmxBlockSteps ? num_steps - first : kAmxBlockSteps;
    block.is_last = first + block.num_steps >= num_steps;
    kPack(args, first * BF16Steps::kPerStep, block.num_steps);
    LinesAhead ahead = WeightsOf(args, (first + block.num_steps) * BF16Steps::kPerStep, kAmxBlockSteps);
    AmxMultiply(tiles, args, block, bias, ahead);
    block.x += block.num_steps * kRegisterRows;
    block.is_first = false;
  }
}

#endif

}  // namespace
}  // namespace headwise::cpu::HW_ISA

#endif  // HEADWISE_BACKEND_CPU_KERNELS_MATMUL_AMX_INL_H_
