// Block formats against blocks worked out by hand, bounds of their errors, and values that are easily got wrong.
// tests/golden/blocks_test.cc holds them to an outside implementation.
#include "tensor/blocks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <string>
#include <thread>
#include <vector>

#include "base/rng.h"

namespace headwise {
namespace {

using ::testing::Each;
using ::testing::ElementsAreArray;

constexpr DType kBlockFormats[] = {DType::kQ8_0, DType::kQ4_0,   DType::kQ4_1,   DType::kQ5_0,   DType::kQ5_1,
                                   DType::kQ4_K, DType::kQ5_K,   DType::kQ6_K,   DType::kIQ4_NL, DType::kMXFP4,
                                   DType::kQ2_K, DType::kQ3_K,   DType::kIQ4_XS, DType::kTQ1_0,  DType::kTQ2_0,
                                   DType::kU4,   DType::kF8E4M3, DType::kNF4};
constexpr DType kWritable[] = {DType::kQ8_0, DType::kQ4_0, DType::kQ4_K, DType::kQ6_K};

struct Block {
  explicit Block(DType block_dtype) : dtype(block_dtype), bytes(static_cast<size_t>(BlockBytes(block_dtype))) {}

  Block& Half(size_t offset, float value) {
    const uint16_t bits = F32ToF16(value);
    bytes[offset] = static_cast<uint8_t>(bits);
    bytes[offset + 1] = static_cast<uint8_t>(bits >> 8);
    return *this;
  }
  Block& Byte(size_t offset, int value) {
    bytes[offset] = static_cast<uint8_t>(value);
    return *this;
  }
  Block& Bytes(size_t begin, size_t end, int value) {
    for (size_t i = begin; i < end; ++i) Byte(i, value);
    return *this;
  }
  std::vector<float> Values() const {
    std::vector<float> values(static_cast<size_t>(BlockElements(dtype)));
    ToF32(dtype, bytes.data(), BlockElements(dtype), values.data());
    return values;
  }

