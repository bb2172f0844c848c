// Products of many rows of x on tile registers (tiles-inl.h): 32 rows by 32 outputs at a time, whose sums are in four
// registers.
//
// Of the weights of a task two panels of 16 outputs and one block of K are reordered at a time, so that 16 steps of a
// panel are one register: 16 KiB, which stay in the first-level cache while all rows of x pass them by from the second.
// Between their products the next two panels are reordered: vectors work while registers multiply. Sums wait from block
// to block in scratch, in the second-level cache too, and leave their registers one by one between the next products:
// stored as soon as they are complete, each would wait for its last product, and the next products for them.
//
// What the next products need is asked for beside these: sums for the first level, the next block of x for the second.
// What binds is what goes between the two caches, 2 KiB of x for four products of registers, which take 64 cycles:
// vectors that work in registers and in the first level are free beside that (docs/performance.md).
#ifndef HEADWISE_BACKEND_CPU_KERNELS_MATMUL_AMX_INL_H_
#define HEADWISE_BACKEND_CPU_KERNELS_MATMUL_AMX_INL_H_

#include "backend/cpu/kernels/matmul_kernels.h"
#include "backend/cpu/kernels/matmul_load-inl.h"
#include "backend/cpu/kernels/tiles-inl.h"

namespace headwise::cpu::HW_ISA {
namespace {

#if HW_TILES

constexpr int64_t kRegisterFloats = kRegisterRows * kRegisterSteps;
constexpr int64_t kPairOutputs = 2 * kRegisterSteps;
constexpr int64_t kPairRows = 2 * kRegisterRows;
constexpr int64_t kAmxPairs = kAmxOutputs / kPairOutputs;
static_assert(kAmxRows % kPairRows == 0 && kAmxPairOutputs == kPairOutputs);

// body.operator()<0>() ... <7>().
template <int kPart = 0, typename Body>
HWY_INLINE void ForEighths(const Body& body) {
  body.template operator()<kPart>();
  if constexpr (kPart + 1 < 8) ForEighths<kPart + 1>(body);
}

// Two panels of a block, or the task's last one, in the making, register by register. A Register is one of them: of 16
// outputs and 16 steps, filled in eight parts that may come one by one. Those of the same outputs follow each other
// along K and share a Register::Group.
template <typename Register>
class Reordering {
 public:
  // Of outputs from `first_output` on. Of weights in bytes `scales` get [kAmxBlockGroups][kPairOutputs].
  HWY_INLINE Reordering(const TileArgs& args, int64_t first_output, int64_t first_step, int64_t num_steps,
                        float* panels, float* scales)
      : args_(args),
        output_(first_output),
        first_step_(first_step),
        steps_(num_steps / kRegisterSteps),
        left_((args.num_outputs - first_output > kRegisterSteps ? 2 : 1) * steps_),
        to_(panels),
        group_(scales) {}
  int64_t num_left() const { return left_; }
  // Requires: one is left.
  HWY_INLINE Register Next() {
    if (at_ == steps_) {
      at_ = 0;
      output_ += kRegisterSteps;
    }
    const Register next(args_, output_, first_step_ + at_ * kRegisterSteps, to_, group_);
    to_ += kRegisterFloats;
    --left_;
    ++at_;
    return next;
  }
  HWY_INLINE void Finish(int64_t num) {
    if (num > 0 && left_ > 0) FinishSome(num);
  }
  HWY_INLINE void Finish() { Finish(left_); }

 private:
  HWY_NOINLINE void FinishSome(int64_t num) {
    for (; num > 0 && left_ > 0; --num) {
      const Register next = Next();
      ForEighths([&]<int kPart>() HW_INLINE_LAMBDA { next.template Fill<kPart>(); });
    }
  }

  const TileArgs& args_;
  int64_t output_, first_step_, steps_, left_;
  float* to_;
  int64_t at_ = 0;
  typename Register::Group group_;
};

// Of registers that share nothing.
struct NoGroup {
  explicit NoGroup(float* /*scales*/) {}
};

// Where sums of 32 rows and 32 outputs lie: in scratch, or as what they become.
struct AmxPlace {
  float* first = nullptr;
  int64_t row_stride = 0;       // floats; of a register's rows
  int64_t register_stride = 0;  // between the registers of rows
  int64_t panel_stride = 0;     // between those of outputs
  bool is_out = false;          // as what they become

