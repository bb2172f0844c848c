// Products with weights and their gradients, in bf16: those of the rounded numbers, on every instruction set that has
// them, whatever the weights lie in and however many threads there are.
#include "grad/linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "backend/cpu/isa.h"
#include "base/thread_pool.h"
#include "tensor/blocks.h"

namespace headwise {
namespace {

std::vector<float> RandomNumbers(int64_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> numbers(static_cast<size_t>(n));
  for (float& number : numbers) number = normal(rng);
  return numbers;
}

double Rounded(float x) {
  return static_cast<double>(BF16ToF32(F32ToBF16(x)));
}

// W [M, K] in a file's format, and a bias.
struct Layer {
  Layer(DType dtype, int64_t outputs, int64_t inputs)
      : shape{outputs, inputs}, bias(RandomNumbers(outputs, 2)), values(static_cast<size_t>(outputs * inputs)) {
    const std::vector<float> exact = RandomNumbers(outputs * inputs, 1);
    bytes.resize(static_cast<size_t>(BytesOf(dtype, outputs * inputs)));
    FromF32(dtype, exact.data(), outputs * inputs, bytes.data());
    ToF32(dtype, bytes.data(), outputs * inputs, values.data());
    weights = {.weight = ConstTensorView{bytes.data(), dtype, shape},
               .bias = {bias.data(), DType::kF32, Shape{outputs}}};
  }
  double Weight(int64_t output, int64_t input) const {
    return Rounded(values[static_cast<size_t>(output * shape[1] + input)]);
  }

  Shape shape;
  std::vector<float> bias;
  std::vector<float> values;
  std::vector<std::byte> bytes;
  LinearWeights weights;
};

class BF16Gradients : public testing::TestWithParam<const cpu::KernelTable*> {
 protected:
  static constexpr int64_t kRows = 37;
  static constexpr int64_t kOutputs = 75;
  static constexpr int64_t kInputs = 96;

  void SetUp() override {
    if (!GetParam()->matmul.has_bf16_dot) GTEST_SKIP() << "no products of bf16";
  }
  static double SumTolerance(int64_t count) { return 2e-6 * static_cast<double>(count); }
};

TEST_P(BF16Gradients, AreProductsOfTheRoundedNumbers) {
  ThreadPool pool(2);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0}) {
    SCOPED_TRACE(NameOf(dtype));
    const Layer layer(dtype, kOutputs, kInputs);
    const std::vector<float> x = RandomNumbers(kRows * kInputs, 3);
    const std::vector<float> d_y = RandomNumbers(kRows * kOutputs, 4);
    LinearRunner<float> runner(pool, Compute::kBF16, GetParam());
    std::vector<float> y(static_cast<size_t>(kRows * kOutputs), 1.0f);
    runner.Forward(layer.weights, x.data(), kRows, RowWrite::kAdd, y.data());
    std::vector<float> d_x(x.size(), NAN);
    runner.Backward(layer.weights, d_y.data(), kRows, RowWrite::kStore, d_x.data());
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t output = 0; output < kOutputs; ++output) {
        double sum = 1.0 + static_cast<double>(layer.bias[static_cast<size_t>(output)]);
        for (int64_t i = 0; i < kInputs; ++i) {
          sum += Rounded(x[static_cast<size_t>(row * kInputs + i)]) * layer.Weight(output, i);
        }
        ASSERT_NEAR(y[static_cast<size_t>(row * kOutputs + output)], sum, SumTolerance(kInputs));
      }
      for (int64_t input = 0; input < kInputs; ++input) {
        double sum = 0;
        for (int64_t i = 0; i < kOutputs; ++i) {
          sum += Rounded(d_y[static_cast<size_t>(row * kOutputs + i)]) * layer.Weight(i, input);
        }
        ASSERT_NEAR(d_x[static_cast<size_t>(row * kInputs + input)], sum, SumTolerance(kOutputs));
      }
    }
  }
}

TEST_P(BF16Gradients, AnyNumberOfThreadsGivesTheSameBits) {
  const Layer layer(DType::kBF16, 300, 130);
  const std::vector<float> d_y = RandomNumbers(kRows * 300, 4);
  std::vector<std::vector<float>> found;
  for (const int num_threads : {1, 3}) {
    ThreadPool pool(num_threads);
    LinearRunner<float> runner(pool, Compute::kBF16, GetParam());
    std::vector<float> d_x(static_cast<size_t>(kRows * 130));
    runner.Backward(layer.weights, d_y.data(), kRows, RowWrite::kStore, d_x.data());
    found.push_back(std::move(d_x));
  }
  EXPECT_EQ(found[0], found[1]);
}

INSTANTIATE_TEST_SUITE_P(Isa, BF16Gradients, ::testing::ValuesIn(cpu::AvailableKernelTables()),
                         [](const auto& param_info) { return std::string(param_info.param->isa); });

}  // namespace
}  // namespace headwise
