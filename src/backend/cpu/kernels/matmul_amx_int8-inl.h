// Products in int8 of some rows of x on tile registers (tiles-inl.h): 16 rows by a panel's 16 outputs, a run of 32
// elements at a time, because each run has its scales. A product of registers gives the sums of codes, whole numbers;
// what is done with them is what matmul_packed_tile-inl.h does, in its order, so that the bits are the same.
#ifndef HEADWISE_BACKEND_CPU_KERNELS_MATMUL_AMX_INT8_INL_H_
#define HEADWISE_BACKEND_CPU_KERNELS_MATMUL_AMX_INT8_INL_H_

#include "backend/cpu/kernels/matmul_packed_tile-inl.h"
#include "backend/cpu/kernels/tiles-inl.h"

namespace headwise::cpu::HW_ISA {
namespace {

#if HW_TILES

// Rows of x that are fewer than a register's, of a block of runs, as if they were as many.
constexpr int64_t kPaddedRunsAt = kTileCodeBytes + kTileVecs * kTileRuns * kRunScales * kLanes * 4;
static_assert(kPaddedRunsAt + kRegisterRows * kTileRuns * static_cast<int64_t>(sizeof(QuantizedRun)) <=
              kTileScratchBytes);

// 16 rows of x and 16 outputs, of runs [first, first + num_runs) of K.
struct Int8Runs {
  const QuantizedRun* x;  // first row, first run
  int64_t x_row_stride;
  int64_t x_run_stride;
  int64_t num_runs;
  UnpackedTile tile;     // of formats whose codes are not whole bytes in memory
  const uint8_t* panel;  // of the 16 outputs
  int64_t panel_idx;     // of the tile
  int64_t first_run;
};

// Codes that lie in memory as registers want them.
template <WeightType kType>
constexpr bool kHasWholeBytes = FormatOf(kType).bits == 8;

// The same of one run. Of a panel's outputs in vectors: kSubPanels.
template <WeightType kType>
struct RunScales {
  VF a[kSubPanels][2], b[kSubPanels][2];
};

template <WeightType kType>
class RunReader {
 public:
  HWY_INLINE explicit RunReader(const Int8Runs& runs) : runs_(runs) {
    HW_UNROLL
    for (int64_t sub = 0; sub < kSubPanels; ++sub) readers_[sub] = PanelReader<kType>(runs.panel, sub);
  }
  // The 8 quads of the panel's outputs.
  HWY_INLINE const uint8_t* Codes(int64_t run, uint8_t* gathered) const {
    if constexpr (kHasWholeBytes<kType>) return runs_.panel + RunCodesAt(kType, runs_.first_run + run);
    if constexpr (kSubPanels == 1) return runs_.tile.Codes(runs_.panel_idx, run);
    for (int64_t quad = 0; quad < kRunQuads; ++quad) {
      for (int64_t sub = 0; sub < kSubPanels; ++sub) {
        __builtin_memcpy(gathered + quad * kQuadBytes + sub * 4 * kLanes,
                         runs_.tile.Codes(runs_.panel_idx * kSubPanels + sub, run) + quad * 4 * kLanes, 4 * kLanes);
      }
    }
    return gathered;
  }
  // Requires: runs one after the other, from a block's first.
  HWY_INLINE void Scales(int64_t run, RunScales<kType>& scales) {
    HW_UNROLL
    for (int64_t sub = 0; sub < kSubPanels; ++sub) {
      if constexpr (kHasWholeBytes<kType>) {
        readers_[sub].BeginRun(runs_.first_run + run);
        readers_[sub].Prefetch();
        scales.a[sub][0] = readers_[sub].template A<0>();
      } else {
        const float* from = runs_.tile.Scales(runs_.panel_idx * kSubPanels + sub, run);
        scales.a[sub][0] = hn::Load(kDF, from);
        if constexpr (FormatOf(kType).has_half_runs) scales.a[sub][1] = hn::Load(kDF, from + kLanes);
        if constexpr (FormatOf(kType).has_min && FormatOf(kType).has_half_runs) {
          scales.b[sub][0] = hn::Load(kDF, from + 2 * kLanes);
          scales.b[sub][1] = hn::Load(kDF, from + 3 * kLanes);
        } else if constexpr (FormatOf(kType).has_min) {
          scales.b[sub][0] = hn::Load(kDF, from + kLanes);
        }
      }
    }
  }

 private:
  const Int8Runs& runs_;
  PanelReader<kType> readers_[kSubPanels];
};

// Sums of codes of a run, of each half where those have scales of their own.
template <WeightType kType>
struct alignas(64) CodeSums {
  static constexpr int kHalves = FormatOf(kType).has_half_runs ? 2 : 1;
  int32_t sums[kHalves][kRegisterRows * kRegisterSteps];
};

// Products of a run, or of each half of one, left in registers of sums: of two runs in turns. A register of x has the
// codes of a run or of half of one, as Tiles was told.
template <WeightType kType, int kTurn>
struct RunProducts {
  static constexpr int kHalves = CodeSums<kType>::kHalves;
  // Of two halves each has operands of its own, of whole runs each turn.
  static constexpr int SumOf(int half) { return kTurn * kHalves + half; }
  static constexpr int OperandOf(int half) { return kHalves == 2 ? half : kTurn; }

