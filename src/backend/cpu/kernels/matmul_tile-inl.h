// Products of many rows of x, as in prefill: a tile of 64 outputs at a time. A block of its weights is reordered into
// panels that the micro-kernel reads in sequence; each panel row is one step of K for a few vectors of outputs.
//   x [rows, steps]: as it is          panels [steps][outputs]: from W [outputs, steps], transposed vector by vector
#ifndef HEADWISE_BACKEND_CPU_KERNELS_MATMUL_TILE_INL_H_
#define HEADWISE_BACKEND_CPU_KERNELS_MATMUL_TILE_INL_H_

#include "backend/cpu/kernels/matmul_amx-inl.h"
#include "backend/cpu/kernels/matmul_load-inl.h"

namespace headwise::cpu::HW_ISA {
namespace {

// Register tile of the micro-kernel, rows x vectors of accumulators: 32 registers take 6 x 4 and the operands, 16 take
// 6 x 2, and 4 x 2 where a product needs a register of its own because multiplying and adding are two instructions.
#if HWY_ARCH_ARM
constexpr int64_t kMicroRows = 6, kMicroVecs = 4;
#else
constexpr int64_t kMicroRows = kLanes >= 8 ? 6 : 4;
constexpr int64_t kMicroVecs = kLanes == 16 ? 4 : 2;
#endif
constexpr int64_t kPanelOutputs = kMicroVecs * kLanes;
static_assert(kTileOutputs % kPanelOutputs == 0);

// Vectors of outputs in a step of a panel: those that the micro-kernel takes, or one tile register's.
template <typename Steps>
constexpr int64_t kStepVecs = Steps::kInTiles ? kRegisterSteps / kLanes : kMicroVecs;
template <typename Steps>
constexpr int64_t kStepOutputs = kStepVecs<Steps>* kLanes;

// x[i] = lane i of x[0 .. kLanes), for all vectors at once.
HWY_INLINE void Transpose(VF (&x)[kLanes]) {
  const hn::Repartition<double, DF> d64;
  VF t[kLanes];
  // 4 x 4 inside each block of 128 bits.
  HW_UNROLL
  for (int64_t i = 0; i < kLanes; i += 4) {
    const auto lo0 = hn::BitCast(d64, hn::InterleaveLower(kDF, x[i], x[i + 1]));
    const auto hi0 = hn::BitCast(d64, hn::InterleaveUpper(kDF, x[i], x[i + 1]));
    const auto lo1 = hn::BitCast(d64, hn::InterleaveLower(kDF, x[i + 2], x[i + 3]));
    const auto hi1 = hn::BitCast(d64, hn::InterleaveUpper(kDF, x[i + 2], x[i + 3]));
    t[i] = hn::BitCast(kDF, hn::InterleaveLower(d64, lo0, lo1));
    t[i + 1] = hn::BitCast(kDF, hn::InterleaveUpper(d64, lo0, lo1));
    t[i + 2] = hn::BitCast(kDF, hn::InterleaveLower(d64, hi0, hi1));
    t[i + 3] = hn::BitCast(kDF, hn::InterleaveUpper(d64, hi0, hi1));
  }
  HW_UNROLL
  for (int64_t i = 0; i < 4; ++i) {
#if HWY_MAX_BYTES >= 64
    // 4 x 4 blocks: neighbours first, then halves.
    const VF even0 = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(t[i + 4]), t[i]);
    const VF odd0 = hn::OddEvenBlocks(t[i + 4], hn::SwapAdjacentBlocks(t[i]));
    const VF even1 = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(t[i + 12]), t[i + 8]);
    const VF odd1 = hn::OddEvenBlocks(t[i + 12], hn::SwapAdjacentBlocks(t[i + 8]));
    x[i] = hn::ConcatLowerLower(kDF, even1, even0);
    x[i + 4] = hn::ConcatLowerLower(kDF, odd1, odd0);
    x[i + 8] = hn::ConcatUpperUpper(kDF, even1, even0);
    x[i + 12] = hn::ConcatUpperUpper(kDF, odd1, odd0);
#elif HWY_MAX_BYTES >= 32
    x[i] = hn::ConcatLowerLower(kDF, t[i + 4], t[i]);
    x[i + 4] = hn::ConcatUpperUpper(kDF, t[i + 4], t[i]);
#else
    x[i] = t[i];
#endif
  }
}