  template <int kSum>
  HWY_INLINE float* Register() const {
    return first + kSum / 2 * register_stride + kSum % 2 * panel_stride;
  }
  HWY_INLINE float* Row(int64_t row) const {
    return first + row / kRegisterRows * register_stride + row % kRegisterRows * row_stride;
  }
  // Asks the first-level cache for an eighth of it. Of one register of rows the second half asks for nothing of use.
  template <int kPart>
  HWY_INLINE void Ask() const {
    if (first == nullptr) return;
    constexpr int64_t kRows = kPairRows / 8;
    HW_UNROLL
    for (int64_t row = 0; row < kRows; ++row) {
      PrefetchOfRun(Row(kPart * kRows + row));
      PrefetchOfRun(Row(kPart * kRows + row) + panel_stride);
    }
  }
};

// What all rows of a task are multiplied with.
struct AmxBlock {
  const float* x;  // [rows / 16][row_steps / 16] registers, of which the block has the first num_steps
  int64_t row_steps;
  const float* x_scales;  // of bytes: [groups from the block's first on][x_scales_stride], of the task's first row
  int64_t x_scales_stride;
  float* panels;        // [2][num_steps][16]
  const float* scales;  // of bytes: [kAmxBlockGroups][kPairOutputs]
  int64_t num_steps;    // whole registers
};

// 32 rows and 32 outputs of a block, and where their sums come from and go to.
struct AmxWork {
  int64_t row_register = 0;
  AmxPlace from;  // none: they begin with 0
  AmxPlace to;
  AmxPlace next_from = {};  // of the work after this one
  AmxPlace next_to = {};    // if it is elsewhere
};

// The sums of kRowRegisters x 2 registers, 0 to 3, and where they belong. They stay until the next ones take their
// place, one by one between the first products of those.
class AmxSums {
 public:
  HWY_INLINE AmxSums(Tiles& tiles, float* /*waiting*/) : tiles_(tiles) {}
  template <int kRowRegisters>
  HWY_INLINE void Begin(const AmxWork& work) {
    if (kRowRegisters != row_registers_) Finish();
    row_registers_ = kRowRegisters;
    left_ = current_;
    current_ = work.to;
    from_ = work.from;
    next_from_ = work.next_from;
    next_to_ = work.next_to;
  }
  // Part of what is needed next.
  template <int kPart>
  HWY_INLINE void Ask() const {
    next_from_.Ask<kPart>();
    next_to_.Ask<kPart>();
  }
  template <int kSum>
  HWY_INLINE void Replace() {
    if (left_.first != nullptr) tiles_.Store<kSum>(left_.Register<kSum>(), left_.row_stride * 4);
    if (from_.first == nullptr) {
      tiles_.Zero<kSum>();
    } else {
      tiles_.Load<kSum>(from_.Register<kSum>(), from_.row_stride * 4);
    }
  }
  HWY_INLINE void Finish() {
    if (current_.first == nullptr) return;
    tiles_.Store<0>(current_.Register<0>(), current_.row_stride * 4);
    tiles_.Store<1>(current_.Register<1>(), current_.row_stride * 4);
    if (row_registers_ == 2) tiles_.Store<2>(current_.Register<2>(), current_.row_stride * 4);
    if (row_registers_ == 2) tiles_.Store<3>(current_.Register<3>(), current_.row_stride * 4);
    current_ = {};
  }

 private:
  Tiles& tiles_;
  int row_registers_ = 0;
  AmxPlace current_, left_, from_, next_from_, next_to_;
};

// What is done beside the products of a block, evenly.
template <typename Register>
struct AmxBeside {
  Reordering<Register>& reordering;  // of the next block
  int64_t registers_per_group;       // of eight steps of registers, beyond the one that is filled between them
  const float* x;                    // of the next block, what the second-level cache is not asked for yet
  int64_t x_lines_per_step;          // of registers

