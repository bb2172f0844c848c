// Products of a few rows of x with weights in panels, as in decoding. Memory is the limit: every byte of a panel is
// read once for all rows and unpacked in registers.
#ifndef HEADWISE_BACKEND_CPU_KERNELS_MATMUL_PACKED_INL_H_
#define HEADWISE_BACKEND_CPU_KERNELS_MATMUL_PACKED_INL_H_

#include "backend/cpu/kernels/matmul_kernels.h"
#include "backend/cpu/kernels/packed_panel-inl.h"

namespace headwise::cpu::HW_ISA {
namespace {

// Where the sum of products of codes starts that is to end at that of (code - offset). A machine that centers codes of
// 8 bits by itself has nothing to correct there.
template <WeightType kType, int kHalf>
HWY_INLINE VI StartOf(const QuantizedRun& x) {
  constexpr int kOffset = FormatOf(kType).offset;
  if constexpr (kOffset == 0 || (kOffset == 128 && kCentersCodes))
    return hn::Zero(DI());
  else if constexpr (kOffset == 1)
    return hn::Set(DI(), x.start_8 / 8);
  else if constexpr (kOffset == 4)
    return hn::Set(DI(), x.start_32[kHalf] / 8);
  else if constexpr (kOffset == 8)
    return hn::Set(DI(), x.start_8);
  else if constexpr (kOffset == 16)
    return hn::Set(DI(), x.start_16);
  else if constexpr (kOffset == 128)
    return hn::Set(DI(), x.start_128);
  else
    return hn::Set(DI(), x.start_32[kHalf]);
}

// Of elements [16 half, 16 half + 16): what the minimum of their weights is multiplied with.
HWY_INLINE float HalfSum(const QuantizedRun& x, int half) {
  return x.scale * static_cast<float>(x.start_32[half] / -32);
}
HWY_INLINE float HalfSum(const FloatRun& x, int half) {
  float sum = 0;
  for (int i = 0; i < 16; ++i) sum += x.values[16 * half + i];
  return sum;
}

// Sums of one block of runs; those behind the first join what it has stored.
enum class RunBlock { kFirst, kLater };

template <int64_t kRows>
HWY_INLINE void StoreRows(const VF (&sum)[kRows], const PackedArgs& args, int64_t first_row, int64_t output,
                          RunBlock block = RunBlock::kFirst) {
  const float* bias = args.bias != nullptr && block == RunBlock::kFirst ? args.bias + output : nullptr;
  const bool add = args.add || block == RunBlock::kLater;
  const int64_t num_outputs = args.num_outputs - output;
  for (int64_t r = 0; r < kRows; ++r) {
    float* out = args.out + (first_row + r) * args.out_stride + output;
    if (num_outputs >= kLanes) {
      VF value = bias != nullptr ? hn::Add(sum[r], hn::LoadU(kDF, bias)) : sum[r];
      if (add) value = hn::Add(hn::LoadU(kDF, out), value);
      hn::StoreU(value, kDF, out);
      continue;
    }
    alignas(64) float values[kLanes];
    hn::Store(sum[r], kDF, values);
    for (int64_t i = 0; i < num_outputs; ++i) {
      const float value = bias != nullptr ? values[i] + bias[i] : values[i];
      out[i] = add ? out[i] + value : value;
    }
  }
}

// Runs [begin, end), which begin with a block of the format.
template <WeightType kType, int64_t kRows>
HWY_INLINE void SubPanelInt8(const PackedArgs& args, const void* panel, int64_t sub, int64_t first_row, int64_t begin,
                             int64_t end, VF (&sum)[kRows]) {
  PanelReader<kType> reader(panel, sub);
  constexpr int kBits = PanelReader<kType>::kCodeBits;
  constexpr PackedFormat kFormat = FormatOf(kType);
  const QuantizedRun* x = args.x_int8 + first_row * args.x_row_stride + begin * args.x_run_stride;
  for (int64_t run = begin; run < end; ++run, x += args.x_run_stride) {
    reader.BeginRun(run);
    reader.Prefetch();
    VI dot[kFormat.has_half_runs ? 2 : 1][kRows];
    HW_UNROLL
    for (int64_t r = 0; r < kRows; ++r) {
      dot[0][r] = StartOf<kType, 0>(x[r * args.x_row_stride]);
      if constexpr (kFormat.has_half_runs) dot[1][r] = StartOf<kType, 1>(x[r * args.x_row_stride]);
    }
    ForQuads([&]<int kQuad>() HW_INLINE_LAMBDA {
      constexpr int kHalf = kFormat.has_half_runs ? kQuad / 4 : 0;
      const VB codes = reader.template Codes<kQuad>();
      HW_UNROLL
      for (int64_t r = 0; r < kRows; ++r) {
        dot[kHalf][r] = CodeDot<kBits>(dot[kHalf][r], codes, QuadInLanes(x[r * args.x_row_stride].codes, kQuad));
      }
    });
    const VF a = reader.template A<0>();
    HW_UNROLL
    for (int64_t r = 0; r < kRows; ++r) {
      const QuantizedRun& row = x[r * args.x_row_stride];
      const VF scale = hn::Set(kDF, row.scale);
      sum[r] = hn::MulAdd(a, hn::Mul(hn::ConvertTo(kDF, dot[0][r]), scale), sum[r]);
      if constexpr (kFormat.has_half_runs) {
        sum[r] = hn::MulAdd(reader.template A<1>(), hn::Mul(hn::ConvertTo(kDF, dot[1][r]), scale), sum[r]);
      }
      if constexpr (kFormat.has_min && kFormat.has_half_runs) {
        sum[r] = hn::MulAdd(reader.template B<0>(), hn::Set(kDF, HalfSum(row, 0)), sum[r]);
        sum[r] = hn::MulAdd(reader.template B<1>(), hn::Set(kDF, HalfSum(row, 1)), sum[r]);
      } else if constexpr (kFormat.has_min) {
        sum[r] = hn::MulAdd(reader.B(), hn::Set(kDF, row.scaled_sum), sum[r]);
      }
    }
  }
}

template <WeightType kType, int64_t kRows>
HWY_INLINE void SubPanelF32(const PackedArgs& args, const void* panel, int64_t sub, int64_t first_row,
                            VF (&sum)[kRows]) {
  PanelReader<kType> reader(panel, sub);
  constexpr PackedFormat kFormat = FormatOf(kType);
  const FloatRun* x = args.x_f32 + first_row * args.x_row_stride;
  const int64_t num_runs = args.depth / kRunElements;
  for (int64_t run = 0; run < num_runs; ++run, x += args.x_run_stride) {
    reader.BeginRun(run);
    reader.Prefetch();
    VF dot[kFormat.has_half_runs ? 2 : 1][kRows];
    HW_UNROLL
    for (int64_t r = 0; r < kRows; ++r) {
      dot[0][r] = hn::Zero(kDF);
      if constexpr (kFormat.has_half_runs) dot[1][r] = hn::Zero(kDF);
    }
    ForQuads([&]<int kQuad>() HW_INLINE_LAMBDA {
      constexpr int kHalf = kFormat.has_half_runs ? kQuad / 4 : 0;
      VF w[4];
      reader.template Levels<kQuad>(w);
      HW_UNROLL
      for (int64_t r = 0; r < kRows; ++r) {
        const float* row = x[r * args.x_row_stride].values + 4 * kQuad;
        HW_UNROLL
        for (int k = 0; k < 4; ++k) dot[kHalf][r] = hn::MulAdd(w[k], hn::Set(kDF, row[k]), dot[kHalf][r]);
      }
    });
    HW_UNROLL
    for (int64_t r = 0; r < kRows; ++r) {
      sum[r] = hn::MulAdd(reader.template A<0>(), dot[0][r], sum[r]);
      if constexpr (kFormat.has_half_runs) sum[r] = hn::MulAdd(reader.template A<1>(), dot[1][r], sum[r]);
      [[maybe_unused]] const FloatRun& row = x[r * args.x_row_stride];
      if constexpr (kFormat.has_min && kFormat.has_half_runs) {
        sum[r] = hn::MulAdd(reader.template B<0>(), hn::Set(kDF, HalfSum(row, 0)), sum[r]);
        sum[r] = hn::MulAdd(reader.template B<1>(), hn::Set(kDF, HalfSum(row, 1)), sum[r]);
      } else if constexpr (kFormat.has_min) {
        sum[r] = hn::MulAdd(reader.B(), hn::Set(kDF, row.sum), sum[r]);
      }
    }
  }
}

// In blocks of kTileRuns runs, whose sums are added one after the other: as the tiles of many rows have it
// (matmul_packed_tile-inl.h), so that the two give the same bits.
template <WeightType kType, int64_t kRows>
HWY_INLINE void Int8Outputs(const PackedArgs& args, const void* panel, int64_t sub, int64_t first_row, int64_t output) {
  const int64_t num_runs = args.depth / kRunElements;
  for (int64_t first = 0; first == 0 || first < num_runs; first += kTileRuns) {
    VF sum[kRows];
    HW_UNROLL
    for (int64_t r = 0; r < kRows; ++r) sum[r] = hn::Zero(kDF);
    const int64_t end = num_runs - first < kTileRuns ? num_runs : first + kTileRuns;
    SubPanelInt8<kType, kRows>(args, panel, sub, first_row, first, end, sum);
    StoreRows<kRows>(sum, args, first_row, output, first == 0 ? RunBlock::kFirst : RunBlock::kLater);
  }
}

template <WeightType kType, int64_t kRows>
HWY_INLINE void F32Outputs(const PackedArgs& args, const void* panel, int64_t sub, int64_t first_row, int64_t output) {
  VF sum[kRows];
  HW_UNROLL
  for (int64_t r = 0; r < kRows; ++r) sum[r] = hn::Zero(kDF);
  SubPanelF32<kType, kRows>(args, panel, sub, first_row, sum);
  StoreRows<kRows>(sum, args, first_row, output);
}

template <WeightType kType, int64_t kRows>
void PackedRows(const PackedArgs& args, int64_t first_row) {
  const auto* panel = static_cast<const uint8_t*>(args.weight);
  for (int64_t output = 0; output < args.num_outputs; output += kPanelRows, panel += PanelBytes(kType, args.depth)) {
    for (int64_t sub = 0; sub < kSubPanels && output + sub * kLanes < args.num_outputs; ++sub) {
      if constexpr (HasWholeCodes(kType)) {
        if (args.x_int8 != nullptr) {
          Int8Outputs<kType, kRows>(args, panel, sub, first_row, output + sub * kLanes);
          continue;
        }
      }
      F32Outputs<kType, kRows>(args, panel, sub, first_row, output + sub * kLanes);
    }
  }
}

// Rows together: their sums, dots and the weights stay in registers. More of them take further passes over a task's
// weights, which are in the cache then.
template <WeightType kType>
void PackedFewRowsOf(const PackedArgs& args) {
  constexpr int64_t kMost = kLanes == 16 ? (FormatOf(kType).has_half_runs ? 4 : 8) : 2;
  int64_t row = 0;
  if constexpr (kMost >= 8) {
    for (; row + 8 <= args.num_rows; row += 8) PackedRows<kType, 8>(args, row);
  }
  if constexpr (kMost >= 4) {
    for (; row + 4 <= args.num_rows; row += 4) PackedRows<kType, 4>(args, row);
  }
  for (; row + 2 <= args.num_rows; row += 2) PackedRows<kType, 2>(args, row);
  if (row < args.num_rows) PackedRows<kType, 1>(args, row);
}

}  // namespace
}  // namespace headwise::cpu::HW_ISA

#endif  // HEADWISE_BACKEND_CPU_KERNELS_MATMUL_PACKED_INL_H_
