// Products with weights in block formats on every backend, in every kind of numbers: against `ref`, and, where a GPU
// multiplies integers, against float64 sums of what it is to see. Blocks are random: every code and scale occurs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "support/backends.h"
#include "support/random_blocks.h"
#include "support/random_rows.h"
#include "tensor/blocks.h"

namespace headwise {
namespace {

// Of rows that a GPU multiplies as integers at least.
constexpr int64_t kMaxIntegerRows = 32;

struct HostMatrix {
  HostMatrix(DType dtype, const Shape& its_shape, Random& random)
      : shape(its_shape), bytes(RandomBytes(dtype, shape, random)), view(bytes.data(), dtype, shape) {
    values.resize(static_cast<size_t>(shape.num_elements()));
    ToF32(dtype, bytes.data(), shape.num_elements(), values.data());
  }
  static std::vector<std::byte> RandomBytes(DType dtype, const Shape& shape, Random& random) {
    if (IsBlockFormat(dtype)) return RandomBlocks(dtype, shape, random.rng());
    std::vector<std::byte> bytes(BytesOf(dtype, shape.num_elements()));
    FromF32(dtype, random.Normal(shape.num_elements()).data(), shape.num_elements(), bytes.data());
    return bytes;
  }
  Shape shape;
  std::vector<std::byte> bytes;
  ConstTensorView view;
  Floats values;
};

struct Call {
  std::vector<DType> formats;
  int64_t num_rows = 1;
  int64_t num_outputs = 1;  // of each part
  int64_t depth = 256;
  Compute compute = Compute::kInt8;
  MatMulArgs::Write write = MatMulArgs::Write::kStore;
  bool has_bias = false;
  bool has_norm = false;
  std::optional<ActivateArgs::Kind> activation = std::nullopt;

  std::string InWords() const {
    std::string words;
    for (const DType format : formats) words += std::string(NameOf(format)) + " ";
    return words + "rows " + std::to_string(num_rows) + " outputs " + std::to_string(num_outputs) + " K " +
           std::to_string(depth) + " " + std::string(NameOf(compute));
  }
};

// A call's numbers in host memory.
struct Data {
  Data(const Call& call, Random& random)
      : x(random.Normal(call.num_rows * call.depth)), norm_weight(random.Normal(call.depth)) {
    for (const DType format : call.formats) {
      matrices.emplace_back(format, Shape{call.num_outputs, call.depth}, random);
      biases.push_back(random.Normal(call.num_outputs));
      outs.push_back(random.Normal(call.num_rows * call.num_outputs));
    }
  }
  Floats x, norm_weight;
  std::deque<HostMatrix> matrices;
  std::vector<Floats> biases, outs;
};

// One call of a backend, as often as wanted.
class Runner {
 public:
  Runner(Backend& backend, const Call& call, const Data& data) : backend_(backend), call_(call), data_(data) {
    for (const HostMatrix& matrix : data.matrices) adopted_.push_back(backend.AdoptWeights(matrix.view).value());
  }