// Reorders kLanes rows of W from element `begin`, num_steps steps, into columns of a panel; missing rows are 0.
// `ahead` is where the next kLanes rows begin, asked for early: 16 streams are more than the hardware follows well.
enum class AskAhead { kNo, kYes };
template <typename Steps, WeightType kType, AskAhead kAsk = AskAhead::kYes>
HWY_INLINE void PackRows(const TileArgs& args, int64_t first_row, int64_t begin, int64_t num_steps,
                         const Element<kType>* ahead, float* to) {
  using T = Element<kType>;
  constexpr int64_t kElements = kLanes * Steps::kPerStep;
  constexpr int64_t kLineElements = 64 / static_cast<int64_t>(sizeof(T));
  const int64_t num_rows = args.num_outputs - first_row;
  const T* from = static_cast<const T*>(args.weight) + first_row * args.depth + begin;
  for (int64_t step = 0; step < num_steps; step += kLanes) {
    const int64_t element = step * Steps::kPerStep;
    const int64_t num_elements = args.depth - begin - element;
    VF rows[kLanes];
    if (num_rows >= kLanes && num_elements >= kElements) {
      HW_UNROLL
      for (int64_t r = 0; r < kLanes; ++r) {
        rows[r] = Steps::template Load<kType>(from + r * args.depth + element);
        if constexpr (kAsk == AskAhead::kNo) continue;
        HW_UNROLL
        for (int64_t i = 0; i < kElements; i += kLineElements) PrefetchToL2(ahead + r * args.depth + element + i);
      }
    } else {
      for (int64_t r = 0; r < kLanes; ++r) {
        const Tail<T, kElements> tail(from + r * args.depth + element, r < num_rows ? num_elements : 0);
        rows[r] = Steps::template Load<kType>(tail.data);
      }
    }
    Transpose(rows);
    if (num_steps - step >= kLanes) {
      HW_UNROLL
      for (int64_t i = 0; i < kLanes; ++i) hn::Store(rows[i], kDF, to + (step + i) * kStepOutputs<Steps>);
    } else {
      for (int64_t i = 0; i < num_steps - step; ++i) hn::Store(rows[i], kDF, to + (step + i) * kStepOutputs<Steps>);
    }
  }
}

template <typename Steps, WeightType kType>
void PackBlock(const TileArgs& args, int64_t begin, int64_t num_steps) {
  const auto* weight = static_cast<const Element<kType>*>(args.weight);
  const int64_t next_begin = begin + num_steps * Steps::kPerStep;
  // The next block of these rows, or the first of the next tile's, which lie behind them.
  const Element<kType>* next = next_begin < args.depth ? weight + next_begin : weight + args.num_outputs * args.depth;
  for (int64_t row = 0; row < args.num_outputs; row += kStepOutputs<Steps>) {
    float* panel = args.scratch + row * num_steps;
    for (int64_t vec = 0; vec < kStepVecs<Steps>; ++vec) {
      const int64_t first = row + vec * kLanes;
      const Element<kType>* ahead =
          first + kLanes < args.num_outputs ? weight + (first + kLanes) * args.depth + begin : next;
      PackRows<Steps, kType>(args, first, begin, num_steps, ahead, panel + vec * kLanes);
    }
  }
}

#if HW_TILES

// Of plain weights: 16 rows of W, of which the parts before the last do nothing.
template <WeightType kType>
class PlainRegister {
 public:
  using Sums = AmxSums;
  using Group = NoGroup;

