#include "tensor/finite.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tensor/blocks.h"

namespace headwise {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(Finite, EveryPlaceIsLookedAt) {
  for (size_t size : {1u, 7u, 64u, 1000u}) {
    std::vector<float> values(size, std::numeric_limits<float>::max());
    EXPECT_TRUE(AllFinite(values));
    for (const float bad : {std::nanf(""), -std::nanf(""), kInf, -kInf}) {
      for (const size_t at : {size_t{0}, size / 2, size - 1}) {
        values[at] = bad;
        EXPECT_FALSE(AllFinite(values)) << bad << " at " << at;
        values[at] = -std::numeric_limits<float>::denorm_min();
      }
    }
  }
  EXPECT_TRUE(AllFinite({}));
}

TEST(Finite, TheFirstIsFoundInEveryFormat) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    std::vector<std::byte> data(static_cast<size_t>(BytesOf(dtype, 12)));
    const ConstTensorView matrix(data.data(), dtype, {3, 4});
    EXPECT_EQ(FindNonFinite(matrix), std::nullopt);
    StoreF32As(dtype, data.data(), 11, kInf);
    EXPECT_EQ(FindNonFinite(matrix), "inf at [2, 3]");
    StoreF32As(dtype, data.data(), 6, -kInf);
    EXPECT_EQ(FindNonFinite(matrix), "-inf at [1, 2]");
    EXPECT_EQ(FindNonFinite({data.data(), dtype, {12}}), "-inf at [6]");
  }
  // The scale of the second row's second block.
  std::vector<std::byte> blocks(static_cast<size_t>(BytesOf(DType::kQ8_0, 128)));
  const std::vector<float> ones(128, 1.0f);
  FromF32(DType::kQ8_0, ones.data(), 128, blocks.data());
  const ConstTensorView matrix(blocks.data(), DType::kQ8_0, {2, 64});
  EXPECT_EQ(FindNonFinite(matrix), std::nullopt);
  const uint16_t infinite = F32ToF16(kInf);
  std::memcpy(blocks.data() + 3 * 34, &infinite, sizeof(infinite));
  EXPECT_EQ(FindNonFinite(matrix), "inf at [1, 32]");
}

}  // namespace
}  // namespace headwise
