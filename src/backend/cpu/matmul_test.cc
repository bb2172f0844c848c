// Every instruction set's products against f64, at sizes that are multiples of nothing, and what must hold bit for bit.
#include "backend/cpu/matmul.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "backend/cpu/isa.h"

namespace headwise::cpu {
namespace {

// Memory whose last byte is followed by a page that cannot be read: weights at the end of a mapped file.
class Guarded {
 public:
  explicit Guarded(size_t bytes) {
    const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    const size_t usable = (bytes + page - 1) / page * page;
    mapped_bytes_ = usable + page;
    map_ = ::mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    HW_CHECK(map_ != MAP_FAILED);
    HW_CHECK(::mprotect(static_cast<std::byte*>(map_) + usable, page, PROT_NONE) == 0);
    data_ = static_cast<std::byte*>(map_) + usable - bytes;
  }
  Guarded(Guarded&& other) noexcept
      : map_(std::exchange(other.map_, nullptr)), mapped_bytes_(other.mapped_bytes_), data_(other.data_) {}
  ~Guarded() {
    if (map_ != nullptr) ::munmap(map_, mapped_bytes_);
  }
  std::byte* data() const { return data_; }

 private:
  void* map_;
  size_t mapped_bytes_;
  std::byte* data_;
};

class Matrix {
 public:
  Matrix(DType dtype, Shape shape)
      : dtype_(dtype), shape_(shape), memory_(static_cast<size_t>(shape.num_elements() * SizeOf(dtype))) {}
  static Matrix Random(DType dtype, Shape shape, std::mt19937& rng) {
    Matrix matrix(dtype, shape);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < shape.num_elements(); ++i) StoreF32As(dtype, matrix.memory_.data(), i, normal(rng));
    return matrix;
  }

  TensorView view() const { return {memory_.data(), dtype_, shape_}; }
  float At(int64_t row, int64_t column) const {
    return LoadAsF32(dtype_, memory_.data(), row * shape_[shape_.rank() - 1] + column);
  }

 private:
  DType dtype_;
  Shape shape_;
  Guarded memory_;
};

std::vector<uint32_t> BitsOf(const Matrix& matrix) {
  const auto* begin = static_cast<const uint32_t*>(matrix.view().data);
  return {begin, begin + matrix.view().shape.num_elements()};
}

struct Problem {
  int64_t num_rows, num_outputs, depth;
  DType dtype = DType::kF32;
  Compute compute = Compute::kF32;
  MatMulArgs::Write write = MatMulArgs::Write::kStore;