  HWY_INLINE PlainRegister(const TileArgs& args, int64_t first_output, int64_t step, float* to, NoGroup /*group*/)
      : args_(&args), first_output_(first_output), begin_(step * BF16Steps::kPerStep), to_(to) {}
  template <int kPart>
  HWY_INLINE void Fill() const {
    if constexpr (kPart == 7) {
      for (int64_t output = 0; output < kRegisterSteps; output += kLanes) {
        PackRows<BF16Steps, kType, AskAhead::kNo>(*args_, first_output_ + output, begin_, kRegisterSteps, nullptr,
                                                  to_ + output);
      }
    }
  }

 private:
  const TileArgs* args_;
  int64_t first_output_, begin_;
  float* to_;
};

#endif

// How weights of one type become the steps of a tile.
template <typename Steps, WeightType kType>
struct PlainWeights {
  static void Pack(const TileArgs& args, int64_t begin, int64_t num_steps) {
    PackBlock<Steps, kType>(args, begin, num_steps);
  }
#if HW_TILES
  using Register = PlainRegister<kType>;
#endif
};

struct MicroArgs {
  const float* x;       // [rows, x_stride], at this block's first step
  const float* next_x;  // what will be read next, to be asked for early
  int64_t x_stride;
  const float* panel;  // [num_steps, kPanelOutputs]
  int64_t num_steps;
  const float* bias;  // [kPanelOutputs]
  float* out;
  int64_t out_stride;
  int64_t num_outputs;  // kPanelOutputs, or fewer: the panel's other columns are not stored
  bool add;
};

template <int64_t kRows>
HWY_INLINE void StoreSums(const VF (&sum)[kRows][kMicroVecs], const MicroArgs& args) {
  if (args.num_outputs >= kPanelOutputs) {
    HW_UNROLL
    for (int64_t r = 0; r < kRows; ++r) {
      HW_UNROLL
      for (int64_t v = 0; v < kMicroVecs; ++v) {
        float* out = args.out + r * args.out_stride + v * kLanes;
        VF value = hn::Add(sum[r][v], hn::Load(kDF, args.bias + v * kLanes));
        if (args.add) value = hn::Add(hn::LoadU(kDF, out), value);
        hn::StoreU(value, kDF, out);
      }
    }
    return;
  }
  alignas(64) float values[kRows][kPanelOutputs];
  HW_UNROLL
  for (int64_t r = 0; r < kRows; ++r) {
    HW_UNROLL
    for (int64_t v = 0; v < kMicroVecs; ++v) {
      hn::Store(hn::Add(sum[r][v], hn::Load(kDF, args.bias + v * kLanes)), kDF, values[r] + v * kLanes);
    }
  }
  for (int64_t r = 0; r < kRows; ++r) {
    float* out = args.out + r * args.out_stride;
    for (int64_t i = 0; i < args.num_outputs; ++i) out[i] = args.add ? out[i] + values[r][i] : values[r][i];
  }
}

template <typename Steps, int64_t kRows>
void Micro(const MicroArgs& args) {
  constexpr int64_t kLineSteps = 16;  // of a cache line
  const int64_t stride = args.x_stride;
  VF sum[kRows][kMicroVecs];
  HW_UNROLL
  for (int64_t r = 0; r < kRows; ++r) {
    HW_UNROLL
    for (int64_t v = 0; v < kMicroVecs; ++v) {
      sum[r][v] = hn::Zero(kDF);
      hwy::Prefetch(args.out + r * args.out_stride + v * kLanes);
    }
  }
  const float* panel = args.panel;
  for (int64_t line = 0; line < args.num_steps; line += kLineSteps) {
    HW_UNROLL
    for (int64_t r = 0; r < kRows; ++r) hwy::Prefetch(args.next_x + r * stride + line);
    const int64_t end = line + kLineSteps < args.num_steps ? line + kLineSteps : args.num_steps;
    for (int64_t step = line; step < end; ++step) {
      VF w[kMicroVecs];
      HW_UNROLL
      for (int64_t v = 0; v < kMicroVecs; ++v) w[v] = hn::Load(kDF, panel + v * kLanes);
      panel += kPanelOutputs;
      HW_UNROLL
      for (int64_t r = 0; r < kRows; ++r) {
        const VF x = hn::Set(kDF, args.x[r * stride + step]);
        HW_UNROLL
        for (int64_t v = 0; v < kMicroVecs; ++v) sum[r][v] = Steps::Dot(sum[r][v], x, w[v]);
      }
    }
  }
  StoreSums<kRows>(sum, args);
}

