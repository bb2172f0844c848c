// Products of many rows in FP8 (Compute::kFp8): rows of x and of weights rounded to e4m3 with a scale each, against the
// same rounding and the product in double precision. Where a backend has none it says so.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <string>
#include <vector>

#include "support/backends.h"
#include "support/random_rows.h"
#include "tensor/blocks.h"

namespace headwise {
namespace {

// How far a product may be from the oracle's, of the norm of what it sums: what sums on tensor cores lose
// (Cublas::MatMulFp8), and on average over many. Without rounding to e4m3 the average would be some 0.037.
struct Tolerance {
  double worst = 0.02;
  double average = 0.01;
};
// Where numbers that are rounded come from a norm or an activation, a little smaller or larger than the oracle's: one
// may be across the border between two codes, an eighth apart.
constexpr Tolerance kBehindOthers = {.worst = 0.13, .average = 0.01};

// The nearest e4m3, ties to even: 4 bits, the smallest exponent -6, the largest number 448.
double Rounded(float x) {
  const int exponent = std::max(std::ilogb(x == 0.0f ? 1e-30f : x), -6);
  const double step = std::ldexp(1.0, exponent - 3);
  return std::clamp(std::nearbyint(x / step) * step, -448.0, 448.0);
}
// Codes are of the f32 product with 448 / largest: bf16 weights lie on the border of two codes often.
std::vector<double> RowsRounded(const Floats& rows, int64_t depth) {
  std::vector<double> rounded(rows.size());
  for (size_t begin = 0; begin < rows.size(); begin += static_cast<size_t>(depth)) {
    float largest = 0;
    for (size_t i = begin; i < begin + depth; ++i) largest = std::max(largest, std::abs(rows[i]));
    const double scale = largest == 0 ? 1.0 : largest / 448.0;
    const float factor = largest == 0 ? 1.0f : 448.0f / largest;
    for (size_t i = begin; i < begin + depth; ++i) rounded[i] = scale * Rounded(rows[i] * factor);
  }
  return rounded;
}

struct Matrix {
  Floats values;  // [N, K] as the backend has them
  WeightMatrix adopted;
};

class Fp8 : public testing::TestWithParam<size_t> {
 protected:
  void SetUp() override {
    const Status status = CanMultiplyIn(Compute::kFp8, backend());
    if (!status.ok()) GTEST_SKIP() << status.message();
  }
  Backend& backend() { return *backend_.backend; }

  Matrix RandomMatrix(int64_t num_outputs, int64_t depth, DType type, Random& random) {
    static std::deque<std::vector<std::byte>> kept;  // where a backend reads weights as they are
    const int64_t count = num_outputs * depth;
    std::vector<std::byte>& bytes = kept.emplace_back(BytesOf(type, count));
    Matrix matrix{.values = random.Normal(count), .adopted = {}};
    for (int64_t i = 0; i < count; i += depth) matrix.values[i] *= 3.0f;  // rows differ in their largest number
    FromF32(type, matrix.values.data(), count, bytes.data());
    ToF32(type, bytes.data(), count, matrix.values.data());
    matrix.adopted = backend().AdoptWeights(ConstTensorView(bytes.data(), type, {num_outputs, depth})).value();
    EXPECT_TRUE(backend().PrepareProducts(matrix.adopted, Compute::kFp8).ok());
    return matrix;
  }