  HWY_INLINE void AskForX() {
    for (int64_t i = 0; i < x_lines_per_step; ++i, x += kRegisterSteps) PrefetchToL2(x);
  }
};

// Registers 4 and 5 hold rows of x, 6 and 7 outputs.
template <int kRowRegisters, bool kInBytes = false>
struct AmxOperands {
  static constexpr int64_t kStride = kRegisterSteps * sizeof(float);
  const float *x0, *x1, *w0, *w1;

  HWY_INLINE AmxOperands(const AmxBlock& block, int64_t row_register)
      : x0(block.x + row_register * block.row_steps * kRegisterRows),
        x1(x0 + kRegisterRows * block.row_steps),
        w0(block.panels),
        w1(w0 + block.num_steps * kRegisterSteps) {}

  // before.operator()<kSum>() comes before the product that adds to it.
  template <typename Before>
  HWY_INLINE void Multiply(Tiles& tiles, int64_t step, const Before& before) const {
    const int64_t at = step * kRegisterSteps;
    tiles.LoadPassing<4>(x0 + at, kStride);
    tiles.Load<6>(w0 + at, kStride);
    before.template operator()<0>();
    Dot<0, 4, 6>(tiles);
    tiles.Load<7>(w1 + at, kStride);
    before.template operator()<1>();
    Dot<1, 4, 7>(tiles);
    if constexpr (kRowRegisters == 2) {
      tiles.LoadPassing<5>(x1 + at, kStride);
      before.template operator()<2>();
      Dot<2, 5, 6>(tiles);
      before.template operator()<3>();
      Dot<3, 5, 7>(tiles);
    }
  }

