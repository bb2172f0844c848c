// For tests: folders with quantised matrices, written tensor by tensor, and what is read of them.
#ifndef HEADWISE_WEIGHTS_PUBLISHED_TEST_FOLDER_H_
#define HEADWISE_WEIGHTS_PUBLISHED_TEST_FOLDER_H_

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tensor/blocks.h"
#include "weights/published_weights.h"

namespace headwise {

// A tensor to be written: any type, bytes as they are.
struct Written {
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};
using Tensors = std::map<std::string, Written>;

template <typename T>
std::string BytesOfAll(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}
inline Written Floats(std::vector<int64_t> shape, const std::vector<float>& values) {
  return {"F32", std::move(shape), BytesOfAll(values)};
}
inline Written Halves(std::vector<int64_t> shape, const std::vector<float>& values) {
  std::vector<uint16_t> bits;
  for (const float value : values) bits.push_back(F32ToF16(value));
  return {"F16", std::move(shape), BytesOfAll(bits)};
}
inline Written Words(std::vector<int64_t> shape, const std::vector<uint32_t>& words) {
  return {"I32", std::move(shape), BytesOfAll(words)};
}

class PublishedFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::path(::testing::TempDir()) / fmt::format("headwise_{}_{}", test->name(), ::getpid());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& method, const Tensors& tensors) const {
    std::ofstream(folder_ / "config.json") << fmt::format(R"({{"quantization_config": {}}})", method);
    std::string header, data;
    for (const auto& [name, tensor] : tensors) {
      header += fmt::format(R"({}"{}": {{"dtype": "{}", "shape": [{}], "data_offsets": [{}, {}]}})",
                            header.empty() ? "" : ", ", name, tensor.dtype, fmt::join(tensor.shape, ", "), data.size(),
                            data.size() + tensor.bytes.size());
      data += tensor.bytes;
    }
    header = "{" + header + "}";
    header.resize((header.size() + 7) / 8 * 8, ' ');  // plain tensors are read in place
    const uint64_t header_bytes = header.size();
    std::ofstream(folder_ / "model.safetensors", std::ios::binary)
        << std::string(reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes)) << header << data;
  }
  Result<std::unique_ptr<WeightSource>> Open(const std::string& method, const Tensors& tensors) const {
    Write(method, tensors);
    return OpenWeightsFolder(folder_.string());
  }

  // The matrix, of that format and shape; what it stands for.
  std::vector<float> Values(const std::string& method, const Tensors& tensors, DType dtype, const Shape& shape,
                            const std::string& name = "w.weight") const {
    const auto source = Open(method, tensors);
    EXPECT_TRUE(source.ok()) << source.status().message();
    if (!source.ok()) return {};
    const auto view = (*source)->Get(name, shape);
    EXPECT_TRUE(view.ok()) << view.status().message();
    if (!view.ok()) return {};
    EXPECT_EQ(NameOf(view->dtype), NameOf(dtype));
    std::vector<float> values(static_cast<size_t>(shape.num_elements()));
    ToF32(view->dtype, view->data, shape.num_elements(), values.data());
    return values;
  }
  std::string Error(const std::string& method, const Tensors& tensors, const std::string& name = "w.weight") const {
    const auto source = Open(method, tensors);
    if (!source.ok()) return source.status().message();
    const auto view = (*source)->Get(name);
    return view.ok() ? "(no error)" : view.status().message();
  }

  std::filesystem::path folder_;
};

inline void ExpectSame(const std::vector<float>& values, const std::function<float(int64_t, int64_t)>& expected,
                       int64_t rows, int64_t columns) {
  ASSERT_EQ(values.size(), static_cast<size_t>(rows * columns));
  for (int64_t n = 0; n < rows; ++n) {
    for (int64_t k = 0; k < columns; ++k) {
      ASSERT_EQ(values[static_cast<size_t>(n * columns + k)], expected(n, k)) << "row " << n << " column " << k;
    }
  }
}

}  // namespace headwise

#endif  // HEADWISE_WEIGHTS_PUBLISHED_TEST_FOLDER_H_