  // found = start + bias + x W^T, of rows and weights that are rounded if `is_fp8`.
  static void ExpectProduct(const Floats& found, const Floats& start, const Floats& bias, const Floats& x,
                            const Matrix& weight, int64_t depth, bool is_fp8, const Tolerance& tolerance = {}) {
    const auto wide = [](const Floats& values) { return std::vector<double>(values.begin(), values.end()); };
    const std::vector<double> a = is_fp8 ? RowsRounded(x, depth) : wide(x);
    const std::vector<double> b = is_fp8 ? RowsRounded(weight.values, depth) : wide(weight.values);
    const size_t num_outputs = b.size() / depth;
    double all_squares = 0;  // of what they differ by
    for (size_t i = 0; i < found.size(); ++i) {
      double sum = 0, squares = 0;
      for (int64_t k = 0; k < depth; ++k) {
        const double product = a[i / num_outputs * depth + k] * b[i % num_outputs * depth + k];
        sum += product;
        squares += product * product;
      }
      const double expected = (start.empty() ? 0.0 : start[i]) + (bias.empty() ? 0.0 : bias[i % num_outputs]) + sum;
      ASSERT_NEAR(found[i], expected, tolerance.worst * std::sqrt(squares) + 1e-4) << "element " << i;
      all_squares += std::pow(found[i] - expected, 2) / (squares + 1e-9);
    }
    EXPECT_LE(std::sqrt(all_squares / static_cast<double>(found.size())), tolerance.average);
  }

