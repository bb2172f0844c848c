// Products of many rows of x with weights in panels. In int8: a tile of 64 outputs and 1,024 elements of K is unpacked
// to bytes and f32 scales once, then all rows of x go by. In f32 and bf16: panels become the steps of
// matmul_tile-inl.h.
#ifndef HEADWISE_BACKEND_CPU_KERNELS_MATMUL_PACKED_TILE_INL_H_
#define HEADWISE_BACKEND_CPU_KERNELS_MATMUL_PACKED_TILE_INL_H_

#include "backend/cpu/kernels/matmul_packed-inl.h"
#include "backend/cpu/kernels/matmul_tile-inl.h"

namespace headwise::cpu::HW_ISA {
namespace {

// Formats that are alike once they are unpacked share their code.
constexpr WeightType UnpackedLike(WeightType type) {
  const PackedFormat format = FormatOf(type);
  if (format.has_half_runs) return type;
  if (format.has_min) return WeightType::kQ4_1;
  return format.offset == 128 ? WeightType::kQ8_0 : type;
}

// Vectors of outputs of a tile, and how one of them lies in scratch.
constexpr int64_t kTileVecs = kTileOutputs / kLanes;
constexpr int64_t kUnpackedRunBytes = kRunQuads * 4 * kLanes;
constexpr int64_t kRunScales = 4;  // a and b, or a of each half and b of each half
constexpr int64_t kTileCodeBytes = kTileVecs * kTileRuns * kUnpackedRunBytes;
static_assert(kTileCodeBytes + kTileVecs * kTileRuns * kRunScales * kLanes * 4 <= kTileScratchBytes);

struct UnpackedTile {
  uint8_t* codes;  // [kTileVecs][kTileRuns][8 quads][kLanes outputs][4]
  float* scales;   // [kTileVecs][kTileRuns][kRunScales][kLanes]

