// Products of many rows of x on tile registers (tiles-inl.h): the bf16 steps of matmul_tile-inl.h, 32 rows by 32
// outputs at a time in four registers of sums.
//
// A block of the weights of kAmxOutputs outputs is reordered as for the other instruction sets, in panels of 16
// outputs, so that 16 steps of a panel are one register. Then all rows of x go by, whose memory is one register after
// the other as it is, and between their products the next block is reordered: vectors work while registers multiply.
// Sums of all rows stay in scratch from block to block, register by register, and are written out once: rows of `out`
// lie a power of two apart more often than not, and push each other out of the first-level cache.
#ifndef HEADWISE_BACKEND_CPU_KERNELS_MATMUL_AMX_INL_H_
#define HEADWISE_BACKEND_CPU_KERNELS_MATMUL_AMX_INL_H_

#include "backend/cpu/kernels/matmul_kernels.h"
#include "backend/cpu/kernels/matmul_load-inl.h"
#include "backend/cpu/kernels/tiles-inl.h"

namespace headwise::cpu::HW_ISA {
namespace {

#if HW_TILES

constexpr int64_t kAmxPanels = kAmxOutputs / kRegisterSteps;
constexpr int64_t kRegisterFloats = kRegisterRows * kRegisterSteps;
static_assert(kAmxRows % (2 * kRegisterRows) == 0 && kAmxPanels % 2 == 0);

// body.operator()<0>() ... <7>().
template <int kPart = 0, typename Body>
HWY_INLINE void ForEighths(const Body& body) {
  body.template operator()<kPart>();
  if constexpr (kPart + 1 < 8) ForEighths<kPart + 1>(body);
}

// The weights of a block, reordered register by register. A Register is one of them in the making: of 16 outputs and
// 16 steps, filled in eight parts that may come one by one.
template <typename Register>
class Reordering {
 public:
  HWY_INLINE Reordering(const TileArgs& args, int64_t first_step, int64_t num_steps, float* panels)
      : args_(args),
        first_step_(first_step),
        steps_(num_steps / kRegisterSteps),
        left_((args.num_outputs + kRegisterSteps - 1) / kRegisterSteps * steps_),
        to_(panels) {}
  int64_t num_left() const { return left_; }
  // Requires: one is left.
  HWY_INLINE Register Next() {
    const Register next(args_, panel_ * kRegisterSteps, first_step_ + at_ * kRegisterSteps, to_);
    to_ += kRegisterFloats;
    --left_;
    if (++at_ == steps_) {
      at_ = 0;
      ++panel_;
    }
    return next;
  }
  HWY_INLINE void Finish(int64_t num) {
    for (; num > 0 && left_ > 0; --num) {
      const Register next = Next();
      ForEighths([&]<int kPart>() HW_INLINE_LAMBDA { next.template Fill<kPart>(); });
    }
  }
  HWY_INLINE void Finish() { Finish(left_); }

 private:
  const TileArgs& args_;
  int64_t first_step_, steps_, left_;
  float* to_;
  int64_t panel_ = 0;
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

// What is done beside the products of a block, evenly.
template <typename Register>
struct AmxBeside {
  Reordering<Register>& reordering;  // of the next block
  int64_t registers_per_group;       // of eight steps of registers, beyond the one that is filled between them
  // What is read of x after the rows under way, of both row registers: each of its lines is asked for once, because the
  // first of several reads would wait for the second-level cache.
  const float* next_x;
  int64_t next_x_lines;  // per step
};

// Registers 0 to 3 are the sums of kRowRegisters x 2, 4 and 5 hold rows of x, 6 and 7 outputs.
template <int kRowRegisters>
struct AmxOperands {
  static constexpr int64_t kStride = kRegisterSteps * sizeof(float);
  const float *x0, *x1, *w0, *w1;