  // Outputs of rows [first_row, first_row + num_rows), part behind part. `is_apart`: every part, norm and all, and the
  // activation by a call each.
  Floats Run(int64_t first_row, int64_t num_rows, bool is_apart = false) const {
    const auto rows = [&](const Floats& all, int64_t width) {
      return Floats(all.begin() + first_row * width, all.begin() + (first_row + num_rows) * width);
    };
    const Held x(backend_, {num_rows, call_.depth}, rows(data_.x, call_.depth));
    const Held norm_weight(backend_, {call_.depth}, data_.norm_weight);
    const Held normed = Held::Poisoned(backend_, {num_rows, call_.depth});
    std::vector<Held> outs, biases;
    std::vector<MatMulPart> parts;
    for (size_t i = 0; i < adopted_.size(); ++i) {
      outs.push_back(call_.write == MatMulArgs::Write::kAdd
                         ? Held(backend_, {num_rows, call_.num_outputs}, rows(data_.outs[i], call_.num_outputs))
                         : Held::Poisoned(backend_, {num_rows, call_.num_outputs}));
      biases.push_back(Held(backend_, {call_.num_outputs}, data_.biases[i]));
      parts.push_back(
          {.weight = adopted_[i], .bias = call_.has_bias ? biases[i].view() : TensorView{}, .out = outs[i].view()});
    }
    LinearArgs args{.product = {.x = call_.has_norm ? normed.view() : x.view(),
                                .parts = parts,
                                .write = call_.write,
                                .compute = call_.compute}};
    if (call_.has_norm) {
      args.norm = NormArgs{.x = x.view(), .weight = norm_weight.view(), .bias = {}, .out = normed.view()};
    }
    if (call_.activation) {
      args.activation = ActivateArgs{.kind = *call_.activation, .gate = parts[0].out, .x = parts[1].out};
    }
    if (is_apart) {
      for (const MatMulPart& part : parts) {
        LinearArgs one = args;
        one.product.parts = {&part, 1};
        one.activation.reset();
        backend_.Linear(one);
      }
      if (args.activation) backend_.Activate(*args.activation);
    } else {
      backend_.Linear(args);
    }
    Floats found;
    // A gate may be left unwritten.
    for (size_t i = call_.activation ? 1 : 0; i < outs.size(); ++i) {
      const Floats part = outs[i].Read();
      found.insert(found.end(), part.begin(), part.end());
    }
    return found;
  }
  Floats RunAll(bool is_apart = false) const { return Run(0, call_.num_rows, is_apart); }

 private:
  Backend& backend_;
  const Call& call_;
  const Data& data_;
  std::vector<WeightMatrix> adopted_;
};

class BlockWeights : public testing::TestWithParam<size_t> {
 protected:
  Backend& backend() { return *backend_.backend; }
  bool is_cuda() const { return backend_.backend->name() == "cuda"; }
  bool IsHopper() const {
    return is_cuda() && backend_.backend->Description().find("compute capability 9.0") != std::string::npos;
  }

  // Products alone, against ref's.
  void ExpectAsRef(const Call& call, Random& random) {
    SCOPED_TRACE(call.InWords());
    const Data data(call, random);
    const Floats expected = Runner(*ref_, call, data).RunAll();
    const Floats found = Runner(backend(), call, data).RunAll();
    // Shares of the root of the sum of squared weights, by which errors of x grow. Of bytes an error is 1/254 of the
    // largest of 32 numbers at most, some 0.005 usually: this is eight of those. bf16 rounds both to 8 bits. A norm's
    // weights are random too, and the largest of 32 products of two such numbers is twice as large.
    const double share = (call.compute == Compute::kInt8   ? 0.04
                          : call.compute == Compute::kBF16 ? 0.02
                                                           : 1e-4) *
                         (call.has_norm ? 2 : 1);
    const auto num_outputs = static_cast<size_t>(call.num_outputs);
    const size_t part_size = expected.size() / data.matrices.size();
    std::vector<double> tolerances;  // by part and output
    for (const HostMatrix& matrix : data.matrices) {
      for (size_t output = 0; output < num_outputs; ++output) {
        double squares = 0;
        for (int64_t k = 0; k < call.depth; ++k) {
          const double weight = matrix.values[output * static_cast<size_t>(call.depth) + static_cast<size_t>(k)];
          squares += weight * weight;
        }
        tolerances.push_back(share * std::sqrt(squares) + 1e-5);
      }
    }
    ExpectNear(found, expected, [&](size_t i) { return tolerances[i / part_size * num_outputs + i % num_outputs]; });
  }

