// Products of many rows in Compute::kW8A8: rows of x and weights of block formats rounded to bytes with a scale for 512
// elements, against what that rounding loses of the product in double precision. Where a backend has none it says so.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "support/backends.h"
#include "support/random_blocks.h"
#include "support/random_rows.h"
#include "tensor/blocks.h"

namespace headwise {
namespace {

constexpr int64_t kGroup = 512;

// Formats whose codes are whole numbers.
constexpr DType kFormats[] = {DType::kQ8_0, DType::kQ4_0,   DType::kQ4_1,   DType::kQ5_0,  DType::kQ5_1,
                              DType::kQ4_K, DType::kQ5_K,   DType::kQ6_K,   DType::kQ2_K,  DType::kQ3_K,
                              DType::kU4,   DType::kIQ4_NL, DType::kIQ4_XS, DType::kMXFP4, DType::kTQ2_0};

struct Matrix {
  Floats values;  // [N, K] as the backend has them
  WeightMatrix adopted;
};

class W8A8 : public testing::TestWithParam<size_t> {
 protected:
  void SetUp() override {
    const Status status = CanMultiplyIn(Compute::kW8A8, backend());
    if (!status.ok()) GTEST_SKIP() << status.message();
  }
  Backend& backend() { return *backend_.backend; }

  Matrix RandomMatrix(int64_t num_outputs, int64_t depth, DType type, Random& random) {
    Matrix matrix{.values = random.Normal(num_outputs * depth), .adopted = {}};
    if (CanQuantize(type)) {
      Adopt(matrix, num_outputs, depth, type);
    } else {
      AdoptBytes(matrix, num_outputs, depth, type, RandomBlocks(type, {num_outputs, depth}, random.rng()));
    }
    return matrix;
  }
  // Rounds the values to the format.
  void Adopt(Matrix& matrix, int64_t num_outputs, int64_t depth, DType type) {
    std::vector<std::byte> bytes(BytesOf(type, num_outputs * depth));
    FromF32(type, matrix.values.data(), num_outputs * depth, bytes.data());
    AdoptBytes(matrix, num_outputs, depth, type, std::move(bytes));
  }
  void AdoptBytes(Matrix& matrix, int64_t num_outputs, int64_t depth, DType type, std::vector<std::byte> from) {
    static std::deque<std::vector<std::byte>> kept;  // where a backend reads weights as they are
    const std::vector<std::byte>& bytes = kept.emplace_back(std::move(from));
    ToF32(type, bytes.data(), num_outputs * depth, matrix.values.data());
    matrix.adopted = backend().AdoptWeights(ConstTensorView(bytes.data(), type, {num_outputs, depth})).value();
  }
  // Rounds a matrix of q8_0 to group scales, as an engine does to those of layers; `values` stay what they were.
  Matrix Prepared(const Matrix& matrix) {
    EXPECT_TRUE(backend().PrepareProducts(matrix.adopted, Compute::kW8A8).ok());
    return matrix;
  }
  Floats Product(const Floats& values, int64_t num_rows, const Matrix& weight, int64_t depth, const Floats& bias = {},
                 const Floats& start = {}) {
    const auto num_outputs = static_cast<int64_t>(weight.values.size()) / depth;
    const Held x(backend(), {num_rows, depth}, values);
    const Held held_bias(backend(), {static_cast<int64_t>(bias.size())}, bias);
    const bool adds = !start.empty();
    const Held out =
        adds ? Held(backend(), {num_rows, num_outputs}, start) : Held::Poisoned(backend(), {num_rows, num_outputs});
    const MatMulPart part{
        .weight = weight.adopted, .bias = bias.empty() ? TensorView{} : held_bias.view(), .out = out.view()};
    backend().MatMul({.x = x.view(),
                      .parts = {&part, 1},
                      .write = adds ? MatMulArgs::Write::kAdd : MatMulArgs::Write::kStore,
                      .compute = Compute::kW8A8});
    return out.Read();
  }

