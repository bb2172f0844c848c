// Block-format weights: packed they stand for the same values, and every instruction set's products equal those of f64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "backend/cpu/isa.h"
#include "backend/cpu/matmul.h"
#include "backend/cpu/packed_weights.h"
#include "support/random_blocks.h"
#include "tensor/blocks.h"

namespace headwise::cpu {
namespace {

struct alignas(64) Line {
  std::byte bytes[64];
};

// A packed matrix, and what it stands for.
struct Packed {
  Packed(DType dtype, const Shape& shape, std::mt19937& rng) : shape_of(shape) {
    const std::vector<std::byte> blocks = RandomBlocks(dtype, shape, rng);
    values.resize(static_cast<size_t>(shape.num_elements()));
    ToF32(dtype, blocks.data(), shape.num_elements(), values.data());
    memory.resize((PackedBytes(dtype, shape) + 63) / 64);
    ThreadPool pool(2);
    PackWeights(ConstTensorView(blocks.data(), dtype, shape), memory.data()->bytes, pool);
    matrix = PackedMatrix(dtype, shape, memory.data()->bytes);
  }
  Shape shape_of;
  std::vector<float> values;
  std::vector<Line> memory;
  WeightMatrix matrix;
};

class PackedWeights : public testing::TestWithParam<DType> {};

TEST_P(PackedWeights, RowsUnpackToWhatTheBlocksStandFor) {
  std::mt19937 rng(1);
  const Shape shape{21, 768};
  const Packed matrix(GetParam(), shape, rng);
  std::vector<float> row(768);
  for (int64_t r = 0; r < shape[0]; ++r) {
    UnpackRow(matrix.matrix, r, row.data());
    for (size_t i = 0; i < row.size(); ++i) {
      ASSERT_EQ(row[i], matrix.values[static_cast<size_t>(r) * row.size() + i]) << "row " << r << " element " << i;
    }
  }
}

TEST_P(PackedWeights, TakeTheBytesTheyTakeInTheFile) {
  const Shape shape{32, 4096};
  const double in_file = static_cast<double>(BytesOf(GetParam(), shape.num_elements()));
  const auto more = [&] {
    switch (GetParam()) {
      case DType::kQ3_K:
      case DType::kQ4_K:
      case DType::kQ5_K:
      case DType::kIQ4_XS:
        return 1.04;  // scales of six bits as bytes
      case DType::kTQ1_0:
        return 66.0 / 54.0;  // in the bits of tq2_0
      default:
        return 1.0;
    }
  };
  EXPECT_LE(static_cast<double>(PackedBytes(GetParam(), shape)), in_file * more());
}

struct Problem {
  int64_t num_rows, num_outputs, depth;
  Compute compute = Compute::kF32;
  MatMulArgs::Write write = MatMulArgs::Write::kStore;
};

// Tile registers multiply bf16 where others multiply bytes.
bool RoundsToBF16(const Problem& p, DType dtype, const MatMulKernels& kernels) {
  if (p.compute == Compute::kInt8 && HasFloatCodes(dtype)) return kernels.has_bf16_dot && p.num_rows > kMaxFewRows;
  if (p.compute == Compute::kInt8) return kernels.has_tiles && p.num_rows >= kMinRegisterRows;
  return p.compute == Compute::kBF16 && kernels.has_bf16_dot && p.num_rows > kMaxFewRows;
}

// x as the product sees it.
std::vector<double> SeenX(const std::vector<float>& x, const Problem& p, DType dtype, const MatMulKernels& kernels) {
  std::vector<double> seen(x.begin(), x.end());
  if (RoundsToBF16(p, dtype, kernels)) {
    for (double& value : seen) value = BF16ToF32(F32ToBF16(static_cast<float>(value)));
    return seen;
  }
  if (p.compute != Compute::kInt8 || HasFloatCodes(dtype)) return seen;
  for (size_t run = 0; run < seen.size(); run += kRunElements) {
    float largest = 0;
    for (size_t i = run; i < run + kRunElements; ++i) largest = std::max(largest, std::abs(x[i]));
    for (size_t i = run; i < run + kRunElements && largest > 0; ++i) {
      seen[i] = std::nearbyint(x[i] * (127.0f / largest)) * static_cast<double>(largest / 127.0f);
    }
  }
  return seen;
}

double SeenWeight(float value, const Problem& p, DType dtype, const MatMulKernels& kernels) {
  return RoundsToBF16(p, dtype, kernels) ? BF16ToF32(F32ToBF16(value)) : value;
}

std::vector<float> Product(const Problem& p, const Packed& weight, const std::vector<float>& x,
                           const std::vector<float>& bias, std::vector<float> out, const MatMulKernels& kernels) {
  ThreadPool pool(2);
  MatMulScratch scratch;
  const MatMulPart part{.weight = weight.matrix,
                        .bias = ConstTensorView(bias.data(), DType::kF32, {p.num_outputs}),
                        .out = {out.data(), DType::kF32, {p.num_rows, p.num_outputs}}};
  RunMatMul({.x = ConstTensorView(x.data(), DType::kF32, {p.num_rows, p.depth}),
             .parts = {&part, 1},
             .write = p.write,
             .compute = p.compute},
            kernels, pool, scratch);
  return out;
}

std::vector<float> Normal(int64_t count, std::mt19937& rng) {
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(rng);
  return values;
}

void CheckProblem(const Problem& p, DType dtype, const MatMulKernels& kernels, std::mt19937& rng) {
  const Packed weight(dtype, {p.num_outputs, p.depth}, rng);
  const std::vector<float> x = Normal(p.num_rows * p.depth, rng);
  const std::vector<float> bias = Normal(p.num_outputs, rng);
  const std::vector<float> before = Normal(p.num_rows * p.num_outputs, rng);
  const std::vector<float> out = Product(p, weight, x, bias, before, kernels);
  const std::vector<double> seen = SeenX(x, p, dtype, kernels);
  for (int64_t row = 0; row < p.num_rows; ++row) {
    for (int64_t output = 0; output < p.num_outputs; ++output) {
      const auto at = static_cast<size_t>(row * p.num_outputs + output);
      double expected = bias[static_cast<size_t>(output)];
      if (p.write == MatMulArgs::Write::kAdd) expected += before[at];
      double magnitudes = std::abs(expected);
      for (int64_t k = 0; k < p.depth; ++k) {
        const double term = seen[static_cast<size_t>(row * p.depth + k)] *
                            SeenWeight(weight.values[static_cast<size_t>(output * p.depth + k)], p, dtype, kernels);
        expected += term;
        magnitudes += std::abs(term);
      }
      // As in matmul_test.cc, over runs in place of elements; formats with minima add and take away terms of up to 16
      // times the weight. Losing one average term would be 15 times as much at the largest depth.
      const double tolerance = 16 * static_cast<double>(p.depth / 32 + 36) * std::ldexp(1.0, -24) * magnitudes;
      ASSERT_NEAR(out[at], expected, tolerance)
          << NameOf(dtype) << " M " << p.num_rows << " N " << p.num_outputs << " K " << p.depth << " compute "
          << static_cast<int>(p.compute) << " row " << row << " output " << output;
    }
  }
}

TEST_P(PackedWeights, ProductsEqualThoseInDouble) {
  for (const KernelTable* kernels : AvailableKernelTables()) {
    SCOPED_TRACE(kernels->isa);
    std::mt19937 rng(2);
    for (const Compute compute : {Compute::kF32, Compute::kBF16, Compute::kInt8}) {
      for (const int64_t num_rows : {1, 2, 3, 5, 8, 9, 13, 20, 40, 100}) {
        const int64_t num_outputs = 16 * num_rows % 90 + num_rows % 5;
        // Also an odd number of blocks, where these are short: panels end within a stretch.
        const int64_t odd = BlockElements(GetParam()) < 256 ? BlockElements(GetParam()) : 0;
        const int64_t depth = num_rows % 3 == 0 ? 1280 : num_rows % 3 == 1 ? 256 + odd : 1024;
        const auto write = num_rows % 2 == 0 ? MatMulArgs::Write::kAdd : MatMulArgs::Write::kStore;
        CheckProblem({num_rows, num_outputs, depth, compute, write}, GetParam(), kernels->matmul, rng);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(PackedWeights, ARowDoesNotDependOnItsNeighbours) {
  for (const KernelTable* kernels : AvailableKernelTables()) {
    SCOPED_TRACE(kernels->isa);
    std::mt19937 rng(3);
    const int64_t depth = 1280, num_outputs = 37;
    const Packed weight(GetParam(), {num_outputs, depth}, rng);
    const std::vector<float> bias = Normal(num_outputs, rng);
    for (const Compute compute : {Compute::kF32, Compute::kInt8}) {
      const std::vector<float> x = Normal(8 * depth, rng);
      const std::vector<float> alone = Product({1, num_outputs, depth, compute}, weight, {x.begin(), x.begin() + depth},
                                               bias, std::vector<float>(num_outputs), kernels->matmul);
      for (const int64_t num_rows : {2, 3, 4, 5, 6, 7, 8}) {
        const std::vector<float> together =
            Product({num_rows, num_outputs, depth, compute}, weight, {x.begin(), x.begin() + num_rows * depth}, bias,
                    std::vector<float>(static_cast<size_t>(num_rows * num_outputs)), kernels->matmul);
        for (size_t i = 0; i < alone.size(); ++i) ASSERT_EQ(together[i], alone[i]) << "rows " << num_rows;
      }
      if (compute != Compute::kInt8 || !HasWholeCodes(WeightTypeOf(GetParam()))) continue;
      // More rows go another way, by the same sums.
      for (const int64_t num_rows : {9, 23}) {
        std::vector<float> more = Normal(num_rows * depth, rng);
        std::copy_n(x.begin(), depth, more.end() - depth);
        const std::vector<float> together =
            Product({num_rows, num_outputs, depth, compute}, weight, more, bias,
                    std::vector<float>(static_cast<size_t>(num_rows * num_outputs)), kernels->matmul);
        const size_t last = together.size() - alone.size();
        for (size_t i = 0; i < alone.size(); ++i) ASSERT_EQ(together[last + i], alone[i]) << "rows " << num_rows;
      }
    }
  }
}

// x of 0, subnormal and with one outlier.
TEST(QuantizeRow, SpecialValues) {
  for (const KernelTable* kernels : AvailableKernelTables()) {
    SCOPED_TRACE(kernels->isa);
    std::vector<QuantizedRun> runs(3);
    std::vector<float> x(96, 0.0f);
    std::fill_n(x.begin() + 32, 32, 1e-42f);
    x[64] = -1e30f;
    x[65] = 1.0f;
    kernels->matmul.quantize_row(x.data(), 96, runs.data(), 1);
    for (const QuantizedRun& run : runs) EXPECT_TRUE(std::isfinite(run.scale) && std::isfinite(run.scaled_sum));
    EXPECT_EQ(runs[0].scale, 0.0f);
    for (int i = 0; i < 32; ++i) {
      EXPECT_EQ(runs[0].codes[i], 0);
      EXPECT_EQ(runs[1].codes[i], 0);
      EXPECT_EQ(runs[2].codes[i], i == 0 ? -127 : 0);
    }
  }
}

// Codes hold no NaN: an element that is none, wherever it stands, must not become a number.
TEST(QuantizeRow, WhatIsNoNumberStaysNone) {
  for (const KernelTable* kernels : AvailableKernelTables()) {
    SCOPED_TRACE(kernels->isa);
    for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
      for (size_t i = 0; i < 32; ++i) {
        std::vector<QuantizedRun> runs(3);
        std::vector<float> x(96, 1.0f);
        x[32 + i] = bad;
        kernels->matmul.quantize_row(x.data(), 96, runs.data(), 1);
        EXPECT_TRUE(std::isnan(runs[1].scale) && std::isnan(runs[1].scaled_sum)) << bad << " at " << i;
        EXPECT_EQ(runs[0].scale, 1.0f / 127.0f);
        EXPECT_EQ(runs[2].scale, 1.0f / 127.0f);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, PackedWeights, testing::ValuesIn(kBlockFormats),
                         [](const auto& instance) { return std::string(NameOf(instance.param)); });

}  // namespace
}  // namespace headwise::cpu