  // Of what few rows are rounded to: the largest of 32 becomes 127. With a norm those are rows times its weight, and
  // sums are divided by the root mean square.
  void ExpectIntegerSums(const Call& call, Random& random) {
    SCOPED_TRACE(call.InWords());
    const Data data(call, random);
    const Floats found = Runner(backend(), call, data).RunAll();
    Floats rows = data.x;
    const auto depth = static_cast<size_t>(call.depth);
    for (size_t i = 0; call.has_norm && i < rows.size(); ++i) rows[i] *= data.norm_weight[i % depth];
    std::vector<double> seen(rows.size());
    for (size_t run = 0; run < seen.size(); run += 32) {
      float largest = 0;
      for (size_t i = run; i < run + 32; ++i) largest = std::max(largest, std::abs(rows[i]));
      const float inverse = 127.0f / largest;
      const float step = largest / 127.0f;
      for (size_t i = run; i < run + 32; ++i) seen[i] = std::nearbyint(rows[i] * inverse) * static_cast<double>(step);
    }
    std::vector<double> roots(static_cast<size_t>(call.num_rows), 1);
    for (size_t row = 0; call.has_norm && row < roots.size(); ++row) {
      double squares = 0;
      for (size_t i = row * depth; i < (row + 1) * depth; ++i) squares += static_cast<double>(data.x[i]) * data.x[i];
      roots[row] = std::sqrt(squares / static_cast<double>(depth) + static_cast<double>(NormArgs{}.eps));
    }
    const Floats& weights = data.matrices[0].values;
    for (int64_t row = 0; row < call.num_rows; ++row) {
      for (int64_t output = 0; output < call.num_outputs; ++output) {
        double expected = 0;
        double magnitudes = 0;
        for (int64_t k = 0; k < call.depth; ++k) {
          const double term = seen[static_cast<size_t>(row * call.depth + k)] *
                              static_cast<double>(weights[static_cast<size_t>(output * call.depth + k)]);
          expected += term;
          magnitudes += std::abs(term);
        }
        // Formats with minima add and take away terms of up to 16 times the weight. What a norm's root loses is less.
        const double tolerance = 16 * static_cast<double>(call.depth / 32 + 36) * 0x1p-24 * magnitudes;
        const double root = roots[static_cast<size_t>(row)];
        ASSERT_NEAR(found[static_cast<size_t>(row * call.num_outputs + output)], expected / root, tolerance / root)
            << "row " << row << " output " << output;
      }
    }
  }