  friend std::ostream& operator<<(std::ostream& os, const Problem& p) {
    return os << "M " << p.num_rows << " N " << p.num_outputs << " K " << p.depth << " " << NameOf(p.dtype)
              << (p.compute == Compute::kBF16 ? " bf16 dot" : "") << (p.write == MatMulArgs::Write::kAdd ? " add" : "");
  }
};

// Numbers as the product sees them. Few rows are always computed in f32.
float Seen(float value, const Problem& p, const MatMulKernels& kernels) {
  const bool rounds = p.compute == Compute::kBF16 && kernels.has_bf16_dot && p.num_rows > kMaxFewRows;
  return rounds ? BF16ToF32(F32ToBF16(value)) : value;
}

// Sums of n terms in any order, each addition rounded to f32, differ from the exact sum by at most about n 2^-24 times
// the sum of magnitudes; products of f32 round once each, products of bf16 are exact, bias and `add` are two more
// additions, and blocks of K and lanes only shorten the chains. For depths below 2000 this is less than what losing one
// average term changes.
double Tolerance(int64_t depth, double sum_of_magnitudes) {
  return static_cast<double>(depth + 4) * std::ldexp(1.0, -24) * sum_of_magnitudes;
}

void CheckProblem(const Problem& p, const MatMulKernels& kernels, std::mt19937& rng) {
  const Matrix x = Matrix::Random(DType::kF32, {p.num_rows, p.depth}, rng);
  const Matrix weight = Matrix::Random(p.dtype, {p.num_outputs, p.depth}, rng);
  const Matrix bias = Matrix::Random(DType::kF32, {p.num_outputs}, rng);
  const bool has_bias = (p.num_rows + p.num_outputs) % 2 == 0;
  const Matrix before = Matrix::Random(DType::kF32, {p.num_rows, p.num_outputs}, rng);
  const Matrix out(DType::kF32, {p.num_rows, p.num_outputs});
  std::memcpy(out.view().data, before.view().data, static_cast<size_t>(out.view().size_bytes()));

  const MatMulPart part{ConstTensorView(weight.view()), has_bias ? bias.view() : ConstTensorView(), out.view()};
  ThreadPool pool(2);
  MatMulScratch scratch;
  RunMatMul({.x = x.view(), .parts = {&part, 1}, .write = p.write, .compute = p.compute}, kernels, pool, scratch);

  for (int64_t row = 0; row < p.num_rows; ++row) {
    for (int64_t output = 0; output < p.num_outputs; ++output) {
      double expected = has_bias ? bias.At(0, output) : 0.0;
      if (p.write == MatMulArgs::Write::kAdd) expected += before.At(row, output);
      double magnitudes = std::abs(expected) + 2.0;
      for (int64_t k = 0; k < p.depth; ++k) {
        const double term =
            static_cast<double>(Seen(x.At(row, k), p, kernels)) * Seen(weight.At(output, k), p, kernels);
        expected += term;
        magnitudes += std::abs(term);
      }
      ASSERT_NEAR(out.At(row, output), expected, Tolerance(p.depth, magnitudes))
          << "row " << row << " output " << output;
    }
  }
}

class MatMulTest : public ::testing::TestWithParam<const KernelTable*> {
 protected:
  const MatMulKernels& kernels() const { return GetParam()->matmul; }
  // out of x W^T for rows [first_row, first_row + num_rows) and outputs [first_output, ...).
  Matrix Run(const Matrix& x, const Matrix& weight, int64_t num_rows, int64_t first_output, int64_t num_outputs,
             Compute compute, int num_threads = 1) {
    Matrix out(DType::kF32, {num_rows, num_outputs});
    const MatMulPart part{ConstTensorView(weight.view()).Rows(first_output, num_outputs), {}, out.view()};
    ThreadPool pool(num_threads);
    RunMatMul({.x = ConstTensorView(x.view()).Rows(0, num_rows), .parts = {&part, 1}, .compute = compute}, kernels(),
              pool, scratch_);
    return out;
  }

