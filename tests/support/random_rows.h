// Random rows for tests of operations without a cache: in a backend's memory, poison behind them.
#ifndef HEADWISE_TESTS_SUPPORT_RANDOM_ROWS_H_
#define HEADWISE_TESTS_SUPPORT_RANDOM_ROWS_H_

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <deque>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/check.h"
#include "tensor/blocks.h"

namespace headwise {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
// Behind every array: what an op writes there it should not.
inline constexpr int64_t kGuardFloats = 64;

using Floats = std::vector<float>;

// f32 numbers in a backend's memory, poison behind them.
class Held {
 public:
  Held(Backend& backend, const Shape& shape, const Floats& values)
      : backend_(&backend), shape_(shape), buffer_(DeviceBuffer::Make(backend.device(), BytesFor(shape)).value()) {
    Write(values);
  }
  static Held Poisoned(Backend& backend, const Shape& shape) {
    return {backend, shape, Floats(static_cast<size_t>(shape.num_elements()), kNan)};
  }

  TensorView view() const { return {buffer_.data(), DType::kF32, shape_}; }
  void Write(const Floats& values) const {
    HW_CHECK(static_cast<int64_t>(values.size()) == shape_.num_elements());
    Floats all = values;
    all.resize(values.size() + kGuardFloats, kNan);
    backend_->device().CopyFromHost(buffer_.data(), all.data(), all.size() * sizeof(float));
  }
  void Poison() const { Write(Floats(static_cast<size_t>(shape_.num_elements()), kNan)); }
  // Also that nothing was written behind them.
  Floats Read() const {
    Floats all(static_cast<size_t>(shape_.num_elements() + kGuardFloats));
    backend_->device().CopyToHost(all.data(), buffer_.data(), all.size() * sizeof(float));
    EXPECT_TRUE(backend_->device().Wait().ok());
    for (size_t i = all.size() - kGuardFloats; i < all.size(); ++i) {
      EXPECT_TRUE(std::isnan(all[i])) << "written " << i << " floats from the beginning of " << shape_.ToString();
    }
    all.resize(all.size() - kGuardFloats);
    return all;
  }

 private:
  static size_t BytesFor(const Shape& shape) {
    return static_cast<size_t>(shape.num_elements() + kGuardFloats) * sizeof(float);
  }

  Backend* backend_;
  Shape shape_;
  DeviceBuffer buffer_;
};

class Random {
 public:
  explicit Random(uint32_t seed) : rng_(seed) {}

  // N(0, 1).
  Floats Normal(int64_t n) {
    std::normal_distribution<float> normal;
    Floats values(static_cast<size_t>(n));
    for (float& value : values) value = normal(rng_);
    return values;
  }
  Floats Uniform(int64_t n, float most) {
    std::uniform_real_distribution<float> uniform(-most, most);
    Floats values(static_cast<size_t>(n));
    for (float& value : values) value = uniform(rng_);
    return values;
  }
  int64_t Between(int64_t least, int64_t most) { return std::uniform_int_distribution<int64_t>(least, most)(rng_); }
  bool Coin() { return Between(0, 1) == 1; }
  // One row, a few, or enough for several tasks.
  int64_t NumRows() {
    const int64_t kind = Between(0, 3);
    return kind == 0 ? 1 : kind == 1 ? Between(150, 400) : Between(2, 40);
  }
  int64_t Dim() { return Between(1, 300); }
  std::vector<int32_t> Indices(int64_t n, int64_t end) {
    std::vector<int32_t> indices(static_cast<size_t>(n));
    for (int32_t& index : indices) index = static_cast<int32_t>(Between(0, end - 1));
    return indices;
  }
  std::mt19937& rng() { return rng_; }

 private:
  std::mt19937 rng_;
};

// A matrix as the backend reads it. [N, K], N = values.size() / depth
inline WeightMatrix AdoptedMatrix(Backend& backend, DType type, const Floats& values, int64_t depth) {
  const auto num_elements = static_cast<int64_t>(values.size());
  // Where a backend reads weights as they are, they stay for the life of the process.
  static std::deque<std::vector<std::byte>> kept;
  std::vector<std::byte>& bytes = kept.emplace_back(BytesOf(type, num_elements));
  FromF32(type, values.data(), num_elements, bytes.data());
  return backend.AdoptWeights(WeightMatrix(ConstTensorView(bytes.data(), type, {num_elements / depth, depth}))).value();
}

// `tolerance(i)` is how far element i may be off. An oracle of what is no number would pass what is none either: it
// fails.
template <typename Tolerance>
void ExpectNear(const Floats& found, const Floats& expected, const Tolerance& tolerance) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_TRUE(std::isfinite(expected[i])) << "element " << i << ": the oracle has " << expected[i];
    ASSERT_LE(std::abs(static_cast<double>(found[i]) - expected[i]), tolerance(i))
        << "element " << i << " is " << found[i] << ", expected " << expected[i];
  }
}
// The oracle's are numbers here too.
inline void ExpectSameBits(const Floats& found, const Floats& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_TRUE(std::isfinite(expected[i])) << "element " << i << ": the oracle has " << expected[i];
    ASSERT_EQ(std::bit_cast<uint32_t>(found[i]), std::bit_cast<uint32_t>(expected[i])) << "element " << i;
  }
}

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_RANDOM_ROWS_H_