  static HWY_INLINE void Multiply(Tiles& tiles, const Int8Runs& runs, const uint8_t* codes, int64_t run) {
    MultiplyHalf<0>(tiles, runs, codes, run);
    if constexpr (kHalves == 2) MultiplyHalf<1>(tiles, runs, codes, run);
  }
  static HWY_INLINE void Store(const Tiles& tiles, CodeSums<kType>& to) {
    tiles.template Store<SumOf(0)>(to.sums[0], kRegisterBytes);
    if constexpr (kHalves == 2) tiles.template Store<SumOf(1)>(to.sums[1], kRegisterBytes);
  }

 private:
  template <int kHalf>
  static HWY_INLINE void MultiplyHalf(Tiles& tiles, const Int8Runs& runs, const uint8_t* codes, int64_t run) {
    constexpr int kSum = SumOf(kHalf), kX = 4 + OperandOf(kHalf), kWeight = 6 + OperandOf(kHalf);
    const int8_t* x = runs.x[run * runs.x_run_stride].codes;
    const int64_t x_stride = runs.x_row_stride * static_cast<int64_t>(sizeof(QuantizedRun));
    tiles.template Zero<kSum>();
    tiles.template Load<kX>(x + kHalf * kRunElements / 2, x_stride);
    tiles.template Load<kWeight>(codes + kHalf * kRunQuads / 2 * kQuadBytes, kQuadBytes);
    tiles.template DotInt8<kSum, kX, kWeight>();
  }
};

// Where sums of codes as they are, unsigned, start.
template <WeightType kType>
HWY_INLINE int32_t StartOfCodes(const QuantizedRun& x, int half) {
  constexpr int kOffset = FormatOf(kType).offset;
  if constexpr (kOffset == 0)
    return 0;
  else if constexpr (kOffset == 1)
    return x.start_8 / 8;
  else if constexpr (kOffset == 4)
    return x.start_32[half] / 8;
  else if constexpr (kOffset == 8)
    return x.start_8;
  else if constexpr (kOffset == 16)
    return x.start_16;
  else if constexpr (kOffset == 128)
    return x.start_128;
  else
    return x.start_32[half];
}

template <WeightType kType, int64_t kRows>
HWY_INLINE void AddScaled(const Int8Runs& runs, int64_t run, const CodeSums<kType>& codes,
                          const RunScales<kType>& scales, VF (&sum)[kSubPanels][kRows]) {
  constexpr PackedFormat kFormat = FormatOf(kType);
  const QuantizedRun* const x = runs.x + run * runs.x_run_stride;
  HW_UNROLL
  for (int64_t r = 0; r < kRows; ++r) {
    const QuantizedRun& row = x[r * runs.x_row_stride];
    const VF scale = hn::Set(kDF, row.scale);
    HW_UNROLL
    for (int64_t sub = 0; sub < kSubPanels; ++sub) {
      HW_UNROLL
      for (int half = 0; half < CodeSums<kType>::kHalves; ++half) {
        VI dot = hn::Load(DI(), codes.sums[half] + r * kRegisterSteps + sub * kLanes);
        if constexpr (kFormat.offset != 0) dot = hn::Add(dot, hn::Set(DI(), StartOfCodes<kType>(row, half)));
        sum[sub][r] = hn::MulAdd(scales.a[sub][half], hn::Mul(hn::ConvertTo(kDF, dot), scale), sum[sub][r]);
      }
      if constexpr (kFormat.has_min && kFormat.has_half_runs) {
        sum[sub][r] = hn::MulAdd(scales.b[sub][0], hn::Set(kDF, HalfSum(row, 0)), sum[sub][r]);
        sum[sub][r] = hn::MulAdd(scales.b[sub][1], hn::Set(kDF, HalfSum(row, 1)), sum[sub][r]);
      } else if constexpr (kFormat.has_min) {
        sum[sub][r] = hn::MulAdd(scales.b[sub][0], hn::Set(kDF, row.scaled_sum), sum[sub][r]);
      }
    }
  }
}

// Sums of kRows rows over the runs, on top of what stands in `out` if `args.add`. While vectors scale the sums of a
// run, those of the next are in memory already, and the one behind it is multiplied: vectors have what a register
// stores only when everything before the store is done.
template <WeightType kType, int64_t kRows>
void Int8RegisterMicro(Tiles& tiles, const PackedArgs& args, Int8Runs runs, int64_t first_row, int64_t output) {
  VF sum[kSubPanels][kRows];
  HW_UNROLL
  for (int64_t sub = 0; sub < kSubPanels; ++sub) {
    HW_UNROLL
    for (int64_t r = 0; r < kRows; ++r) sum[sub][r] = hn::Zero(kDF);
  }
  RunReader<kType> reader(runs);
  RunScales<kType> scales;
  CodeSums<kType> codes[2];
  alignas(64) uint8_t gathered[kUnpackedRunBytes * kSubPanels];
  const auto multiply = [&]<int kTurn>(int64_t run) HW_INLINE_LAMBDA {
    if (run < runs.num_runs) RunProducts<kType, kTurn>::Multiply(tiles, runs, reader.Codes(run, gathered), run);
  };
  const auto one_run = [&]<int kTurn>(int64_t run) HW_INLINE_LAMBDA {
    if (run + 1 < runs.num_runs) RunProducts<kType, 1 - kTurn>::Store(tiles, codes[1 - kTurn]);
    multiply.template operator()<kTurn>(run + 2);
    reader.Scales(run, scales);
    AddScaled<kType, kRows>(runs, run, codes[kTurn], scales, sum);
  };
  multiply.template operator()<0>(0);
  multiply.template operator()<1>(1);
  if (runs.num_runs > 0) RunProducts<kType, 0>::Store(tiles, codes[0]);
  for (int64_t run = 0; run < runs.num_runs; run += 2) {
    one_run.template operator()<0>(run);
    if (run + 1 < runs.num_runs) one_run.template operator()<1>(run + 1);
  }
  HW_UNROLL
  for (int64_t sub = 0; sub < kSubPanels; ++sub) {
    // A copy, because what is indexed while running lies in memory.
    VF rows[kRows];
    HW_UNROLL
    for (int64_t r = 0; r < kRows; ++r) rows[r] = sum[sub][r];
    if (output + sub * kLanes >= args.num_outputs) continue;
    const int64_t num_rows = args.num_rows - first_row < kRows ? args.num_rows - first_row : kRows;
    for (int64_t r = 0; r < num_rows; ++r) {
      const VF row[1] = {rows[r]};
      StoreRows<1>(row, args, first_row + r, output + sub * kLanes);
    }
  }
}

// Runs of rows [first_row, + 16), in `padded` where there are fewer.
inline const QuantizedRun* WholeRows(const PackedArgs& args, int64_t first_row, int64_t first_run, int64_t num_runs,
                                     QuantizedRun* padded) {
  const QuantizedRun* from = args.x_int8 + first_row * args.x_row_stride + first_run * args.x_run_stride;
  const int64_t num_rows = args.num_rows - first_row;
  if (num_rows >= kRegisterRows) return from;
  for (int64_t row = 0; row < kRegisterRows; ++row) {
    for (int64_t run = 0; run < num_runs; ++run) {
      QuantizedRun& to = padded[row * kTileRuns + run];
      if (row < num_rows) {
        to = from[row * args.x_row_stride + run * args.x_run_stride];
      } else {
        __builtin_memset(&to, 0, sizeof(to));
      }
    }
  }
  return padded;
}

template <WeightType kType>
void AmxPackedTileOf(const PackedArgs& args, void* scratch) {
  constexpr int64_t kFewRows = kRegisterRows / 2;
  constexpr int64_t kBytesOfX = kRunElements / CodeSums<kType>::kHalves;
  auto* const padded = reinterpret_cast<QuantizedRun*>(static_cast<uint8_t*>(scratch) + kPaddedRunsAt);
  const int64_t num_runs = args.depth / kRunElements;
  PackedArgs block = args;
  Tiles tiles(kBytesOfX);
  for (int64_t first = 0; first == 0 || first < num_runs; first += kTileRuns) {
    Int8Runs runs = {.x = nullptr,
                     .x_row_stride = args.x_row_stride,
                     .x_run_stride = args.x_run_stride,
                     .num_runs = num_runs - first < kTileRuns ? num_runs - first : kTileRuns,
                     .tile = UnpackedTile(scratch),
                     .panel = nullptr,
                     .panel_idx = 0,
                     .first_run = first};
    if constexpr (!kHasWholeBytes<kType>) UnpackTile<kType>(args, first, runs.num_runs, runs.tile);
    for (int64_t row = 0; row < args.num_rows; row += kRegisterRows) {
      runs.x = WholeRows(args, row, first, runs.num_runs, padded);
      if (runs.x == padded) {
        runs.x_row_stride = kTileRuns;
        runs.x_run_stride = 1;
      }
      for (int64_t output = 0; output < args.num_outputs; output += kPanelRows) {
        runs.panel_idx = output / kPanelRows;
        runs.panel = static_cast<const uint8_t*>(args.weight) + runs.panel_idx * PanelBytes(kType, args.depth);
        if (args.num_rows - row > kFewRows) {
          Int8RegisterMicro<kType, kRegisterRows>(tiles, block, runs, row, output);
        } else {
          Int8RegisterMicro<kType, kFewRows>(tiles, block, runs, row, output);
        }
      }
    }
    block.bias = nullptr;
    block.add = true;
  }
}

#endif

}  // namespace
}  // namespace headwise::cpu::HW_ISA

#endif  // HEADWISE_BACKEND_CPU_KERNELS_MATMUL_AMX_INT8_INL_H_
