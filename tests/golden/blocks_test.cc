// Block formats against an outside implementation, bit for bit (tests/golden/blocks).
#include "tensor/blocks.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "support/golden.h"

namespace headwise {
namespace {

class BlockGolden : public ::testing::TestWithParam<DType> {
 protected:
  // The file keeps bytes four in an int32, the last ones padded.
  std::vector<uint8_t> Bytes(const std::string& name, size_t num_bytes) const {
    const std::vector<int32_t> packed = golden_.Ids(Key(name));
    std::vector<uint8_t> bytes(num_bytes);
    EXPECT_EQ((num_bytes + 3) / 4, packed.size()) << name;
    if ((num_bytes + 3) / 4 == packed.size()) std::memcpy(bytes.data(), packed.data(), num_bytes);
    return bytes;
  }
  std::string Key(const std::string& name) const { return std::string(NameOf(GetParam())) + "." + name; }
  static size_t BytesFor(const std::vector<float>& values) {
    return static_cast<size_t>(BytesOf(GetParam(), static_cast<int64_t>(values.size())));
  }
  static std::vector<float> Read(const std::vector<uint8_t>& bytes, size_t num_elements) {
    std::vector<float> values(num_elements);
    ToF32(GetParam(), bytes.data(), static_cast<int64_t>(num_elements), values.data());
    return values;
  }

  GoldenTensors golden_{SourcePath("tests/golden/blocks/golden.safetensors")};
};

// Bits, so that the sign of a zero counts.
void ExpectSameBits(const std::vector<float>& values, const std::vector<float>& expected) {
  ASSERT_EQ(values.size(), expected.size());
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(std::memcmp(&values[i], &expected[i], sizeof(float)), 0)
        << "element " << i << " is " << values[i] << ", expected " << expected[i];
  }
}

class BlocksRead : public BlockGolden {};
class BlocksWritten : public BlockGolden {};

TEST_P(BlocksRead, HaveTheSameBits) {
  const std::vector<float> expected = golden_.F32(Key("values"));
  ASSERT_GE(expected.size(), 512u);
  ExpectSameBits(Read(Bytes("blocks", BytesFor(expected)), expected.size()), expected);
}

TEST_P(BlocksWritten, HaveTheSameBytes) {
  const std::vector<float> source = golden_.F32("source");
  const std::vector<uint8_t> expected = Bytes("written", BytesFor(source));
  std::vector<uint8_t> bytes(expected.size());
  FromF32(GetParam(), source.data(), static_cast<int64_t>(source.size()), bytes.data());
  for (size_t i = 0; i < bytes.size(); ++i) {
    EXPECT_EQ(bytes[i], expected[i]) << "byte " << i % static_cast<size_t>(BlockBytes(GetParam())) << " of block "
                                     << i / static_cast<size_t>(BlockBytes(GetParam()));
  }
  ExpectSameBits(Read(bytes, source.size()), golden_.F32(Key("read_back")));
}

std::string FormatName(const ::testing::TestParamInfo<DType>& info) {
  return std::string(NameOf(info.param));
}
INSTANTIATE_TEST_SUITE_P(Formats, BlocksRead,
                         ::testing::Values(DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1,
                                           DType::kQ5_0, DType::kQ5_1, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K,
                                           DType::kIQ4_NL, DType::kMXFP4, DType::kQ2_K, DType::kQ3_K, DType::kIQ4_XS,
                                           DType::kTQ1_0, DType::kTQ2_0),
                         FormatName);
INSTANTIATE_TEST_SUITE_P(Formats, BlocksWritten,
                         ::testing::Values(DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kMXFP4),
                         FormatName);

}  // namespace
}  // namespace headwise