  explicit UnpackedTile(void* scratch)
      : codes(static_cast<uint8_t*>(scratch)), scales(reinterpret_cast<float*>(codes + kTileCodeBytes)) {}
  uint8_t* Codes(int64_t vec, int64_t run) const { return codes + (vec * kTileRuns + run) * kUnpackedRunBytes; }
  float* Scales(int64_t vec, int64_t run) const { return scales + (vec * kTileRuns + run) * kRunScales * kLanes; }
};

template <WeightType kType>
void UnpackTile(const PackedArgs& args, int64_t first_run, int64_t num_runs, const UnpackedTile& to) {
  const auto* weight = static_cast<const uint8_t*>(args.weight);
  const int64_t num_vecs = (args.num_outputs + kLanes - 1) / kLanes;
  for (int64_t vec = 0; vec < num_vecs; ++vec) {
    const uint8_t* panel = weight + vec / kSubPanels * PanelBytes(kType, args.depth);
    PanelReader<kType> reader(panel, vec % kSubPanels);
    for (int64_t run = 0; run < num_runs; ++run) {
      reader.BeginRun(first_run + run);
      reader.Prefetch();
      uint8_t* codes = to.Codes(vec, run);
      ForQuads([&]<int kQuad>()
                   HW_INLINE_LAMBDA { hn::Store(reader.template Codes<kQuad>(), D8(), codes + kQuad * 4 * kLanes); });
      float* scales = to.Scales(vec, run);
      hn::Store(reader.template A<0>(), kDF, scales);
      if constexpr (FormatOf(kType).has_half_runs) hn::Store(reader.template A<1>(), kDF, scales + kLanes);
      if constexpr (FormatOf(kType).has_min && FormatOf(kType).has_half_runs) {
        hn::Store(reader.template B<0>(), kDF, scales + 2 * kLanes);
        hn::Store(reader.template B<1>(), kDF, scales + 3 * kLanes);
      } else if constexpr (FormatOf(kType).has_min) {
        hn::Store(reader.B(), kDF, scales + kLanes);
      }
    }
  }
}

// Register tile, rows x vectors: dots and sums of each, and with 32 registers the weights of one quad.
constexpr int64_t kInt8Rows = kLanes == 16 ? 6 : 2;
constexpr int64_t kInt8Vecs = kLanes == 16 ? 2 : 1;
static_assert(kTileVecs % kInt8Vecs == 0);

struct Int8Block {
  const QuantizedRun* x;  // first row, first run
  UnpackedTile tile;
  int64_t first_vec;
  int64_t num_runs;
};

template <WeightType kType, int64_t kRows>
HWY_INLINE void AddRun(const PackedArgs& args, const Int8Block& block, int64_t run, VF (&sum)[kRows][kInt8Vecs]) {
  constexpr PackedFormat kFormat = FormatOf(kType);
  constexpr int kHalves = kFormat.has_half_runs ? 2 : 1;
  const QuantizedRun* x = block.x + run * args.x_run_stride;
  HW_UNROLL
  for (int half = 0; half < kHalves; ++half) {
    VI dot[kRows][kInt8Vecs];
    HW_UNROLL
    for (int64_t r = 0; r < kRows; ++r) {
      const QuantizedRun& row = x[r * args.x_row_stride];
      const VI start = half == 0 ? StartOf<kType, 0>(row) : StartOf<kType, 1>(row);
      HW_UNROLL
      for (int64_t v = 0; v < kInt8Vecs; ++v) dot[r][v] = start;
    }
    HW_UNROLL
    for (int quad = half * kRunQuads / kHalves; quad < (half + 1) * kRunQuads / kHalves; ++quad) {
      VB codes[kInt8Vecs];
      HW_UNROLL
      for (int64_t v = 0; v < kInt8Vecs; ++v) {
        codes[v] = hn::Load(D8(), block.tile.Codes(block.first_vec + v, run) + quad * 4 * kLanes);
      }
      HW_UNROLL
      for (int64_t r = 0; r < kRows; ++r) {
        const VI quad_of_x = QuadInLanes(x[r * args.x_row_stride].codes, quad);
        HW_UNROLL
        for (int64_t v = 0; v < kInt8Vecs; ++v) {
          dot[r][v] = CodeDot<kFormat.bits>(dot[r][v], codes[v], quad_of_x);
        }
      }
    }
    HW_UNROLL
    for (int64_t v = 0; v < kInt8Vecs; ++v) {
      const VF a = hn::Load(kDF, block.tile.Scales(block.first_vec + v, run) + half * kLanes);
      HW_UNROLL
      for (int64_t r = 0; r < kRows; ++r) {
        const VF scale = hn::Set(kDF, x[r * args.x_row_stride].scale);
        sum[r][v] = hn::MulAdd(a, hn::Mul(hn::ConvertTo(kDF, dot[r][v]), scale), sum[r][v]);
      }
    }
  }
  if constexpr (kFormat.has_min && kFormat.has_half_runs) {
    HW_UNROLL
    for (int64_t v = 0; v < kInt8Vecs; ++v) {
      const float* scales = block.tile.Scales(block.first_vec + v, run);
      HW_UNROLL
      for (int64_t r = 0; r < kRows; ++r) {
        const QuantizedRun& row = x[r * args.x_row_stride];
        sum[r][v] = hn::MulAdd(hn::Load(kDF, scales + 2 * kLanes), hn::Set(kDF, HalfSum(row, 0)), sum[r][v]);
        sum[r][v] = hn::MulAdd(hn::Load(kDF, scales + 3 * kLanes), hn::Set(kDF, HalfSum(row, 1)), sum[r][v]);
      }
    }
  } else if constexpr (kFormat.has_min) {
    HW_UNROLL
    for (int64_t v = 0; v < kInt8Vecs; ++v) {
      const VF b = hn::Load(kDF, block.tile.Scales(block.first_vec + v, run) + kLanes);
      HW_UNROLL
      for (int64_t r = 0; r < kRows; ++r) {
        sum[r][v] = hn::MulAdd(b, hn::Set(kDF, x[r * args.x_row_stride].scaled_sum), sum[r][v]);
      }
    }
  }
}

// Sums of kRows rows over the block's runs, on top of what stands in `out` if `args.add`.
template <WeightType kType, int64_t kRows>
void Int8Micro(const PackedArgs& args, const Int8Block& block, int64_t first_row) {
  VF sum[kRows][kInt8Vecs];
  HW_UNROLL
  for (int64_t r = 0; r < kRows; ++r) {
    HW_UNROLL
    for (int64_t v = 0; v < kInt8Vecs; ++v) sum[r][v] = hn::Zero(kDF);
  }
  for (int64_t run = 0; run < block.num_runs; ++run) AddRun<kType, kRows>(args, block, run, sum);
  HW_UNROLL
  for (int64_t v = 0; v < kInt8Vecs; ++v) {
    VF column[kRows];
    HW_UNROLL
    for (int64_t r = 0; r < kRows; ++r) column[r] = sum[r][v];
    const int64_t output = (block.first_vec + v) * kLanes;
    if (output < args.num_outputs) StoreRows<kRows>(column, args, first_row, output);
  }
}

template <WeightType kType, int64_t kRows = kInt8Rows>
void Int8MicroOf(int64_t num_rows, const PackedArgs& args, const Int8Block& block, int64_t first_row) {
  if constexpr (kRows > 1) {
    if (num_rows < kRows) return Int8MicroOf<kType, kRows - 1>(num_rows, args, block, first_row);
  }
  Int8Micro<kType, kRows>(args, block, first_row);
}

template <WeightType kType>
void MultiplyUnpacked(const PackedArgs& args, const UnpackedTile& tile, int64_t first_run, int64_t num_runs) {
  const int64_t num_groups = (args.num_rows + kInt8Rows - 1) / kInt8Rows;
  for (int64_t group = 0; group < num_groups; ++group) {
    const int64_t begin = group * args.num_rows / num_groups;
    const int64_t end = (group + 1) * args.num_rows / num_groups;
    for (int64_t vec = 0; vec * kLanes < args.num_outputs; vec += kInt8Vecs) {
      const Int8Block block = {.x = args.x_int8 + begin * args.x_row_stride + first_run * args.x_run_stride,
                               .tile = tile,
                               .first_vec = vec,
                               .num_runs = num_runs};
      Int8MicroOf<kType>(end - begin, args, block, begin);
    }
  }
}

template <WeightType kType>
void PackedTileOf(const PackedArgs& args, void* scratch) {
  const UnpackedTile tile(scratch);
  const int64_t num_runs = args.depth / kRunElements;
  PackedArgs block = args;
  for (int64_t first = 0; first == 0 || first < num_runs; first += kTileRuns) {
    const int64_t block_runs = num_runs - first < kTileRuns ? num_runs - first : kTileRuns;
    UnpackTile<kType>(args, first, block_runs, tile);
    MultiplyUnpacked<UnpackedLike(kType)>(block, tile, first, block_runs);
    block.bias = nullptr;
    block.add = true;
  }
}

// ---- f32 and bf16: panels to the steps of a tile -------------------------------------------------------------------

// Elements [4 quad, 4 quad + 4) of a vector of outputs, as the steps they are.
template <typename Steps>
HWY_INLINE void StoreSteps(const VF (&w)[4], float* to) {
  if constexpr (Steps::kPerStep == 1) {
    HW_UNROLL
    for (int k = 0; k < 4; ++k) hn::Store(w[k], kDF, to + k * kStepOutputs<Steps>);
  } else {
    hn::Store(PackBF16Pairs(w[0], w[1]), kDF, to);
    hn::Store(PackBF16Pairs(w[2], w[3]), kDF, to + kStepOutputs<Steps>);
  }
}

// Columns [first_output, + kLanes) of a panel of steps, from element `begin` on.
template <typename Steps, WeightType kType>
HWY_INLINE void StepsOfPanel(const TileArgs& args, int64_t first_output, int64_t begin, int64_t num_steps, float* to) {
  const uint8_t* panel =
      static_cast<const uint8_t*>(args.weight) + first_output / kPanelRows * PanelBytes(kType, args.depth);
  PanelReader<kType> reader(panel, first_output % kPanelRows / kLanes);
  constexpr int64_t kQuadSteps = 4 / Steps::kPerStep;
  const int64_t num_runs = num_steps * Steps::kPerStep / kRunElements;
  for (int64_t run = 0; run < num_runs; ++run) {
    reader.BeginRun(begin / kRunElements + run);
    reader.Prefetch();
    VF b[2] = {hn::Zero(kDF), hn::Zero(kDF)};
    if constexpr (FormatOf(kType).has_min) {
      b[0] = reader.template B<0>();
      b[1] = reader.template B<1>();
    }
    const VF a[2] = {reader.template A<0>(), reader.template A<1>()};
    ForQuads([&]<int kQuad>() HW_INLINE_LAMBDA {
      VF w[4];
      reader.template Levels<kQuad>(w);
      HW_UNROLL
      for (int i = 0; i < 4; ++i) w[i] = hn::MulAdd(a[kQuad / 4], w[i], b[kQuad / 4]);
      StoreSteps<Steps>(w, to + (run * kRunQuads + kQuad) * kQuadSteps * kStepOutputs<Steps>);
    });
  }
}

template <typename Steps, WeightType kType>
void PackPanels(const TileArgs& args, int64_t begin, int64_t num_steps) {
  for (int64_t output = 0; output < args.num_outputs; output += kStepOutputs<Steps>) {
    float* panel = args.scratch + output * num_steps;
    for (int64_t vec = 0; vec < kStepVecs<Steps>; ++vec) {
      const int64_t first = output + vec * kLanes;
      // Behind the last output stands what the micro-kernel computes and does not store.
      const int64_t known = first < args.num_outputs ? first : output;
      StepsOfPanel<Steps, kType>(args, known, begin, num_steps, panel + vec * kLanes);
    }
  }
}

#if HW_TILES

// Of weights in panels: a run of one.
template <WeightType kType>
class PanelRegister {
 public:
  using Sums = AmxSums;
  using Group = NoGroup;