  NamedBackend backend_ = std::move(AllBackends()[GetParam()]);
};

// The squares of steps / sqrt(12), what rounding to bytes loses on average, of each group of each row.
std::vector<double> RoundingOf(const Floats& rows, int64_t depth) {
  std::vector<double> squares;
  for (size_t row = 0; row < rows.size(); row += depth) {
    for (int64_t first = 0; first < depth; first += kGroup) {
      float largest = 0;
      for (int64_t i = first; i < std::min(depth, first + kGroup); ++i)
        largest = std::max(largest, std::abs(rows[row + i]));
      squares.push_back(std::pow(largest / 127.0, 2) / 12);
    }
  }
  return squares;
}

// found = start + bias + x W^T, but for what rounding x and W to bytes loses: on average (root of the mean of squares)
// between `least` and `most` times as much as numbers lose that lie anywhere between two codes.
void ExpectProduct(const Floats& found, const Floats& start, const Floats& bias, const Floats& x, const Floats& weight,
                   int64_t depth, double least, double most) {
  const std::vector<double> of_x = RoundingOf(x, depth);
  const std::vector<double> of_weight = RoundingOf(weight, depth);
  const int64_t num_groups = (depth + kGroup - 1) / kGroup;
  const size_t num_outputs = weight.size() / depth;
  double all = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const size_t row = i / num_outputs, output = i % num_outputs;
    double expected = (start.empty() ? 0.0 : start[i]) + (bias.empty() ? 0.0 : bias[output]);
    double squares = 1e-12;
    for (int64_t k = 0; k < depth; ++k) {
      const double a = x[row * depth + k], b = weight[output * depth + k];
      expected += a * b;
      squares += a * a * of_weight[output * num_groups + k / kGroup] + b * b * of_x[row * num_groups + k / kGroup];
    }
    const double lost = std::abs(found[i] - expected) / std::sqrt(squares);
    // Of some 10,000 elements one in 10 million would be further off by chance.
    ASSERT_LE(lost, 6.5 * most) << "row " << row << " output " << output;
    all += lost * lost;
  }
  const double average = std::sqrt(all / static_cast<double>(found.size()));
  EXPECT_LE(average, most);
  EXPECT_GE(average, least);
}

TEST_P(W8A8, LosesWhatRoundingToBytesLoses) {
  for (uint32_t seed = 0; seed < 30 && !HasFatalFailure(); ++seed) {
    Random random(seed);
    const DType type = kFormats[seed % std::size(kFormats)];
    SCOPED_TRACE("seed " + std::to_string(seed) + ", " + std::string(NameOf(type)));
    const int64_t block = BlockElements(type);
    const int64_t num_rows = random.Between(96, 170);
    const int64_t depth = block * random.Between(1, 1400 / block);
    const int64_t num_outputs = random.Between(1, 70);
    const Matrix weight = RandomMatrix(num_outputs, depth, type, random);
    const Floats values = random.Normal(num_rows * depth);
    const Floats start = random.Coin() ? random.Normal(num_rows * num_outputs) : Floats();
    const Floats bias = random.Coin() ? random.Normal(num_outputs) : Floats();
    const Floats found = Product(values, num_rows, weight, depth, bias, start);
    // A group's scale is that of the largest number that its codes could stand for; weights of the run with the largest
    // scale are nearly codes already.
    ExpectProduct(found, start, bias, values, weight.values, depth, 0.6, 1.35);
  }
}

// A number far from the others costs its group precision, and no other one.
TEST_P(W8A8, AScaleIsAGroupsOwn) {
  Random random(7);
  const int64_t num_rows = 100, depth = 3 * kGroup, num_outputs = 40;
  const Matrix weight = RandomMatrix(num_outputs, depth, DType::kQ8_0, random);
  Floats values = random.Normal(num_rows * depth);
  for (int64_t row = 0; row < num_rows; ++row) values[row * depth + kGroup + row] = 300.0f;
  ExpectProduct(Product(values, num_rows, weight, depth), {}, {}, values, weight.values, depth, 0.6, 1.35);
}

TEST_P(W8A8, FewRowsAndPlainWeightsAreNotRoundedSo) {
  Random random(8);
  const int64_t depth = 1024, num_outputs = 40;
  const Matrix weight = RandomMatrix(num_outputs, depth, DType::kQ8_0, random);
  Matrix plain = weight;
  Adopt(plain, num_outputs, depth, DType::kF32);
  for (const auto& [num_rows, matrix] : {std::pair<int64_t, const Matrix*>{3, &weight}, {40, &weight}, {100, &plain}}) {
    const Floats values = random.Normal(num_rows * depth);
    const Floats found = Product(values, num_rows, *matrix, depth);
    ExpectProduct(found, {}, {}, values, matrix->values, depth, 0.0, 0.55);
  }
}

// More rows, outputs and groups than a task has, and a part that is not rounded so in the same call.
TEST_P(W8A8, ManyTasksAndPlainParts) {
  Random random(11);
  const int64_t num_rows = 560, depth = 1056, num_outputs = 290;
  const Matrix weight = RandomMatrix(num_outputs, depth, DType::kQ8_0, random);
  Matrix plain = RandomMatrix(20, depth, DType::kQ8_0, random);
  Adopt(plain, 20, depth, DType::kF32);
  const Floats values = random.Normal(num_rows * depth);
  const Held x(backend(), {num_rows, depth}, values);
  const Held out = Held::Poisoned(backend(), {num_rows, num_outputs});
  const Held plain_out = Held::Poisoned(backend(), {num_rows, 20});
  const MatMulPart parts[] = {{.weight = weight.adopted, .bias = {}, .out = out.view()},
                              {.weight = plain.adopted, .bias = {}, .out = plain_out.view()}};
  backend().MatMul({.x = x.view(), .parts = parts, .compute = Compute::kW8A8});
  ExpectProduct(out.Read(), {}, {}, values, weight.values, depth, 0.6, 1.35);
  ExpectProduct(plain_out.Read(), {}, {}, values, plain.values, depth, 0.0, 0.55);
}

// Whatever else is in the call, and wherever in it a row or an output stands.
TEST_P(W8A8, ARowDoesNotDependOnThoseBesideIt) {
  Random random(9);
  const int64_t depth = 1120, num_outputs = 75;
  const Matrix weight = RandomMatrix(num_outputs, depth, DType::kQ4_0, random);
  const Floats values = random.Normal(160 * depth);
  const Floats start = random.Normal(160 * num_outputs);
  for (const bool adds : {false, true}) {
    const Floats all = Product(values, 160, weight, depth, {}, adds ? start : Floats());
    const int64_t first = 37, num_rows = 101;
    const Floats some =
        Product(Floats(values.begin() + first * depth, values.begin() + (first + num_rows) * depth), num_rows, weight,
                depth, {},
                adds ? Floats(start.begin() + first * num_outputs, start.begin() + (first + num_rows) * num_outputs)
                     : Floats());
    EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin() + first * num_outputs)) << "adds " << adds;
  }
}