  NamedBackend backend_ = std::move(AllBackends()[GetParam()]);
};

TEST_P(Fp8, ProductsAreThoseOfRoundedRows) {
  for (uint32_t seed = 0; seed < 40 && !HasFatalFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const int64_t num_rows = random.Between(100, 200);
    const int64_t depth = 32 * random.Between(2, 30);
    const int64_t num_outputs = 16 * random.Between(1, 20);
    const DType types[] = {DType::kBF16, DType::kF32, DType::kF16, DType::kQ8_0};
    const Matrix weight = RandomMatrix(num_outputs, depth, types[seed % 4], random);
    const Floats values = random.Normal(num_rows * depth);
    const Floats start = random.Normal(num_rows * num_outputs);
    const Floats bias = random.Coin() ? random.Normal(num_outputs) : Floats();
    const bool adds = random.Coin();
    const Held x(backend(), {num_rows, depth}, values);
    const Held held_bias(backend(), {static_cast<int64_t>(bias.size())}, bias);
    const Held out =
        adds ? Held(backend(), {num_rows, num_outputs}, start) : Held::Poisoned(backend(), {num_rows, num_outputs});
    const MatMulPart part{
        .weight = weight.adopted, .bias = bias.empty() ? TensorView{} : held_bias.view(), .out = out.view()};
    backend().MatMul({.x = x.view(),
                      .parts = {&part, 1},
                      .write = adds ? MatMulArgs::Write::kAdd : MatMulArgs::Write::kStore,
                      .compute = Compute::kFp8});
    ExpectProduct(out.Read(), adds ? start : Floats(), bias, values, weight, depth, true);
  }
}

// A norm before the product, an activation and another product behind it, which are rounded on the way.
TEST_P(Fp8, NormsAndActivationsAreRoundedOnTheWay) {
  const std::unique_ptr<Backend> ref = MakeRefBackend();
  for (uint32_t seed = 0; seed < 10 && !HasFatalFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(100 + seed);
    const int64_t num_rows = random.Between(97, 110);
    const int64_t depth = 32 * random.Between(2, 20);
    // The last ones are longer than a block holds at once.
    const int64_t ffn_dim = seed >= 8 ? 8192 + 64 * seed : 32 * random.Between(2, 20);
    const Matrix gate = RandomMatrix(ffn_dim, depth, DType::kBF16, random);
    const Matrix up = RandomMatrix(ffn_dim, depth, DType::kBF16, random);
    const Matrix down = RandomMatrix(32, ffn_dim, DType::kBF16, random);
    const Floats values = random.Normal(num_rows * depth);
    const Floats norm_values = random.Normal(depth);
    const auto run = [&](Backend& on, bool is_whole, Floats& normed_values, Floats& gate_values, Floats& up_values) {
      const Held x(on, {num_rows, depth}, values), norm_weight(on, {depth}, norm_values);
      const Held normed = Held::Poisoned(on, {num_rows, depth});
      const Held gate_out(on, {num_rows, ffn_dim}, gate_values.empty() ? Floats(num_rows * ffn_dim) : gate_values);
      const Held up_out(on, {num_rows, ffn_dim}, up_values.empty() ? Floats(num_rows * ffn_dim) : up_values);
      const NormArgs norm{.x = x.view(), .weight = norm_weight.view(), .bias = {}, .out = normed.view()};
      const ActivateArgs activation{.gate = gate_out.view(), .x = up_out.view()};
      if (!is_whole) {
        on.Norm(norm);
        on.Activate(activation);
        normed_values = normed.Read();
        up_values = up_out.Read();
        return Floats();
      }
      const Held out = Held::Poisoned(on, {num_rows, 32});
      const MatMulPart parts[] = {{gate.adopted, {}, gate_out.view()}, {up.adopted, {}, up_out.view()}};
      const MatMulPart then{down.adopted, {}, out.view()};
      on.Linear({.norm = norm,
                 .product = {.x = normed.view(), .parts = parts, .compute = Compute::kFp8},
                 .activation = activation,
                 .then = MatMulArgs{.x = up_out.view(), .parts = {&then, 1}, .compute = Compute::kFp8}});
      gate_values = gate_out.Read();
      up_values = up_out.Read();
      return out.Read();
    };
    Floats normed, gated, upped, unused;
    const Floats found = run(backend(), true, unused, gated, upped);
    Floats activated = upped;
    run(*ref, false, normed, gated, activated);
    ExpectProduct(gated, {}, {}, normed, gate, depth, true, kBehindOthers);
    ExpectProduct(upped, {}, {}, normed, up, depth, true, kBehindOthers);
    ExpectProduct(found, {}, {}, activated, down, ffn_dim, true, kBehindOthers);
  }
}

TEST_P(Fp8, WhatDoesNotDivideStaysInItsFormat) {
  Random random(3);
  const int64_t num_rows = 120, depth = 72, num_outputs = 40;
  const Matrix weight = RandomMatrix(num_outputs, depth, DType::kBF16, random);
  const Floats values = random.Normal(num_rows * depth);
  const Held x(backend(), {num_rows, depth}, values);
  const Held out = Held::Poisoned(backend(), {num_rows, num_outputs});
  const MatMulPart part{.weight = weight.adopted, .bias = {}, .out = out.view()};
  backend().MatMul({.x = x.view(), .parts = {&part, 1}, .compute = Compute::kFp8});
  ExpectProduct(out.Read(), {}, {}, values, weight, depth, false);
}

TEST_P(Fp8, NotANumberStaysOne) {
  Random random(4);
  const int64_t num_rows = 100, depth = 64, num_outputs = 32;
  const Matrix weight = RandomMatrix(num_outputs, depth, DType::kBF16, random);
  Floats values = random.Normal(num_rows * depth);
  values[5 * depth + 7] = kNan;
  std::fill_n(values.begin() + 9 * depth, depth, 0.0f);
  const Held x(backend(), {num_rows, depth}, values);
  const Held out = Held::Poisoned(backend(), {num_rows, num_outputs});
  const MatMulPart part{.weight = weight.adopted, .bias = {}, .out = out.view()};
  backend().MatMul({.x = x.view(), .parts = {&part, 1}, .compute = Compute::kFp8});
  const Floats found = out.Read();
  for (int64_t i = 0; i < num_rows * num_outputs; ++i) {
    const int64_t row = i / num_outputs;
    EXPECT_EQ(std::isnan(found[i]), row == 5) << "row " << row;
    EXPECT_TRUE(row != 9 || found[i] == 0.0f) << found[i];
  }
}

INSTANTIATE_TEST_SUITE_P(, Fp8, testing::Range<size_t>(0, AllBackends().size()),
                         [](const auto& param) { return AllBackends()[param.param].name; });

}  // namespace
}  // namespace headwise