template <typename Steps>
void MicroOf(int64_t num_rows, const MicroArgs& args) {
  switch (num_rows) {
    case 1:
      return Micro<Steps, 1>(args);
    case 2:
      return Micro<Steps, 2>(args);
    case 3:
      return Micro<Steps, 3>(args);
    case 4:
      return Micro<Steps, 4>(args);
    case 5:
      return Micro < Steps, kMicroRows == 6 ? 5 : 4 > (args);
    default:
      return Micro<Steps, kMicroRows>(args);
  }
}

// All rows of x times the block in scratch. Rows are dealt evenly, so that no group of them is much smaller than the
// micro-kernel can take.
template <typename Steps>
void MultiplyBlock(const TileArgs& args, int64_t first_step, int64_t num_steps, const float* bias, bool add) {
  const int64_t num_groups = (args.num_rows + kMicroRows - 1) / kMicroRows;
  for (int64_t group = 0; group < num_groups; ++group) {
    const int64_t begin = group * args.num_rows / num_groups;
    const int64_t end = (group + 1) * args.num_rows / num_groups;
    const float* x = args.x + begin * args.x_stride + first_step;
    for (int64_t output = 0; output < args.num_outputs; output += kPanelOutputs) {
      MicroOf<Steps>(end - begin, {.x = x,
                                   .next_x = group + 1 < num_groups ? x + (end - begin) * args.x_stride : x,
                                   .x_stride = args.x_stride,
                                   .panel = args.scratch + output * num_steps,
                                   .num_steps = num_steps,
                                   .bias = bias + output,
                                   .out = args.out + begin * args.out_stride + output,
                                   .out_stride = args.out_stride,
                                   .num_outputs = args.num_outputs - output,
                                   .add = add});
    }
  }
}

// Weights::Pack(args, first element, steps) fills scratch with a block of the tile's weights; Weights::Register is one
// register of them.
template <typename Steps, typename Weights>
void TileOf(const TileArgs& args) {
#if HW_TILES
  if constexpr (Steps::kInTiles) return AmxTileOf<typename Weights::Register>(args);
#endif
  alignas(64) float bias[kTileOutputs];
  for (int64_t i = 0; i < kTileOutputs; ++i) bias[i] = args.bias != nullptr && i < args.num_outputs ? args.bias[i] : 0;
  const int64_t num_steps = (args.depth + Steps::kPerStep - 1) / Steps::kPerStep;
  // One pass even without steps: the bias has to be written.
  for (int64_t first = 0; first == 0 || first < num_steps; first += kBlockSteps) {
    const int64_t block_steps = num_steps - first < kBlockSteps ? num_steps - first : kBlockSteps;
    Weights::Pack(args, first * Steps::kPerStep, block_steps);
    MultiplyBlock<Steps>(args, first, block_steps, bias, args.add || first > 0);
    if (first == 0) {
      for (float& value : bias) value = 0;
    }
  }
}

}  // namespace
}  // namespace headwise::cpu::HW_ISA

#endif  // HEADWISE_BACKEND_CPU_KERNELS_MATMUL_TILE_INL_H_