TEST_P(W8A8, NotANumberStaysOneAndNothingStaysNothing) {
  Random random(10);
  const int64_t num_rows = 100, depth = 640, num_outputs = 33;
  Matrix weight = RandomMatrix(num_outputs, depth, DType::kQ8_0, random);
  std::fill_n(weight.values.begin() + 4 * depth, depth, 0.0f);
  Adopt(weight, num_outputs, depth, DType::kQ8_0);
  Floats values = random.Normal(num_rows * depth);
  values[5 * depth + 7] = kNan;
  values[6 * depth + 600] = std::numeric_limits<float>::infinity();
  std::fill_n(values.begin() + 9 * depth, depth, 0.0f);
  const Floats found = Product(values, num_rows, weight, depth);
  for (int64_t i = 0; i < num_rows * num_outputs; ++i) {
    const int64_t row = i / num_outputs, output = i % num_outputs;
    const bool is_finite = row != 5 && row != 6;
    EXPECT_EQ(std::isfinite(found[i]), is_finite) << "row " << row;
    if (is_finite && (row == 9 || output == 4)) {
      EXPECT_EQ(found[i], 0.0f) << "row " << row;
    }
  }
}

// Matrices whose groups have had one scale since they were loaded, from the first row count on that takes tiles: 9.
TEST_P(W8A8, PreparedWeightsLoseAsMuch) {
  for (uint32_t seed = 0; seed < 24 && !HasFatalFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const int64_t num_rows = seed % 2 == 0 ? random.Between(9, 95) : random.Between(96, 170);
    const int64_t depth = 64 * random.Between(1, 40);
    const int64_t num_outputs = random.Between(1, 90);
    const Matrix weight = Prepared(RandomMatrix(num_outputs, depth, DType::kQ8_0, random));
    const Floats values = random.Normal(num_rows * depth);
    const Floats start = random.Coin() ? random.Normal(num_rows * num_outputs) : Floats();
    const Floats bias = random.Coin() ? random.Normal(num_outputs) : Floats();
    ExpectProduct(Product(values, num_rows, weight, depth, bias, start), start, bias, values, weight.values, depth, 0.6,
                  1.35);
  }
}

// Of which rows of x lose nothing of note: those have a scale for 32 elements. To prepare again changes nothing.
TEST_P(W8A8, FewRowsTakePreparedWeightsAsTheyAre) {
  Random random(12);
  const int64_t depth = 1536, num_outputs = 150;
  const Matrix weight = Prepared(RandomMatrix(num_outputs, depth, DType::kQ8_0, random));
  const Floats values = random.Normal(8 * depth);
  const Floats found = Product(values, 8, weight, depth);
  ExpectProduct(found, {}, {}, values, weight.values, depth, 0.5, 1.1);
  EXPECT_EQ(Product(values, 8, Prepared(weight), depth), found);
}

// A last register with half of its elements would be read beyond the matrix.
TEST_P(W8A8, WeightsWithoutWholeRegistersStayAsTheyAre) {
  Random random(13);
  const int64_t depth = 1056, num_outputs = 40;
  const Matrix weight = RandomMatrix(num_outputs, depth, DType::kQ8_0, random);
  const Floats values = random.Normal(100 * depth);
  const Floats few(values.begin(), values.begin() + 40 * depth);
  const Floats of_few = Product(few, 40, weight, depth);
  const Floats of_many = Product(values, 100, weight, depth);
  Prepared(weight);
  EXPECT_EQ(Product(few, 40, weight, depth), of_few);
  EXPECT_EQ(Product(values, 100, weight, depth), of_many);
}