 private:
  template <int kSum, int kA, int kB>
  static HWY_INLINE void Dot(Tiles& tiles) {
    if constexpr (kInBytes) {
      tiles.DotSignedInt8<kSum, kA, kB>();
    } else {
      tiles.DotBF16<kSum, kA, kB>();
    }
  }
};

template <int kRowRegisters, typename Register>
HWY_INLINE void AmxMicro(Tiles& tiles, const AmxBlock& block, const AmxWork& work, AmxSums& sums,
                         AmxBeside<Register>& beside) {
  sums.Begin<kRowRegisters>(work);
  const AmxOperands<kRowRegisters> operands(block, work.row_register);
  const auto one_step = [&](int64_t step) HW_INLINE_LAMBDA {
    operands.Multiply(tiles, step, [&]<int kSum>() HW_INLINE_LAMBDA {
      if (step == 0) sums.Replace<kSum>();
    });
  };
  constexpr int64_t kGroupSteps = 8 * kRegisterSteps;
  int64_t step = 0;
  for (; step + kGroupSteps <= block.num_steps; step += kGroupSteps) {
    const auto one_part = [&]<int kPart>() HW_INLINE_LAMBDA {
      one_step(step + kPart * kRegisterSteps);
      sums.Ask<kPart>();
      beside.AskForX();
    };
    beside.reordering.Finish(beside.registers_per_group);
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
  for (; step < block.num_steps; step += kRegisterSteps) one_step(step);
  if (step > 0) return;
  sums.Replace<0>();
  sums.Replace<1>();
  if constexpr (kRowRegisters == 2) sums.Replace<2>();
  if constexpr (kRowRegisters == 2) sums.Replace<3>();
}

// Two panels of outputs of a task: which rows' sums are as `out` has them, and which are copied.
struct AmxPair {
  AmxPair(const TileArgs& args, float* sums, int64_t pair)
      : args_(args),
        out_(args.out + pair * kPairOutputs),
        bias_(args.bias != nullptr ? args.bias + pair * kPairOutputs : nullptr),
        num_outputs_(args.num_outputs - pair * kPairOutputs),
        sums_(sums + pair * 4 * kRegisterFloats),
        whole_rows_(num_outputs_ >= kPairOutputs ? WholeRows(args.num_rows) : 0) {}

  AmxPlace InScratch(int64_t row) const {
    return {.first = sums_ + row / kPairRows * kAmxPairs * 4 * kRegisterFloats,
            .row_stride = kRegisterSteps,
            .register_stride = 2 * kRegisterFloats,
            .panel_stride = kRegisterFloats};
  }
  AmxPlace AsOut(int64_t row) const {
    return {.first = out_ + row * args_.out_stride,
            .row_stride = args_.out_stride,
            .register_stride = kRegisterRows * args_.out_stride,
            .panel_stride = kRegisterSteps,
            .is_out = true};
  }
  // What sums begin with, in any case: what stands in `out`, if they are added to it, and the bias. Bits do not depend
  // on where an element stands in a task.
  AmxPlace Start(int64_t row) const {
    if (bias_ != nullptr || (args_.add && row >= whole_rows_)) return InScratch(row);
    return args_.add ? AsOut(row) : AmxPlace{};
  }
  AmxPlace End(int64_t row) const { return row < whole_rows_ ? AsOut(row) : InScratch(row); }
  // Makes what Start says is in scratch.
  void Prepare() const {
    const int64_t first = bias_ != nullptr ? 0 : args_.add ? whole_rows_ : args_.num_rows;
    for (int64_t row = first; row < args_.num_rows; ++row) {
      const float* out = args_.add ? out_ + row * args_.out_stride : nullptr;
      for (int64_t i = 0; i < kPairOutputs && i < num_outputs_; i += kLanes) {
        VF start = out != nullptr ? LoadOutputs(out, i) : hn::Zero(kDF);
        if (bias_ != nullptr) start = hn::Add(start, LoadOutputs(bias_, i));
        hn::Store(start, kDF, Scratch(row, i));
      }
    }
  }
  // Copies what End says is in scratch.
  void Copy() const {
    for (int64_t row = whole_rows_; row < args_.num_rows; ++row) {
      float* const out = out_ + row * args_.out_stride;
      int64_t i = 0;
      for (; i < kPairOutputs && i + kLanes <= num_outputs_; i += kLanes) {
        hn::StoreU(hn::Load(kDF, Scratch(row, i)), kDF, out + i);
      }
      for (; i < kPairOutputs && i < num_outputs_; ++i) out[i] = *Scratch(row, i);
    }
  }
  bool copies() const { return whole_rows_ < args_.num_rows; }
  // Of a block, the first or the last one of K or another.
  AmxWork Work(int64_t row_register, bool is_first, bool is_last) const {
    const int64_t row = row_register * kRegisterRows;
    return {.row_register = row_register,
            .from = is_first ? Start(row) : InScratch(row),
            .to = is_last ? End(row) : InScratch(row)};
  }

 private:
  // Those of registers that come two by two, or alone at the end, and have all their rows.
  static int64_t WholeRows(int64_t num_rows) {
    return num_rows % kRegisterRows == 0 ? num_rows : num_rows / kPairRows * kPairRows;
  }
  // Of outputs that the task does not have, 0.
  HWY_INLINE VF LoadOutputs(const float* outputs, int64_t first) const {
    if (num_outputs_ - first >= kLanes) return hn::LoadU(kDF, outputs + first);
    return hn::Load(kDF, Tail<float, kLanes>(outputs + first, num_outputs_ - first).data);
  }
  float* Scratch(int64_t row, int64_t output) const {
    return InScratch(row).Row(row % kPairRows) + output / kRegisterSteps * kRegisterFloats + output % kRegisterSteps;
  }

  const TileArgs& args_;
  float* out_;
  const float* bias_;
  int64_t num_outputs_;
  float* sums_;
  int64_t whole_rows_;  // whose registers have all their rows, and 32 outputs, and are stored where they belong
};

// All rows times two panels of a block, while the next ones are reordered. `after` comes then.
template <typename Register>
void AmxMultiply(Tiles& tiles, const TileArgs& args, const AmxBlock& block, const AmxPair& pair, bool is_first,
                 bool is_last, const AmxWork& after, typename Register::Sums& sums, AmxBeside<Register>& beside) {
  const int64_t num_registers = (args.num_rows + kRegisterRows - 1) / kRegisterRows;
  const int64_t groups = (num_registers + 1) / 2 * (block.num_steps / (8 * kRegisterSteps));
  const int64_t per_group = groups > 0 ? (beside.reordering.num_left() + groups - 1) / groups : 0;
  beside.registers_per_group = per_group > 0 ? per_group - 1 : 0;
  AmxWork work = pair.Work(0, is_first, is_last);
  for (int64_t row = 0; row < num_registers; row += 2) {
    const AmxWork next = row + 2 < num_registers ? pair.Work(row + 2, is_first, is_last) : after;
    work.next_from = next.from;
    if (next.to.first != next.from.first) work.next_to = next.to;
    if (row + 1 < num_registers) {
      AmxMicro<2>(tiles, block, work, sums, beside);
    } else {
      AmxMicro<1>(tiles, block, work, sums, beside);
    }
    work = next;
  }
  if (!is_last || !pair.copies()) return;
  sums.Finish();
  pair.Copy();
}

template <typename Register>
void AmxTileOf(const TileArgs& args) {
  const int64_t num_steps = args.x_stride;
  const int64_t num_pairs = (args.num_outputs + kPairOutputs - 1) / kPairOutputs;
  const auto steps_from = [&](int64_t first) HW_INLINE_LAMBDA {
    const int64_t left = first < num_steps ? num_steps - first : 0;
    return left < kAmxBlockSteps ? left : kAmxBlockSteps;
  };
  float* panels[2] = {args.scratch, args.scratch + kPairOutputs * kAmxBlockSteps};
  // Of those under way, of the next, and of the ones before, whose last sums are scaled beside the first products: two
  // groups later, when more than 32 rows are not through with the ones under way.
  static_assert(kMinRegisterRows > kPairRows);
  float* scales[3];
  for (int i = 0; i < 3; ++i) scales[i] = panels[1] + (kAmxBlockSteps + i * kAmxBlockGroups) * kPairOutputs;
  float* const waiting = scales[2] + kAmxBlockGroups * kPairOutputs;
  float* const scratch_sums = waiting + kAmxWaitingFloats;
  AmxBlock block = {.x = args.x,
                    .row_steps = steps_from(0),
                    .x_scales = args.x_scales,
                    .x_scales_stride = args.x_scales_stride,
                    .panels = panels[0],
                    .scales = scales[0],
                    .num_steps = 0};
  for (int64_t pair = 0; pair < num_pairs; ++pair) AmxPair(args, scratch_sums, pair).Prepare();
  Reordering<Register>(args, 0, 0, steps_from(0), panels[0], scales[0]).Finish();
  Tiles tiles;
  typename Register::Sums sums(tiles, waiting);
  int turn = 0;
  // One pass even without steps: sums have to be written.
  for (int64_t first = 0; first == 0 || first < num_steps; first += kAmxBlockSteps) {
    block.num_steps = steps_from(first);
    const int64_t next_first = first + block.num_steps;
    const bool is_last = next_first >= num_steps;
    // The next block of x is asked for evenly.
    const float* next_x = block.x + args.x_block_stride;
    const int64_t x_lines_per_step =
        is_last ? 0 : (2 * kRegisterRows * steps_from(next_first) / block.num_steps + num_pairs - 1) / num_pairs;
    for (int64_t pair = 0; pair < num_pairs; ++pair) {
      const bool is_last_pair = pair + 1 == num_pairs;
      block.panels = panels[turn % 2];
      block.scales = scales[turn % 3];
      ++turn;
      Reordering<Register> reordering(
          args, is_last_pair ? 0 : (pair + 1) * kPairOutputs, is_last_pair ? next_first : first,
          is_last_pair ? steps_from(next_first) : block.num_steps, panels[turn % 2], scales[turn % 3]);
      AmxWork after;  // none behind the last
      if (!is_last_pair) {
        after = AmxPair(args, scratch_sums, pair + 1).Work(0, first == 0, is_last);
      } else if (!is_last) {
        after = AmxPair(args, scratch_sums, 0).Work(0, false, next_first + kAmxBlockSteps >= num_steps);
      }
      AmxBeside<Register> beside = {
          .reordering = reordering, .registers_per_group = 0, .x = next_x, .x_lines_per_step = x_lines_per_step};
      AmxMultiply(tiles, args, block, AmxPair(args, scratch_sums, pair), first == 0, is_last, after, sums, beside);
      next_x = beside.x;
      reordering.Finish();
    }
    block.x += args.x_block_stride;
    block.x_scales += kAmxBlockGroups * block.x_scales_stride;
  }
  sums.Finish();
}

#endif

}  // namespace
}  // namespace headwise::cpu::HW_ISA

#endif  // HEADWISE_BACKEND_CPU_KERNELS_MATMUL_AMX_INL_H_