  std::mt19937 rng_{17};
  MatMulScratch scratch_;
};

constexpr DType kWeightDTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

TEST_P(MatMulTest, AgreesWithDoubleAtOddSizes) {
  // Depths around the vectors (4, 8, 16 steps; bf16 steps are pairs) and around the blocks of 512 steps.
  const std::vector<Problem> shapes = {{1, 1, 1},     {1, 5, 16},    {1, 64, 33},    {2, 7, 31},     {3, 17, 100},
                                       {4, 3, 259},   {5, 9, 15},    {6, 10, 47},    {7, 11, 8},     {8, 13, 129},
                                       {1, 300, 384}, {8, 33, 1023}, {9, 1, 1},      {9, 64, 2},     {10, 65, 3},
                                       {11, 15, 16},  {12, 16, 17},  {13, 63, 31},   {16, 48, 33},   {17, 130, 64},
                                       {19, 66, 255}, {24, 80, 32},  {25, 1, 513},   {31, 100, 512}, {33, 17, 1024},
                                       {64, 64, 96},  {70, 129, 77}, {70, 40, 1027}, {300, 20, 9}};
  for (const DType dtype : kWeightDTypes) {
    for (const Compute compute : {Compute::kF32, Compute::kBF16}) {
      for (const auto write : {MatMulArgs::Write::kStore, MatMulArgs::Write::kAdd}) {
        for (Problem problem : shapes) {
          problem.dtype = dtype;
          problem.compute = compute;
          problem.write = write;
          SCOPED_TRACE(::testing::PrintToString(problem));
          CheckProblem(problem, kernels(), rng_);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_P(MatMulTest, EveryNumberOfRowsIsRight) {
  for (int64_t num_rows = 1; num_rows <= 70; ++num_rows) {
    const Problem problem{num_rows, 19, 21, kWeightDTypes[num_rows % 3],
                          num_rows % 2 == 0 ? Compute::kF32 : Compute::kBF16};
    SCOPED_TRACE(::testing::PrintToString(problem));
    CheckProblem(problem, kernels(), rng_);
    if (HasFatalFailure()) return;
  }
}

TEST_P(MatMulTest, ARowDecodedInABatchEqualsItAlone) {
  for (const DType dtype : kWeightDTypes) {
    const Matrix x = Matrix::Random(DType::kF32, {kMaxFewRows, 131}, rng_);
    const Matrix weight = Matrix::Random(dtype, {37, 131}, rng_);
    const std::vector<uint32_t> all = BitsOf(Run(x, weight, kMaxFewRows, 0, 37, Compute::kF32));
    for (int64_t num_rows = 1; num_rows < kMaxFewRows; ++num_rows) {
      const std::vector<uint32_t> some = BitsOf(Run(x, weight, num_rows, 0, 37, Compute::kF32));
      EXPECT_THAT(some, ::testing::ElementsAreArray(all.begin(), all.begin() + num_rows * 37)) << num_rows << " rows";
    }
  }
}

TEST_P(MatMulTest, ManyRowsDoNotDependOnHowTheyAreCut) {
  constexpr int64_t kDepth = 1100;
  constexpr int64_t kOutputs = 150;
  for (const Compute compute : {Compute::kF32, Compute::kBF16}) {
    const Matrix x = Matrix::Random(DType::kF32, {270, kDepth}, rng_);
    const Matrix weight = Matrix::Random(DType::kBF16, {kOutputs, kDepth}, rng_);
    const Matrix all = Run(x, weight, 270, 0, kOutputs, compute);
    for (const auto& [num_rows, first_output, num_outputs] :
         std::vector<std::array<int64_t, 3>>{{270, 0, 64}, {270, 64, 86}, {10, 7, 100}, {13, 149, 1}}) {
      const Matrix some = Run(x, weight, num_rows, first_output, num_outputs, compute);
      for (int64_t row = 0; row < num_rows; ++row) {
        for (int64_t output = 0; output < num_outputs; ++output) {
          ASSERT_EQ(std::bit_cast<uint32_t>(some.At(row, output)),
                    std::bit_cast<uint32_t>(all.At(row, first_output + output)))
              << "row " << row << " output " << first_output + output;
        }
      }
    }
  }
}

TEST_P(MatMulTest, ThreadsDoNotChangeABit) {
  for (const int64_t num_rows : {3, 40}) {
    const Matrix x = Matrix::Random(DType::kF32, {num_rows, 500}, rng_);
    const Matrix weight = Matrix::Random(DType::kF16, {700, 500}, rng_);
    for (const Compute compute : {Compute::kF32, Compute::kBF16}) {
      const std::vector<uint32_t> one = BitsOf(Run(x, weight, num_rows, 0, 700, compute, 1));
      EXPECT_EQ(one, BitsOf(Run(x, weight, num_rows, 0, 700, compute, 2)));
      EXPECT_EQ(one, BitsOf(Run(x, weight, num_rows, 0, 700, compute, 5)));
    }
  }
}

TEST_P(MatMulTest, PartsOfOneCallEqualCallsOfTheirOwn) {
  for (const int64_t num_rows : {1, 20}) {
    const Matrix x = Matrix::Random(DType::kF32, {num_rows, 300}, rng_);
    std::vector<Matrix> weights, biases, outs;
    std::vector<MatMulPart> parts;
    for (const auto& [num_outputs, dtype] :
         {std::pair<int64_t, DType>{200, DType::kBF16}, {40, DType::kF16}, {1, DType::kF32}}) {
      weights.push_back(Matrix::Random(dtype, {num_outputs, 300}, rng_));
      biases.push_back(Matrix::Random(DType::kF32, {num_outputs}, rng_));
      outs.emplace_back(DType::kF32, Shape{num_rows, num_outputs});
      parts.push_back({ConstTensorView(weights.back().view()), biases.back().view(), outs.back().view()});
    }
    ThreadPool pool(2);
    RunMatMul({.x = x.view(), .parts = parts}, kernels(), pool, scratch_);
    for (size_t i = 0; i < parts.size(); ++i) {
      const Matrix alone(DType::kF32, outs[i].view().shape);
      const MatMulPart part{parts[i].weight, parts[i].bias, alone.view()};
      RunMatMul({.x = x.view(), .parts = {&part, 1}}, kernels(), pool, scratch_);
      EXPECT_EQ(BitsOf(outs[i]), BitsOf(alone)) << "part " << i;
    }
  }
}

// Of rows, of outputs and of K, whatever the instruction set cuts them into.
TEST_P(MatMulTest, MoreThanOneTaskTakes) {
  for (const Compute compute : {Compute::kF32, Compute::kBF16}) {
    for (const Problem& problem : {Problem{545, 140, 70, DType::kF16, compute},
                                   Problem{40, 270, 2100, DType::kBF16, compute, MatMulArgs::Write::kAdd}}) {
      SCOPED_TRACE(::testing::PrintToString(problem));
      CheckProblem(problem, kernels(), rng_);
      if (HasFatalFailure()) return;
    }
  }
}

// What an earlier product left in scratch, behind the end of a shorter K or of fewer rows, meets zeros at most: it must
// not be NaN.
TEST_P(MatMulTest, WhatScratchHeldDoesNotShow) {
  const auto of_nan = [](DType dtype, const Shape& shape) {
    Matrix matrix(dtype, shape);
    for (int64_t i = 0; i < shape.num_elements(); ++i) StoreF32As(dtype, matrix.view().data, i, std::nanf(""));
    return matrix;
  };
  for (const Compute compute : {Compute::kF32, Compute::kBF16}) {
    for (const DType dtype : kWeightDTypes) {
      const Matrix x = Matrix::Random(DType::kF32, {35, 1103}, rng_);
      const Matrix weight = Matrix::Random(dtype, {77, 1103}, rng_);
      const std::vector<uint32_t> before = BitsOf(Run(x, weight, 35, 0, 77, compute, 1));
      Run(of_nan(DType::kF32, {45, 1200}), of_nan(dtype, {200, 1200}), 45, 0, 200, compute, 1);
      EXPECT_EQ(BitsOf(Run(x, weight, 35, 0, 77, compute, 1)), before) << NameOf(dtype);
    }
  }
}

TEST_P(MatMulTest, NothingToDoIsNoTrouble) {
  const Matrix x(DType::kF32, {0, 5});
  const Matrix weight = Matrix::Random(DType::kF32, {3, 5}, rng_);
  EXPECT_TRUE(BitsOf(Run(x, weight, 0, 0, 3, Compute::kBF16)).empty());
}

// What machines without tile registers test is what the others compute: the loops do what the instructions do.
TEST(TileRegisters, EmulatedOnesGiveTheSameBits) {
  const Result<const KernelTable*> real = FindKernels("amx");
  if (!real.ok()) GTEST_SKIP() << real.status().message();
  const Result<const KernelTable*> emulated = FindKernels("amx_emulated");
  ASSERT_TRUE(emulated.ok());
  std::mt19937 rng(5);
  const Matrix x = Matrix::Random(DType::kF32, {50, 1100}, rng);
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    const Matrix weight = Matrix::Random(dtype, {300, 1100}, rng);
    std::vector<std::vector<uint32_t>> found;
    for (const KernelTable* kernels : {*real, *emulated}) {
      const Matrix out(DType::kF32, {50, 300});
      const MatMulPart part{ConstTensorView(weight.view()), {}, out.view()};
      ThreadPool pool(2);
      MatMulScratch scratch;
      RunMatMul({.x = x.view(), .parts = {&part, 1}, .compute = Compute::kBF16}, kernels->matmul, pool, scratch);
      found.push_back(BitsOf(out));
    }
    EXPECT_EQ(found[0], found[1]) << NameOf(dtype);
  }
}

// The kernel's permission and the registers are a process's own, and its children's.
TEST(TileRegisters, AForkMultipliesToo) {
  const Result<const KernelTable*> kernels = FindKernels("amx");
  if (!kernels.ok()) GTEST_SKIP() << kernels.status().message();
  std::mt19937 rng(6);
  const Problem problem = {.num_rows = 20, .num_outputs = 33, .depth = 100, .compute = Compute::kBF16};
  CheckProblem(problem, (*kernels)->matmul, rng);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    CheckProblem(problem, (*kernels)->matmul, rng);
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

INSTANTIATE_TEST_SUITE_P(Isa, MatMulTest, ::testing::ValuesIn(AvailableKernelTables()),
                         [](const auto& param_info) { return std::string(param_info.param->isa); });

}  // namespace
}  // namespace headwise::cpu