  DType dtype;
  std::vector<uint8_t> bytes;
};

// `size` values, all `fill` but for those given.
std::vector<float> AllBut(size_t size, float fill, std::initializer_list<std::pair<size_t, float>> others) {
  std::vector<float> values(size, fill);
  for (const auto& [idx, value] : others) values[idx] = value;
  return values;
}

std::vector<uint8_t> Write(DType dtype, const std::vector<float>& values) {
  const auto num_elements = static_cast<int64_t>(values.size());
  std::vector<uint8_t> bytes(static_cast<size_t>(BytesOf(dtype, num_elements)));
  FromF32(dtype, values.data(), num_elements, bytes.data());
  return bytes;
}

std::vector<float> Read(DType dtype, const std::vector<uint8_t>& bytes) {
  const int64_t num_blocks = static_cast<int64_t>(bytes.size()) / BlockBytes(dtype);
  std::vector<float> values(static_cast<size_t>(num_blocks * BlockElements(dtype)));
  ToF32(dtype, bytes.data(), num_blocks * BlockElements(dtype), values.data());
  return values;
}

std::vector<float> RoundTrip(DType dtype, const std::vector<float>& values) {
  return Read(dtype, Write(dtype, values));
}

std::vector<float> Gaussian(size_t size, double deviation, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> values(size);
  for (float& value : values) {
    // Box and Muller's, one of the two.
    const double radius = std::sqrt(-2 * std::log(1 - rng.Uniform()));
    value = static_cast<float>(deviation * radius * std::cos(2 * std::numbers::pi * rng.Uniform()));
  }
  return values;
}

double Rmse(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::pow(double{a[i]} - double{b[i]}, 2);
  return std::sqrt(sum / static_cast<double>(a.size()));
}

TEST(ReadBlocks, Q8_0) {
  const Block block = Block(DType::kQ8_0).Half(0, 0.5f).Byte(2, 127).Byte(3, -128).Byte(33, -1);
  EXPECT_THAT(block.Values(), ElementsAreArray(AllBut(32, 0, {{0, 63.5f}, {1, -64}, {31, -0.5f}})));
}

TEST(ReadBlocks, Q4_0) {
  const Block block = Block(DType::kQ4_0).Half(0, -2).Bytes(2, 18, 0x88).Byte(2, 0xF0).Byte(17, 0x7A);
  EXPECT_THAT(block.Values(), ElementsAreArray(AllBut(32, 0, {{0, 16}, {16, -14}, {15, -4}, {31, 2}})));
}

TEST(ReadBlocks, Q4_1) {
  const Block block = Block(DType::kQ4_1).Half(0, 2).Half(2, -0.25f).Byte(4, 0xF1).Byte(19, 0x3E);
  EXPECT_THAT(block.Values(),
              ElementsAreArray(AllBut(32, -0.25f, {{0, 1.75f}, {16, 29.75f}, {15, 27.75f}, {31, 5.75f}})));
}

TEST(ReadBlocks, Q5_0) {
  // Fifth bits of all but elements 1 and 29: codes of 16 stand for 0.
  const Block block =
      Block(DType::kQ5_0).Half(0, 3).Bytes(2, 6, 0xFF).Byte(2, 0xFD).Byte(5, 0xDF).Byte(6, 0x2F).Byte(7, 0x04);
  EXPECT_THAT(block.Values(), ElementsAreArray(AllBut(32, 0, {{0, 45}, {16, 6}, {1, -36}, {29, -48}})));
}

TEST(ReadBlocks, Q5_1) {
  // Fifth bits of elements 1 and 29.
  const Block block = Block(DType::kQ5_1).Half(0, 0.5f).Half(2, 4).Byte(4, 0x02).Byte(7, 0x20).Byte(8, 0x2F).Byte(9, 5);
  EXPECT_THAT(block.Values(), ElementsAreArray(AllBut(32, 4, {{0, 11.5f}, {16, 5}, {1, 14.5f}, {29, 12}})));
}

TEST(ReadBlocks, MXFP4) {
  // An exponent of 128 is a scale of 2; codes 7 and 15 are 6 and -6.
  const Block block = Block(DType::kMXFP4).Byte(0, 128).Bytes(1, 17, 0x22).Byte(1, 0xF7).Byte(16, 0x19);
  EXPECT_THAT(block.Values(), ElementsAreArray(AllBut(32, 2, {{0, 12}, {16, -12}, {15, -1}, {31, 1}})));
  // The smallest scale is subnormal, and the byte of ones is none.
  EXPECT_EQ(Block(DType::kMXFP4).Bytes(1, 17, 0x11).Values()[0], 0x1p-128f);
  EXPECT_TRUE(std::isnan(Block(DType::kMXFP4).Byte(0, 255).Values()[0]));
}

TEST(ReadBlocks, U4) {
  const Block block = Block(DType::kU4).Half(0, 0.5f).Byte(2, 16).Bytes(3, 19, 0x66).Byte(3, 0xF0);
  EXPECT_THAT(block.Values(), ElementsAreArray(AllBut(32, -5, {{0, -8}, {16, -0.5f}})));
}

TEST(ReadBlocks, F8E4M3) {
  Block block(DType::kF8E4M3);
  const float scale = 0.1f;
  std::memcpy(block.bytes.data(), &scale, sizeof(scale));
  block.Byte(4, 0x7E).Byte(5, 0xFE).Byte(6, 0x01).Byte(7, 0x08).Byte(8, 0x38);
  const std::vector<float> values = block.Values();
  EXPECT_THAT(std::vector(values.begin(), values.begin() + 6),
              ElementsAreArray({0.1f * 448, 0.1f * -448, 0.1f * 0x1p-9f, 0.1f * 0x1p-6f, 0.1f, 0.0f}));
}

// Codes 0, 15, 7 and 1 in low nibbles, 15, 0, 8 and 14 in high ones.
TEST(ReadBlocks, NF4) {
  Block block(DType::kNF4);
  const float scale = 0.3f;
  std::memcpy(block.bytes.data(), &scale, sizeof(scale));
  block.Bytes(4, 36, 0x77).Byte(4, 0xF0).Byte(5, 0x0F).Byte(6, 0x87).Byte(7, 0xE1);
  EXPECT_THAT(block.Values(), ElementsAreArray(AllBut(64, 0,
                                                      {{0, -0.3f},
                                                       {32, 0.3f},
                                                       {1, 0.3f},
                                                       {33, -0.3f},
                                                       {34, 0.3f * 0.07958029955625534f},
                                                       {3, 0.3f * -0.6961928009986877f},
                                                       {35, 0.3f * 0.7229568362236023f}})));
}

TEST(ReadBlocks, IQ4_NL) {
  const Block block = Block(DType::kIQ4_NL).Half(0, 0.5f).Bytes(2, 18, 0x88).Byte(2, 0xF0).Byte(17, 0x79);
  EXPECT_THAT(block.Values(), ElementsAreArray(AllBut(32, 0.5f, {{0, -63.5f}, {16, 56.5f}, {15, 6.5f}, {31, -5}})));
}

// Scale codes 1 to 8 and minimum codes 63, 55, 47, 39, 31, 23, 15, 7 for the eight sub-blocks, packed by hand.
Block& SetAffineCodes(Block& block) {
  return block.Byte(4, 1)
      .Byte(5, 2)
      .Byte(6, 3)
      .Byte(7, 4)  // upper bits of scales 5 to 8 are 0
      .Byte(8, 63 | 0x40)
      .Byte(9, 55 | 0x40)
      .Byte(10, 47)
      .Byte(11, 39)  // those of 31 and 23 are 1
      .Byte(12, 0xF5)
      .Byte(13, 0x76)
      .Byte(14, 0xF7)
      .Byte(15, 0x78);
}

TEST(ReadBlocks, Q4_K) {
  Block block = Block(DType::kQ4_K).Half(0, 2).Half(2, 0.5f);
  SetAffineCodes(block);
  block.Byte(16, 0x3F);        // elements 0 and 32
  block.Byte(16 + 127, 0x91);  // elements 223 and 255
  std::vector<float> expected(256);
  for (int i = 0; i < 256; ++i) expected[static_cast<size_t>(i)] = -0.5f * static_cast<float>(63 - 8 * (i / 32));
  expected[0] += 2 * 1 * 15;
  expected[32] += 2 * 2 * 3;
  expected[223] += 2 * 7 * 1;
  expected[255] += 2 * 8 * 9;
  EXPECT_THAT(block.Values(), ElementsAreArray(expected));
}

TEST(ReadBlocks, UpperBitsOfScaleCodesOfQ4_K) {
  // Scales of the last four sub-blocks: 16 * (1, 2, 3, 1) + (1, 2, 3, 4).
  const Block block = Block(DType::kQ4_K)
                          .Half(0, 1)
                          .Byte(4, 1 << 6)
                          .Byte(5, 2 << 6)
                          .Byte(6, 3 << 6)
                          .Byte(7, 1 << 6)
                          .Byte(12, 1)
                          .Byte(13, 2)
                          .Byte(14, 3)
                          .Byte(15, 4)
                          .Bytes(16, 144, 0x11);
  const std::vector<float> values = block.Values();
  EXPECT_THAT((std::vector<float>{values[0], values[128], values[160], values[192], values[255]}),
              ElementsAreArray({0.0f, 17.0f, 34.0f, 51.0f, 20.0f}));
}

TEST(ReadBlocks, Q5_K) {
  Block block = Block(DType::kQ5_K).Half(0, 2).Half(2, 0.5f);
  SetAffineCodes(block);
  block.Byte(16, 0x03);        // fifth bits of elements 0 and 32
  block.Byte(16 + 31, 0x80);   // of element 255
  block.Byte(48, 0x3F);        // elements 0 and 32
  block.Byte(48 + 127, 0x91);  // elements 223 and 255
  std::vector<float> expected(256);
  for (int i = 0; i < 256; ++i) expected[static_cast<size_t>(i)] = -0.5f * static_cast<float>(63 - 8 * (i / 32));
  expected[0] += 2 * 1 * 31;
  expected[32] += 2 * 2 * 19;
  expected[223] += 2 * 7 * 1;
  expected[255] += 2 * 8 * 25;
  EXPECT_THAT(block.Values(), ElementsAreArray(expected));
}

TEST(ReadBlocks, Q6_K) {
  // Codes of 32, which stand for 0, but for those set below.
  Block block = Block(DType::kQ6_K).Bytes(128, 192, 0xAA).Half(208, 0.5f);
  for (int i = 0; i < 16; ++i) block.Byte(static_cast<size_t>(192 + i), i % 2 == 0 ? i + 1 : -i - 1);
  block.Byte(0, 0xF3);          // elements 0 and 64
  block.Byte(32, 0x10);         // element 96
  block.Byte(128, 0x78 | 0x3);  // upper bits of 0, 32, 64, 96: 3, 2, 3, 1
  block.Byte(127, 0x5F);        // elements 191 and 255
  block.Byte(191, 0x0A);        // upper bits of 159, 191, 223, 255: 2, 2, 0, 0
  const std::vector<float> expected = AllBut(256, 0,
                                             {{0, 0.5f * 1 * (0x33 - 32)},
                                              {64, 0.5f * 5 * (0x3F - 32)},
                                              {96, 0.5f * 7 * (0x11 - 32)},
                                              {191, 0.5f * -12 * (0x2F - 32)},
                                              {223, 0.5f * -14 * (0x00 - 32)},
                                              {255, 0.5f * -16 * (0x05 - 32)}});
  EXPECT_THAT(block.Values(), ElementsAreArray(expected));
}

TEST(ReadBlocks, SubnormalScalesAreExact) {
  EXPECT_EQ(Block(DType::kQ8_0).Half(0, 0x1p-24f).Byte(2, -127).Values()[0], -127 * 0x1p-24f);
  const Block block = Block(DType::kQ4_K).Half(0, 0x3p-24f).Byte(4, 63).Byte(16, 15);
  EXPECT_EQ(block.Values()[0], 3 * 63 * 15 * 0x1p-24f);
}

TEST(ReadBlocks, BlocksMayLieAtAnyAddress) {
  Rng rng(3);
  for (const DType dtype : kBlockFormats) {
    Block block(dtype);
    for (uint8_t& byte : block.bytes) byte = static_cast<uint8_t>(rng.Below(120));  // no scale is infinite
    std::vector<uint8_t> shifted(block.bytes.size() + 1);
    std::copy(block.bytes.begin(), block.bytes.end(), shifted.begin() + 1);
    std::vector<float> values(static_cast<size_t>(BlockElements(dtype)));
    ToF32(dtype, shifted.data() + 1, BlockElements(dtype), values.data());
    EXPECT_THAT(values, ElementsAreArray(block.Values())) << NameOf(dtype);
  }
}

TEST(ReadBlocks, PlainFormats) {
  const std::vector<float> values = {0.0f, -1.5f, 0.1f, 1e-7f};
  EXPECT_THAT(RoundTrip(DType::kF32, values), ElementsAreArray(values));
  EXPECT_THAT(RoundTrip(DType::kF16, values), ElementsAreArray({0.0f, -1.5f, 0x1.998p-4f, 0x1p-23f}));
  EXPECT_THAT(RoundTrip(DType::kBF16, values), ElementsAreArray({0.0f, -1.5f, 0x1.9ap-4f, 0x1.aep-24f}));
}

TEST(WriteBlocks, Q8_0ByHand) {
  // The scale is 254 / 127; halves round away from zero.
  const std::vector<uint8_t> bytes = Write(DType::kQ8_0, AllBut(32, 0, {{0, -254}, {1, 1}, {2, -3}, {31, 9.5f}}));
  Block expected = Block(DType::kQ8_0).Half(0, 2).Byte(2, -127).Byte(3, 1).Byte(4, -2).Byte(33, 5);
  EXPECT_THAT(bytes, ElementsAreArray(expected.bytes));
}

TEST(WriteBlocks, Q4_0ByHand) {
  // The largest is negative: the scale is 2, and the other side is cut off at 7 scales.
  std::vector<uint8_t> bytes = Write(DType::kQ4_0, AllBut(32, 0, {{3, -16}, {4, 15.5f}, {19, 5}, {20, 4.9f}}));
  Block expected = Block(DType::kQ4_0).Half(0, 2).Bytes(2, 18, 0x88).Byte(5, 0xB0).Byte(6, 0xAF);
  EXPECT_THAT(bytes, ElementsAreArray(expected.bytes));
  // Of equals the first counts.
  bytes = Write(DType::kQ4_0, AllBut(32, 0, {{3, 16}, {4, -16}}));
  expected = Block(DType::kQ4_0).Half(0, -2).Bytes(2, 18, 0x88).Byte(5, 0x80).Byte(6, 0x8F);
  EXPECT_THAT(bytes, ElementsAreArray(expected.bytes));
}

TEST(WriteBlocks, MXFP4ByHand) {
  // The largest, 6, is between 4 and 8: the scale is 1. Of two levels that are as near the smaller magnitude.
  const std::vector<float> values =
      AllBut(32, 0, {{0, 6}, {1, -3}, {2, 0.26f}, {3, -5}, {4, 0.25f}, {16, 5.1f}, {31, -1.6f}});
  Block expected = Block(DType::kMXFP4).Byte(0, 127).Byte(1, 0x77).Byte(2, 0x0D).Byte(3, 0x01).Byte(4, 0x0E);
  expected.Byte(16, 0xB0);
  EXPECT_THAT(Write(DType::kMXFP4, values), ElementsAreArray(expected.bytes));
  // What was read is written as it was.
  const std::vector<float> once = RoundTrip(DType::kMXFP4, Gaussian(32 * 100, 0.02, 5));
  EXPECT_THAT(RoundTrip(DType::kMXFP4, once), ElementsAreArray(once));
  EXPECT_THAT(RoundTrip(DType::kMXFP4, std::vector<float>(32, -0.0f)), Each(0.0f));
  for (const float value : RoundTrip(DType::kMXFP4, std::vector<float>(32, 3e38f))) EXPECT_GT(value, 2e38f);
}

TEST(WriteBlocks, Q8_0IsStable) {
  // From the second writing on nothing changes: the largest code is 127, so that the scale is found again.
  for (const double deviation : {1e-4, 0.02, 1.0, 1e3}) {
    const std::vector<uint8_t> bytes = Write(DType::kQ8_0, Gaussian(64 * 32, deviation, 5));
    EXPECT_THAT(Write(DType::kQ8_0, Read(DType::kQ8_0, bytes)), ElementsAreArray(bytes)) << deviation;
  }
}

TEST(WriteBlocks, ErrorsOnGaussianData) {
  // For deviation 1. What bounds q8_0 and q4_0 is their rule. Those of q4_k and q6_k would be 0.0715 and 0.0178 under
  // the search that other writers use.
  const std::vector<float> values = Gaussian(256 * 256, 1, 7);
  const auto error = [&](DType dtype) { return Rmse(values, RoundTrip(dtype, values)); };
  EXPECT_LT(error(DType::kF16), 2.5e-4);
  EXPECT_LT(error(DType::kBF16), 2e-3);
  EXPECT_LT(error(DType::kQ8_0), 5.5e-3);
  EXPECT_LT(error(DType::kQ4_0), 0.087);
  EXPECT_LT(error(DType::kQ4_K), 0.0709);
  EXPECT_LT(error(DType::kQ6_K), 0.0170);
}

TEST(WriteBlocks, SearchBeatsScalesFromTheRange) {
  // Against scales that need not be quantised but are taken from the least and the largest value of each sub-block.
  for (const double deviation : {1e-3, 1.0, 100.0}) {
    std::vector<float> values = Gaussian(64 * 256, deviation, 11);
    std::vector<float> affine = values, scaled = values;
    for (size_t begin = 0; begin < values.size(); begin += 32) {
      const auto [least, most] = std::minmax_element(&values[begin], &values[begin] + 32);
      const float step = (*most - *least) / 15;
      for (size_t i = begin; i < begin + 32; ++i) affine[i] = std::round((values[i] - *least) / step) * step + *least;
    }
    for (size_t begin = 0; begin < values.size(); begin += 16) {
      float largest = 0;
      for (size_t i = begin; i < begin + 16; ++i) largest = std::max(largest, std::abs(values[i]));
      for (size_t i = begin; i < begin + 16; ++i) scaled[i] = std::round(values[i] / largest * 31) / 31 * largest;
    }
    EXPECT_LT(Rmse(values, RoundTrip(DType::kQ4_K, values)), Rmse(values, affine)) << deviation;
    EXPECT_LT(Rmse(values, RoundTrip(DType::kQ6_K, values)), Rmse(values, scaled)) << deviation;
  }
}

TEST(WriteBlocks, LargeValuesAreNotGivenUpForSmallOnes) {
  // The same search with all errors counting alike leaves 0.086 and 0.0164 on the values beyond two deviations.
  const std::vector<float> values = Gaussian(256 * 256, 1, 7);
  const auto error_of_large = [&](DType dtype) {
    const std::vector<float> read = RoundTrip(dtype, values);
    std::vector<float> large, large_read;
    for (size_t i = 0; i < values.size(); ++i) {
      if (std::abs(values[i]) < 2) continue;
      large.push_back(values[i]);
      large_read.push_back(read[i]);
    }
    return Rmse(large, large_read);
  };
  EXPECT_LT(error_of_large(DType::kQ4_K), 0.070);
  EXPECT_LT(error_of_large(DType::kQ6_K), 0.0145);
}

TEST(WriteBlocks, SearchFindsScalesAgain) {
  // A tenth of the first error of q4_k, and a fiftieth of that of q6_k.
  const std::vector<float> values = Gaussian(256 * 256, 1, 7);
  const std::vector<float> once4 = RoundTrip(DType::kQ4_K, values), once6 = RoundTrip(DType::kQ6_K, values);
  EXPECT_LT(Rmse(once4, RoundTrip(DType::kQ4_K, once4)), 0.007);
  EXPECT_LT(Rmse(once6, RoundTrip(DType::kQ6_K, once6)), 0.00034);
}

TEST(WriteBlocks, ZerosOfBothSignsStayZero) {
  for (const DType dtype : kWritable) {
    EXPECT_THAT(RoundTrip(dtype, std::vector<float>(512, 0.0f)), Each(0.0f)) << NameOf(dtype);
    EXPECT_THAT(RoundTrip(dtype, std::vector<float>(512, -0.0f)), Each(0.0f)) << NameOf(dtype);
  }
}

TEST(WriteBlocks, OneOutlierLeavesZerosAlone) {
  constexpr size_t kOutlier = 77;
  for (const DType dtype : kWritable) {
    for (const float outlier : {1000.0f, -1000.0f, 0.001f, -0.001f}) {
      std::vector<float> values(512, 0.0f);
      values[kOutlier] = outlier;
      const std::vector<float> read = RoundTrip(dtype, values);
      EXPECT_NEAR(read[kOutlier], outlier, 0.01 * std::abs(outlier)) << NameOf(dtype);
      for (size_t i = 0; i < read.size(); ++i) {
        // Below a minimum of q4_k, zero is a difference of two products, each of an f16.
        const bool below_minimum = dtype == DType::kQ4_K && outlier < 0 && i / 32 == kOutlier / 32;
        const float bound = below_minimum ? std::abs(outlier) * 0x1p-9f : 0;
        if (i != kOutlier) {
          EXPECT_NEAR(read[i], 0, bound) << NameOf(dtype) << " " << outlier << " " << i;
        }
      }
    }
  }
}

TEST(WriteBlocks, AnOutlierDoesNotSpoilOtherSubBlocks) {
  // In q4_k and q6_k the other sub-blocks keep scales of their own, if coarse ones.
  std::vector<float> values = Gaussian(256, 1, 13);
  values[5] = 60;
  for (const DType dtype : {DType::kQ4_K, DType::kQ6_K}) {
    const std::vector<float> read = RoundTrip(dtype, values);
    const std::vector<float> others(values.begin() + 32, values.end()), others_read(read.begin() + 32, read.end());
    EXPECT_LT(Rmse(others, others_read), dtype == DType::kQ4_K ? 0.15 : 0.05) << NameOf(dtype);
  }
}

TEST(WriteBlocks, ConstantsAndOneSidedRowsHaveSmallErrors) {
  for (const DType dtype : kWritable) {
    for (const float sign : {1.0f, -1.0f}) {
      const std::vector<float> constant(256, sign * 0.7f);
      EXPECT_LT(Rmse(constant, RoundTrip(dtype, constant)), 1e-3) << NameOf(dtype) << " " << sign;
      std::vector<float> ramp(256);
      for (size_t i = 0; i < ramp.size(); ++i) ramp[i] = sign * (0.5f + static_cast<float>(i % 32) / 31);
      // Half a step of the widest grid, four bits from 0 to 1.5, is 0.05; q4_0 wastes half of its codes here.
      EXPECT_LT(Rmse(ramp, RoundTrip(dtype, ramp)), dtype == DType::kQ4_0 ? 0.06 : 0.03)
          << NameOf(dtype) << " " << sign;
    }
  }
}

TEST(WriteBlocks, SubnormalScalesAreUsed) {
  // Searched formats choose codes under the scale as it will be read, so that its rounding costs little. The smallest
  // step is 2^-24, the deviation eight of them: q6_k is left with the error of rounding to whole steps.
  const std::vector<float> values = Gaussian(512, 0x1p-21, 17);
  EXPECT_LT(Rmse(values, RoundTrip(DType::kQ6_K, values)), 0.35 * 0x1p-24);
  EXPECT_LT(Rmse(values, RoundTrip(DType::kQ4_K, values)), 0.09 * 0x1p-21);
}

TEST(WriteBlocks, ValuesBeyondAScaleStayFinite) {
  for (const DType dtype : kWritable) {
    for (const float size : {1e9f, 3e38f}) {
      std::vector<float> values = AllBut(256, 0, {{7, size}, {200, -size}});
      for (const float value : RoundTrip(dtype, values)) EXPECT_TRUE(std::isfinite(value)) << NameOf(dtype);
      EXPECT_GT(RoundTrip(dtype, values)[7], 1e5f) << NameOf(dtype);
      EXPECT_EQ(RoundTrip(dtype, values)[8], 0) << NameOf(dtype);
    }
    for (const float value : RoundTrip(dtype, std::vector<float>(256, 3e38f))) EXPECT_GT(value, 1e5f) << NameOf(dtype);
  }
}

TEST(WriteBlocks, ValuesBelowAScaleBecomeZero) {
  for (const DType dtype : kWritable) {
    EXPECT_THAT(RoundTrip(dtype, std::vector<float>(256, 1e-40f)), Each(0.0f)) << NameOf(dtype);
    EXPECT_THAT(RoundTrip(dtype, AllBut(256, 0, {{3, -1e-45f}})), Each(0.0f)) << NameOf(dtype);
  }
  // A scale without an inverse gives no codes.
  EXPECT_THAT(Write(DType::kQ8_0, std::vector<float>(32, 1e-40f)), Each(0));
  const std::vector<uint8_t> bytes = Write(DType::kQ4_K, std::vector<float>(256, 1e-40f));
  EXPECT_THAT(std::vector<uint8_t>(bytes.begin() + 16, bytes.end()), Each(0));
}

TEST(WriteBlocks, RowsOnManyThreadsGiveTheSameBytes) {
  constexpr size_t kRows = 8, kColumns = 1024;
  const std::vector<float> values = Gaussian(kRows * kColumns, 1, 19);
  for (const DType dtype : kWritable) {
    const std::vector<uint8_t> expected = Write(dtype, values);
    std::vector<uint8_t> bytes(expected.size());
    std::vector<std::thread> threads;
    for (size_t row = 0; row < kRows; ++row) {
      threads.emplace_back(
          [&, row] { FromF32(dtype, &values[row * kColumns], kColumns, &bytes[row * expected.size() / kRows]); });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_THAT(bytes, ElementsAreArray(expected)) << NameOf(dtype);
  }
}

TEST(Blocks, WhatCanBeWritten) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_K,
                            DType::kQ6_K, DType::kMXFP4}) {
    EXPECT_TRUE(CanQuantize(dtype)) << NameOf(dtype);
  }
  for (const DType dtype : {DType::kI32, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ5_K, DType::kIQ4_NL,
                            DType::kQ2_K, DType::kU4, DType::kF8E4M3, DType::kNF4}) {
    EXPECT_FALSE(CanQuantize(dtype)) << NameOf(dtype);
  }
}

TEST(Blocks, NoElementsAreNoWork) {
  for (const DType dtype : kWritable) {
    ToF32(dtype, nullptr, 0, nullptr);
    FromF32(dtype, nullptr, 0, nullptr);
  }
}

TEST(BlocksDeathTest, OurOwnMistakesAreFound) {
  std::vector<float> values(256);
  std::vector<uint8_t> bytes(1024);
  EXPECT_DEATH(ToF32(DType::kI32, bytes.data(), 32, values.data()), "i32 does not stand for floats");
  EXPECT_DEATH(ToF32(DType::kQ8_0, bytes.data(), 33, values.data()), "33 elements of q8_0");
  EXPECT_DEATH(ToF32(DType::kQ6_K, bytes.data(), 128, values.data()), "128 elements of q6_k");
  EXPECT_DEATH(FromF32(DType::kQ4_K, values.data(), 32, bytes.data()), "32 elements of q4_k");
  EXPECT_DEATH(FromF32(DType::kQ5_K, values.data(), 256, bytes.data()), "q5_k can be read, not written");
  EXPECT_DEATH(FromF32(DType::kI32, values.data(), 1, bytes.data()), "i32 can be read, not written");
}

}  // namespace
}  // namespace headwise