  HWY_INLINE PanelRegister(const TileArgs& args, int64_t first_output, int64_t step, float* to, NoGroup /*group*/)
      : to_(to) {
    const uint8_t* panel =
        static_cast<const uint8_t*>(args.weight) + first_output / kPanelRows * PanelBytes(kType, args.depth);
    const int64_t run = step * BF16Steps::kPerStep / kRunElements;
    HW_UNROLL
    for (int64_t sub = 0; sub < kSubPanels; ++sub) {
      Part& part = parts_[sub];
      part.reader = PanelReader<kType>(panel, sub);
      if (run % BlockRuns(kType) != 0) part.reader.BeginRun(run - run % BlockRuns(kType));
      part.reader.BeginRun(run);
      part.reader.Prefetch();
      part.a[0] = part.reader.template A<0>();
      part.a[1] = part.reader.template A<1>();
      part.b[0] = part.b[1] = hn::Zero(kDF);
      if constexpr (FormatOf(kType).has_min) {
        part.b[0] = part.reader.template B<0>();
        part.b[1] = part.reader.template B<1>();
      }
    }
  }
  template <int kQuad>
  HWY_INLINE void Fill() const {
    HW_UNROLL
    for (int64_t sub = 0; sub < kSubPanels; ++sub) {
      const Part& part = parts_[sub];
      VF w[4];
      part.reader.template Levels<kQuad>(w);
      HW_UNROLL
      for (int i = 0; i < 4; ++i) w[i] = hn::MulAdd(part.a[kQuad / 4], w[i], part.b[kQuad / 4]);
      StoreSteps<BF16Steps>(w, to_ + kQuad * 2 * kRegisterSteps + sub * kLanes);
    }
  }

 private:
  struct Part {
    PanelReader<kType> reader;
    VF a[2], b[2];
  };
  Part parts_[kSubPanels];
  float* to_;
};

#endif

template <typename Steps, WeightType kType>
struct PanelWeights {
  static void Pack(const TileArgs& args, int64_t begin, int64_t num_steps) {
    PackPanels<Steps, kType>(args, begin, num_steps);
  }
#if HW_TILES
  using Register = PanelRegister<kType>;
#endif
};

}  // namespace
}  // namespace headwise::cpu::HW_ISA

#endif  // HEADWISE_BACKEND_CPU_KERNELS_MATMUL_PACKED_TILE_INL_H_