 private:
  NamedBackend backend_ = std::move(AllBackends()[GetParam()]);
  std::unique_ptr<Backend> ref_ = MakeRefBackend();
};

constexpr int64_t kRows[] = {1, 2, 7, 8, 9, 16, 31, 32, 33, 100};

// Neither whole tiles of outputs nor whole slices of K, some of them.
Call CallOf(DType format, int64_t num_rows, int64_t kind) {
  const int64_t block = BlockElements(format);
  return {.formats = {format},
          .num_rows = num_rows,
          .num_outputs = kind == 0 ? 37 : 16,
          .depth = kind == 0 ? 3 * block : 2560};
}

TEST_P(BlockWeights, ProductsAreThoseOfRef) {
  Random random(1);
  for (const DType format : BlockFormatsOf(backend().name())) {
    for (const int64_t num_rows : kRows) {
      for (const Compute compute : {Compute::kInt8, Compute::kBF16, Compute::kF32}) {
        Call call = CallOf(format, num_rows, random.Between(0, 1));
        call.compute = compute;
        call.has_bias = random.Coin();
        if (random.Coin()) call.write = MatMulArgs::Write::kAdd;
        ExpectAsRef(call, random);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(BlockWeights, IntegerProductsAreExactButForSums) {
  if (!is_cuda()) GTEST_SKIP() << "of a GPU's kernels; those of a CPU have packed_matmul_test.cc";
  Random random(2);
  for (const DType format : BlockFormatsOf(backend().name())) {
    for (const int64_t num_rows : kRows) {
      if (num_rows > kMaxIntegerRows) continue;
      for (const int64_t kind : {0, 1}) {
        ExpectIntegerSums(CallOf(format, num_rows, kind), random);
        if (HasFatalFailure()) return;
      }
    }
    // More tiles than multiprocessors, and sums whose x does not fit beside the weights of 32 rows.
    ExpectIntegerSums({.formats = {format}, .num_rows = 1, .num_outputs = 4500, .depth = 1024}, random);
    ExpectIntegerSums({.formats = {format}, .num_rows = 3, .num_outputs = 4500, .depth = 1024}, random);
    ExpectIntegerSums({.formats = {format}, .num_rows = 32, .num_outputs = 40, .depth = 14336}, random);
    for (const int64_t num_rows : {1, 3, 8, 20}) {
      ExpectIntegerSums(
          {.formats = {format}, .num_rows = num_rows, .num_outputs = 2200, .depth = 2304, .has_norm = true}, random);
    }
    if (HasFatalFailure()) return;
  }
}

// Of several parts, of formats that differ, as files have them.
TEST_P(BlockWeights, PartsOfSeveralFormats) {
  Random random(3);
  for (const int64_t num_rows : {1, 9, 40}) {
    for (const Compute compute : {Compute::kInt8, Compute::kBF16, Compute::kF32}) {
      ExpectAsRef({.formats = {DType::kQ4_K, DType::kQ4_K, DType::kQ6_K},
                   .num_rows = num_rows,
                   .num_outputs = 21,
                   .depth = 512,
                   .compute = compute,
                   .has_bias = true},
                  random);
      // A plain part, for which few rows may go through a kernel for more.
      ExpectAsRef({.formats = {DType::kBF16, DType::kQ8_0},
                   .num_rows = num_rows,
                   .num_outputs = 150,
                   .depth = 512,
                   .compute = compute,
                   .has_bias = true},
                  random);
    }
  }
}

// Two parts behind one norm, gated on the way, are each part by itself and the activation by a call of its own, bit for
// bit.
TEST_P(BlockWeights, PartsAndGateInOneCallChangeNoBit) {
  if (!is_cuda()) GTEST_SKIP() << "promised for a GPU";
  Random random(4);
  for (const DType format : BlockFormatsOf(backend().name())) {
    for (const int64_t num_rows : {1, 5, 8, 13, 32}) {
      Call call{.formats = {format, format},
                .num_rows = num_rows,
                .num_outputs = 200,
                .depth = 2048,
                .has_bias = random.Coin(),
                .has_norm = true};
      if (random.Coin()) {
        call.activation = random.Coin() ? ActivateArgs::Kind::kGatedSilu : ActivateArgs::Kind::kGatedGeluTanh;
      }
      SCOPED_TRACE(call.InWords());
      const Data data(call, random);
      const Runner runner(backend(), call, data);
      ExpectSameBits(runner.RunAll(), runner.RunAll(/*is_apart=*/true));
      if (HasFatalFailure()) return;
    }
  }
  const Call mixed{.formats = {DType::kQ5_K, DType::kQ5_K, DType::kQ6_K},
                   .num_rows = 4,
                   .num_outputs = 64,
                   .depth = 2048,
                   .has_norm = true};
  const Data data(mixed, random);
  const Runner runner(backend(), mixed, data);
  ExpectSameBits(runner.RunAll(), runner.RunAll(/*is_apart=*/true));
}

// Each team of warps of a multiprocessor has more tiles than it writes at once, and several times so: buffers of sums
// are used again.
TEST_P(BlockWeights, ManyTiles) {
  if (!is_cuda()) GTEST_SKIP() << "of a GPU's kernels";
  Random random(7);
  for (const DType format : {DType::kQ8_0, DType::kQ4_0, DType::kQ4_K, DType::kQ6_K}) {
    for (const int64_t num_rows : {1, 3, 8}) {
      Call call{.formats = {format}, .num_rows = num_rows, .num_outputs = 36100, .depth = 256, .has_bias = true};
      ExpectAsRef(call, random);
      call.write = MatMulArgs::Write::kAdd;
      ExpectAsRef(call, random);
      call = {.formats = {format, format},
              .num_rows = num_rows,
              .num_outputs = 36100,
              .depth = 256,
              .has_norm = true,
              .activation = ActivateArgs::Kind::kGatedSilu};
      SCOPED_TRACE(call.InWords());
      const Data data(call, random);
      const Runner runner(backend(), call, data);
      ExpectSameBits(runner.RunAll(), runner.RunAll(/*is_apart=*/true));
      if (HasFatalFailure()) return;
    }
  }
}

// More rows than those of one group, of which each multiprocessor writes more than one set of tiles, the last one in
// part, with one buffer for sums or with two, alone or in twos, fours and eights.
TEST_P(BlockWeights, ManyTilesOfManyRows) {
  if (!is_cuda()) GTEST_SKIP() << "of a GPU's kernels";
  Random random(8);
  for (const DType format : {DType::kQ8_0, DType::kQ4_0, DType::kQ4_K, DType::kQ6_K}) {
    for (const auto& [num_rows, depth, num_outputs] : {std::tuple<int64_t, int64_t, int64_t>{13, 1024, 9001},
                                                       {24, 4096, 4500},
                                                       {32, 4096, 4500},
                                                       {30, 14336, 4400}}) {
      Call call{.formats = {format, format},
                .num_rows = num_rows,
                .num_outputs = num_outputs,
                .depth = depth,
                .has_bias = true,
                .has_norm = depth <= 4096,
                .activation = ActivateArgs::Kind::kGatedSilu};
      SCOPED_TRACE(call.InWords());
      {
        const Data data(call, random);
        const Runner runner(backend(), call, data);
        const Floats gated = runner.RunAll();
        ExpectSameBits(gated, runner.RunAll(/*is_apart=*/true));
        ExpectSameBits(runner.Run(7, 1), Floats(gated.begin() + 7 * num_outputs, gated.begin() + 8 * num_outputs));
      }
      call = {.formats = {format},
              .num_rows = num_rows,
              .num_outputs = num_outputs,
              .depth = depth,
              .write = MatMulArgs::Write::kAdd};
      const Data data(call, random);
      const Runner runner(backend(), call, data);
      const Floats all = runner.RunAll();
      ExpectSameBits(runner.Run(num_rows - 5, 5), Floats(all.end() - 5 * num_outputs, all.end()));
      if (HasFatalFailure()) return;
    }
  }
}

// Rows that leave no room for two teams of warps, or for one tile of each at a time, or for all eight.
TEST_P(BlockWeights, EightLongRows) {
  if (!is_cuda()) GTEST_SKIP() << "of a GPU's kernels";
  Random random(9);
  for (const DType format : {DType::kQ8_0, DType::kQ4_0, DType::kQ4_K, DType::kQ6_K}) {
    for (const int64_t depth : {6144, 10240, 16384}) {
      ExpectAsRef({.formats = {format}, .num_rows = 8, .num_outputs = 2500, .depth = depth, .has_bias = true}, random);
    }
  }
}

TEST_P(BlockWeights, ARowDoesNotDependOnThoseBesideIt) {
  if (!is_cuda()) GTEST_SKIP() << "promised for a GPU; of a CPU batch_invariance_test.cc tells";
  Random random(5);
  for (const DType format : BlockFormatsOf(backend().name())) {
    // The first has more tiles than a GPU has multiprocessors.
    for (const int64_t depth : {512, 2304, 14336}) {
      const Call call{.formats = {format},
                      .num_rows = 32,
                      .num_outputs = depth == 512 ? 2500 : 90,
                      .depth = depth,
                      .has_norm = depth == 2304};
      SCOPED_TRACE(call.InWords());
      const Data data(call, random);
      const Runner runner(backend(), call, data);
      const Floats together = runner.RunAll();
      ExpectSameBits(runner.RunAll(), together);  // and twice the same
      for (const auto& [first, count] :
           {std::pair<int64_t, int64_t>{0, 1}, {3, 2}, {7, 1}, {8, 8}, {15, 9}, {16, 16}, {31, 1}}) {
        const Floats some = runner.Run(first, count);
        ExpectSameBits(some, Floats(together.begin() + first * call.num_outputs,
                                    together.begin() + (first + count) * call.num_outputs));
        if (HasFatalFailure()) return;
      }
    }
  }
}

// More rows than those that are multiplied as bytes, of which a GPU makes weights bf16 on the way: tiles that
// multiprocessors share, several parts, outputs that do not fill tiles, norms.
TEST_P(BlockWeights, SomeRowsAreThoseOfRef) {
  Random random(10);
  for (const DType format : BlockFormatsOf(backend().name())) {
    for (const int64_t num_rows : {33, 64, 65, 96, 128, 150}) {
      Call call{.formats = {format},
                .num_rows = num_rows,
                .num_outputs = random.Coin() ? 300 : 90,
                .depth = random.Coin() ? 2560 : 768,
                .compute = random.Coin() ? Compute::kInt8 : Compute::kBF16,
                .has_bias = random.Coin(),
                .has_norm = random.Coin()};
      if (random.Coin()) call.write = MatMulArgs::Write::kAdd;
      if (random.Coin()) call.formats.push_back(format);
      ExpectAsRef(call, random);
      if (HasFatalFailure()) return;
    }
  }
  if (!is_cuda()) return;  // more work than others need
  for (const DType format : {DType::kQ8_0, DType::kQ4_K}) {
    ExpectAsRef({.formats = {format}, .num_rows = 100, .num_outputs = 36100, .depth = 256, .has_bias = true}, random);
    ExpectAsRef({.formats = {format}, .num_rows = 40, .num_outputs = 1500, .depth = 14336}, random);
    ExpectAsRef(
        {.formats = {format}, .num_rows = 90, .num_outputs = 1100, .depth = 4096, .write = MatMulArgs::Write::kAdd},
        random);
  }
}

// Of what is multiplied: x as bf16 holds it, and the weights that blocks stand for, rounded to bf16 once. Scales of
// q4_0 and q6_k are two numbers in bf16 on the way, without the second of which the error is seven times as large.
TEST_P(BlockWeights, WeightsOfSomeRowsAreRoundedOnce) {
  if (!IsHopper()) GTEST_SKIP() << "of Hopper's kernel";
  Random random(12);
  for (const DType format : {DType::kQ8_0, DType::kQ4_0, DType::kQ6_K, DType::kIQ4_NL}) {
    const Call call{.formats = {format}, .num_rows = 40, .num_outputs = 96, .depth = 2560};
    SCOPED_TRACE(call.InWords());
    const Data data(call, random);
    const Floats found = Runner(backend(), call, data).RunAll();
    const auto rounded = [](const Floats& values) {
      std::vector<std::byte> bytes(BytesOf(DType::kBF16, std::ssize(values)));
      FromF32(DType::kBF16, values.data(), std::ssize(values), bytes.data());
      Floats held(values.size());
      ToF32(DType::kBF16, bytes.data(), std::ssize(values), held.data());
      return held;
    };
    const Floats x = rounded(data.x);
    const Floats weights = rounded(data.matrices[0].values);
    double errors = 0, squares = 0;
    for (size_t row = 0; row < 40; ++row) {
      for (size_t output = 0; output < 96; ++output) {
        double expected = 0;
        for (size_t k = 0; k < 2560; ++k) {
          const double term = static_cast<double>(x[row * 2560 + k]) * weights[output * 2560 + k];
          expected += term;
          squares += term * term;
        }
        errors += std::pow(found[row * 96 + output] - expected, 2);
      }
    }
    // Of 2,560 terms some ten are rounded the other way; without the second number all are off by up to 2^-9.
    EXPECT_LT(std::sqrt(errors / squares), 0x1p-9 / 4) << "share of the root of the terms' squares";
  }
}

TEST_P(BlockWeights, ARowOfSomeDoesNotDependOnHowMany) {
  if (!IsHopper()) GTEST_SKIP() << "promised for Hopper's kernel";
  Random random(11);
  for (const DType format : BlockFormatsOf(backend().name())) {
    const Call call{.formats = {format}, .num_rows = 192, .num_outputs = 700, .depth = 2304};
    SCOPED_TRACE(call.InWords());
    const Data data(call, random);
    const Runner runner(backend(), call, data);
    const Floats all = runner.RunAll();
    ExpectSameBits(runner.RunAll(), all);  // and twice the same
    // Of the second the kernel's second launch has some.
    for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 33}, {0, 140}, {64, 64}, {10, 90}, {150, 42}}) {
      ExpectSameBits(runner.Run(first, count),
                     Floats(all.begin() + first * call.num_outputs, all.begin() + (first + count) * call.num_outputs));
      if (HasFatalFailure()) return;
    }
  }
}

// A number that is none must not pass for one.
TEST_P(BlockWeights, WhatIsNoNumberStaysSo) {
  Random random(6);
  for (const DType format : {DType::kQ8_0, DType::kQ4_K, DType::kQ6_K}) {
    const Call call{.formats = {format}, .num_rows = 3, .num_outputs = 20, .depth = 512};
    Data data(call, random);
    data.x[5] = kNan;
    data.x[512 + 300] = std::numeric_limits<float>::infinity();
    const Floats found = Runner(backend(), call, data).RunAll();
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(std::isfinite(found[i]), i >= 40) << NameOf(format) << " element " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, BlockWeights, testing::Range<size_t>(0, AllBackends().size()),
                         [](const auto& param) { return AllBackends()[param.param].name; });

}  // namespace
}  // namespace headwise