  HWY_INLINE void Multiply(Tiles& tiles, int64_t step) const {
    const int64_t at = step * kRegisterSteps;
    tiles.LoadPassing<6>(w0 + at, kStride);
    tiles.Load<4>(x0 + at, kStride);
    tiles.DotBF16<0, 4, 6>();
    tiles.LoadPassing<7>(w1 + at, kStride);
    tiles.DotBF16<1, 4, 7>();
    if constexpr (kRowRegisters == 2) {
      tiles.Load<5>(x1 + at, kStride);
      tiles.DotBF16<2, 5, 6>();
      tiles.DotBF16<3, 5, 7>();
    }
  }
};

template <int kRowRegisters, typename Register>
HWY_INLINE void AmxMicro(Tiles& tiles, const AmxBlock& block, int64_t row_register, int64_t panel,
                         AmxBeside<Register>& beside) {
  constexpr int64_t kStride = kRegisterSteps * sizeof(float);
  float* const sums0 = block.sums + (row_register * kAmxPanels + panel) * kRegisterFloats;
  float* const sums1 = sums0 + kAmxPanels * kRegisterFloats;
  if (block.is_first) {
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
  AmxOperands<kRowRegisters> operands;
  operands.x0 = block.x + row_register * block.x_stride * kRegisterRows;
  operands.x1 = operands.x0 + kRegisterRows * block.x_stride;
  operands.w0 = block.panels + panel * block.num_steps * kRegisterSteps;
  operands.w1 = operands.w0 + block.num_steps * kRegisterSteps;
  const auto one_step = [&](int64_t step) HW_INLINE_LAMBDA {
    operands.Multiply(tiles, step);
    for (int64_t i = 0; i < beside.next_x_lines; ++i, beside.next_x += kRegisterSteps) {
      __builtin_prefetch(beside.next_x, /*rw=*/0, /*locality=*/3);
      __builtin_prefetch(beside.next_x + kRegisterRows * block.x_stride, /*rw=*/0, /*locality=*/3);
    }
  };
  constexpr int64_t kGroupSteps = 8 * kRegisterSteps;
  int64_t step = 0;
  for (; step + kGroupSteps <= block.num_steps; step += kGroupSteps) {
    beside.reordering.Finish(beside.registers_per_group);
    if (beside.reordering.num_left() == 0) {
      for (int64_t i = 0; i < kGroupSteps; i += kRegisterSteps) one_step(step + i);
      continue;
    }
    const Register next = beside.reordering.Next();
    ForEighths([&]<int kPart>() HW_INLINE_LAMBDA {
      one_step(step + kPart * kRegisterSteps);
      next.template Fill<kPart>();
    });
  }
  for (; step < block.num_steps; step += kRegisterSteps) one_step(step);
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

// All rows times the block, while the next one is reordered.
template <typename Register>
void AmxMultiply(Tiles& tiles, const TileArgs& args, const AmxBlock& block, const float* bias,
                 Reordering<Register>& reordering) {
  const int64_t num_registers = (args.num_rows + kRegisterRows - 1) / kRegisterRows;
  const int64_t num_panels = (args.num_outputs + kRegisterSteps - 1) / kRegisterSteps;
  const int64_t num_pairs = (num_panels + 1) / 2;
  const int64_t groups = (num_registers + 1) / 2 * num_pairs * (block.num_steps / (8 * kRegisterSteps));
  const int64_t per_group = groups > 0 ? (reordering.num_left() + groups - 1) / groups : 0;
  AmxBeside<Register> beside = {.reordering = reordering,
                                .registers_per_group = per_group > 0 ? per_group - 1 : 0,
                                .next_x = nullptr,
                                .next_x_lines = kRegisterRows / num_pairs};
  for (int64_t row = 0; row < num_registers; row += 2) {
    const int64_t first = row * kRegisterRows;
    const int64_t last = first + 2 * kRegisterRows < args.num_rows ? first + 2 * kRegisterRows : args.num_rows;
    if (block.is_last) {
      for (int64_t r = first; r < last; ++r) {
        for (int64_t i = 0; i < args.num_outputs; i += 16) __builtin_prefetch(args.out + r * args.out_stride + i, 1, 2);
      }
    }
    beside.next_x = block.x + (row + 2) * block.x_stride * kRegisterRows;
    for (int64_t panel = 0; panel < num_panels; panel += 2) {
      if (row + 1 < num_registers) {
        AmxMicro<2>(tiles, block, row, panel, beside);
      } else {
        AmxMicro<1>(tiles, block, row, panel, beside);
      }
    }
    if (block.is_last) AmxWriteOut(args, block.sums, bias, first, last);
  }
}

template <typename Register>
void AmxTileOf(const TileArgs& args) {
  alignas(64) float bias[kAmxOutputs];
  for (int64_t i = 0; i < kAmxOutputs; ++i) bias[i] = args.bias != nullptr && i < args.num_outputs ? args.bias[i] : 0;
  const int64_t num_steps = args.x_stride;
  const auto steps_from = [&](int64_t first) HW_INLINE_LAMBDA {
    const int64_t left = first < num_steps ? num_steps - first : 0;
    return left < kAmxBlockSteps ? left : kAmxBlockSteps;
  };
  float* panels[2] = {args.scratch, args.scratch + kAmxOutputs * kAmxBlockSteps};
  AmxBlock block = {.x = args.x,
                    .x_stride = args.x_stride,
                    .panels = panels[0],
                    .num_steps = 0,
                    .sums = args.scratch + 2 * kAmxOutputs * kAmxBlockSteps,
                    .is_first = true,
                    .is_last = false};
  Reordering<Register>(args, 0, steps_from(0), panels[0]).Finish();
  Tiles tiles;
  // One pass even without steps: sums have to be zero.
  for (int64_t first = 0; first == 0 || first < num_steps; first += kAmxBlockSteps) {
    block.num_steps = steps_from(first);
    const int64_t next = first + block.num_steps;
    block.is_last = next >= num_steps;
    block.panels = panels[first / kAmxBlockSteps % 2];
    Reordering<Register> reordering(args, next, steps_from(next), panels[(first / kAmxBlockSteps + 1) % 2]);
    AmxMultiply(tiles, args, block, bias, reordering);
    reordering.Finish();
    block.x += block.num_steps * kRegisterRows;
    block.is_first = false;
  }
}

#endif

}  // namespace
}  // namespace headwise::cpu::HW_ISA

#endif  // HEADWISE_BACKEND_CPU_KERNELS_MATMUL_AMX_INL_H_