// However many rows there are, from 9 on, and however many of K's groups pass by together for that.
TEST_P(W8A8, APreparedRowDoesNotDependOnThoseBesideIt) {
  Random random(14);
  const int64_t depth = 4 * kGroup + 192, num_outputs = 300, all_rows = 560;
  const Matrix weight = Prepared(RandomMatrix(num_outputs, depth, DType::kQ8_0, random));
  const Floats values = random.Normal(all_rows * depth);
  const Floats start = random.Normal(all_rows * num_outputs);
  for (const bool adds : {false, true}) {
    const Floats all = Product(values, all_rows, weight, depth, {}, adds ? start : Floats());
    for (const int64_t num_rows : {9, 16, 40, 160}) {
      const int64_t first = 37;
      const auto rows_of = [&](const Floats& from, int64_t dim) {
        return Floats(from.begin() + first * dim, from.begin() + (first + num_rows) * dim);
      };
      const Floats some =
          Product(rows_of(values, depth), num_rows, weight, depth, {}, adds ? rows_of(start, num_outputs) : Floats());
      EXPECT_EQ(some, rows_of(all, num_outputs)) << num_rows << " rows, adds " << adds;
    }
  }
}

// Parts that are prepared, that are not, and in a format that cannot be, in one call: few rows take bytes, runs and
// runs.
TEST_P(W8A8, PreparedAndOtherPartsTogether) {
  Random random(17);
  const int64_t depth = 1088, num_outputs = 70;
  const Matrix parts_of[] = {RandomMatrix(num_outputs, depth, DType::kQ8_0, random),
                             Prepared(RandomMatrix(num_outputs, depth, DType::kQ8_0, random)),
                             RandomMatrix(num_outputs, depth, DType::kQ4_0, random)};
  for (const int64_t num_rows : {4, 30, 100}) {
    const Floats values = random.Normal(num_rows * depth);
    const Held x(backend(), {num_rows, depth}, values);
    std::deque<Held> outs;
    std::vector<MatMulPart> parts;
    for (const Matrix& matrix : parts_of) {
      outs.push_back(Held::Poisoned(backend(), {num_rows, num_outputs}));
      parts.push_back({.weight = matrix.adopted, .bias = {}, .out = outs.back().view()});
    }
    backend().MatMul({.x = x.view(), .parts = parts, .compute = Compute::kW8A8});
    for (size_t i = 0; i < parts.size(); ++i) {
      EXPECT_EQ(outs[i].Read(), Product(values, num_rows, parts_of[i], depth)) << num_rows << " rows, part " << i;
    }
  }
}

TEST_P(W8A8, PreparedNotANumberStaysOneAndNothingStaysNothing) {
  Random random(16);
  const int64_t depth = 640, num_outputs = 33;
  Matrix weight = RandomMatrix(num_outputs, depth, DType::kQ8_0, random);
  std::fill_n(weight.values.begin() + 4 * depth, depth, 0.0f);
  std::vector<std::byte> bytes(BytesOf(DType::kQ8_0, num_outputs * depth));
  FromF32(DType::kQ8_0, weight.values.data(), num_outputs * depth, bytes.data());
  // Output 7's second run: a scale that is not a number; output 8's: an infinite one.
  const int64_t row_bytes = BytesOf(DType::kQ8_0, depth), run_bytes = BytesOf(DType::kQ8_0, 32);
  bytes[7 * row_bytes + run_bytes + 1] = std::byte{0x7E};
  bytes[8 * row_bytes + run_bytes] = std::byte{0x00};
  bytes[8 * row_bytes + run_bytes + 1] = std::byte{0x7C};
  AdoptBytes(weight, num_outputs, depth, DType::kQ8_0, std::move(bytes));
  Prepared(weight);
  for (const int64_t num_rows : {5, 20, 100}) {
    const Floats found = Product(random.Normal(num_rows * depth), num_rows, weight, depth);
    for (int64_t i = 0; i < num_rows * num_outputs; ++i) {
      const int64_t output = i % num_outputs;
      EXPECT_EQ(std::isfinite(found[i]), output != 7 && output != 8) << num_rows << " rows, output " << output;
      if (output == 4) {
        EXPECT_EQ(found[i], 0.0f);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, W8A8, testing::Range<size_t>(0, AllBackends().size()),
                         [](const auto& param) { return AllBackends()[param.param].name; });

}  // namespace
}  // namespace headwise
