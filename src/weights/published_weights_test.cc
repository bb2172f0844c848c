// Matrices that are quantised as they are published: what they become stands for the numbers of each method's
// definition, bit for bit, and every way in which tensors and configs can be wrong. tests/golden/tiny has models of
// them.
#include "weights/published_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <map>

#include "base/rng.h"
#include "tensor/blocks.h"
#include "weights/published_test_folder.h"

namespace headwise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class PublishedWeights : public PublishedFolder {};

// ---- 8-bit floats ---------------------------------------------------------------------------------------------------

constexpr const char* kFp8 = R"({"quant_method": "fp8"})";
constexpr const char* kFp8Blocks = R"({"quant_method": "fp8", "weight_block_size": [3, 64]})";
constexpr const char* kCompressedFp8 =
    R"({"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups":
        {"group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}}})";

// All finite codes, several times: place i has code i % 254, without 0x7F and 0xFF.
uint8_t FloatCode(int64_t place) {
  const auto code = static_cast<uint8_t>(place % 254);
  return static_cast<uint8_t>(code < 0x7F ? code : code + 1);
}
// By the format's definition.
float FloatValue(uint8_t code) {
  const int exponent = (code >> 3) & 15, fraction = code & 7;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction / 8.0, -6) : std::ldexp(1 + fraction / 8.0, exponent - 7);
  return static_cast<float>((code & 0x80) != 0 ? -magnitude : magnitude);
}
Written FloatMatrix(int64_t rows, int64_t columns) {
  std::string bytes;
  for (int64_t i = 0; i < rows * columns; ++i) bytes += static_cast<char>(FloatCode(i));
  return {"F8_E4M3", {rows, columns}, bytes};
}

TEST_F(PublishedWeights, FloatsWithAScaleForTheMatrix) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{}, std::vector<int64_t>{1}}) {
    const auto values = Values(kFp8,
                               {{"w.weight", FloatMatrix(4, 128)},
                                {"w.weight_scale", Floats(shape, {0.0123f})},
                                {"w.input_scale", Floats({}, {1})}},
                               DType::kF8E4M3, {4, 128});
    ExpectSame(
        values, [](int64_t n, int64_t k) { return 0.0123f * FloatValue(FloatCode(n * 128 + k)); }, 4, 128);
  }
}

TEST_F(PublishedWeights, FloatsWithAScaleForEveryRow) {
  const std::vector<float> scales = {0.5f, 0.1f, 3e-5f};
  for (const char* method : {kCompressedFp8, R"({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0})"}) {
    const auto values = Values(method, {{"w.weight", FloatMatrix(3, 64)}, {"w.weight_scale", Floats({3, 1}, scales)}},
                               DType::kF8E4M3, {3, 64});
    ExpectSame(
        values,
        [&](int64_t n, int64_t k) { return scales[static_cast<size_t>(n)] * FloatValue(FloatCode(n * 64 + k)); }, 3,
        64);
  }
}

// The last row of blocks is cut.
TEST_F(PublishedWeights, FloatsWithAScaleForEveryBlock) {
  const std::vector<float> scales = {0.5f, 0.1f, 3e-5f, 7.0f};
  const auto values =
      Values(kFp8Blocks, {{"w.weight", FloatMatrix(5, 128)}, {"w.weight_scale_inv", Floats({2, 2}, scales)}},
             DType::kF8E4M3, {5, 128});
  ExpectSame(
      values,
      [&](int64_t n, int64_t k) {
        return scales[static_cast<size_t>(n / 3 * 2 + k / 64)] * FloatValue(FloatCode(n * 128 + k));
      },
      5, 128);
}

TEST_F(PublishedWeights, WrongFloats) {
  const Written matrix = FloatMatrix(4, 128);
  EXPECT_THAT(Error(kFp8, {{"w.weight", matrix}}), HasSubstr("tensor \"w.weight_scale\" is missing"));
  EXPECT_THAT(Error(kFp8, {{"w.weight", matrix}, {"w.weight_scale", Floats({3}, {1, 1, 1})}}),
              HasSubstr("tensor \"w.weight_scale\" is F32 [3], expected one scale or [4, 1]"));
  EXPECT_THAT(Error(kFp8, {{"w.weight", matrix}, {"w.weight_scale_inv", Floats({1}, {1})}}),
              HasSubstr("has no \"weight_block_size\""));
  EXPECT_THAT(Error(kFp8Blocks, {{"w.weight", matrix}, {"w.weight_scale_inv", Floats({1, 2}, {1, 1})}}),
              HasSubstr("tensor \"w.weight_scale_inv\" is F32 [1, 2], expected [2, 2], one for each 3 x 64 of "
                        "\"w.weight\" [4, 128]"));
  EXPECT_THAT(Error(kFp8, {{"w.weight", FloatMatrix(4, 96)}, {"w.weight_scale", Floats({}, {1})}}),
              HasSubstr("tensor \"w.weight\" is F8_E4M3 [4, 96], expected rows of a multiple of 64"));
  EXPECT_THAT(Error(kFp8, {{"w.weight", matrix}, {"w.weight_scale", Floats({}, {INFINITY})}}),
              HasSubstr("tensor \"w.weight_scale\" holds inf"));
  EXPECT_THAT(Error(kFp8, {{"w.weight", matrix}, {"w.weight_scale", Words({}, {1})}}), HasSubstr("expected F32, F16"));
  Written other = matrix;
  other.dtype = "F8_E5M2";
  EXPECT_THAT(Error(kFp8, {{"w.weight", other}, {"w.weight_scale", Floats({}, {1})}}),
              HasSubstr("tensor \"w.weight\" is F8_E5M2 [4, 128], expected a matrix of F8_E4M3"));
  Written none = matrix;
  none.bytes[5] = '\x7F';
  EXPECT_THAT(Error(kFp8, {{"w.weight", none}, {"w.weight_scale", Floats({}, {1})}}),
              HasSubstr("tensor \"w.weight\" holds a NaN"));
}

// ---- 4-bit integers -------------------------------------------------------------------------------------------------

constexpr int64_t kRows = 16, kColumns = 128, kGroup = 64, kGroups = kColumns / kGroup;

// A matrix of codes, scales and zero points that all methods pack in their own way.
struct Grouped {
  explicit Grouped(uint64_t seed) {
    Rng rng(seed);
    for (auto& row : codes) {
      for (uint32_t& code : row) code = static_cast<uint32_t>(rng.Below(16));
    }
    for (int64_t n = 0; n < kRows; ++n) {
      for (int64_t g = 0; g < kGroups; ++g) {
        zeros[n][g] = static_cast<uint32_t>(rng.Below(16));
        scales[n][g] = F16ToF32(F32ToF16(0.001f * static_cast<float>(rng.Below(100) + 1)));
      }
    }
  }
  float Value(int64_t n, int64_t k) const { return Value(n, k, k / kGroup); }
  float Value(int64_t n, int64_t k, int64_t group) const {
    return scales[n][group] * static_cast<float>(static_cast<int>(codes[n][k]) - static_cast<int>(zeros[n][group]));
  }

  uint32_t codes[kRows][kColumns];
  uint32_t zeros[kRows][kGroups];
  float scales[kRows][kGroups];
};

// Eight of `code(i)`, the first in the lowest bits.
uint32_t Word(const std::function<uint32_t(int64_t)>& code) {
  uint32_t word = 0;
  for (int64_t i = 0; i < 8; ++i) word |= code(i) << (4 * i);
  return word;
}

Written TurnedScales(const Grouped& grouped) {
  std::vector<float> scales;
  for (int64_t g = 0; g < kGroups; ++g) {
    for (int64_t n = 0; n < kRows; ++n) scales.push_back(grouped.scales[n][g]);
  }
  return Halves({kGroups, kRows}, scales);
}

Tensors InAwq(const Grouped& grouped) {
  constexpr int64_t kOrder[] = {0, 2, 4, 6, 1, 3, 5, 7};
  std::vector<uint32_t> codes, zeros;
  for (int64_t k = 0; k < kColumns; ++k) {
    for (int64_t n = 0; n < kRows; n += 8)
      codes.push_back(Word([&](int64_t i) { return grouped.codes[n + kOrder[i]][k]; }));
  }
  for (int64_t g = 0; g < kGroups; ++g) {
    for (int64_t n = 0; n < kRows; n += 8)
      zeros.push_back(Word([&](int64_t i) { return grouped.zeros[n + kOrder[i]][g]; }));
  }
  return {{"w.qweight", Words({kColumns, kRows / 8}, codes)},
          {"w.qzeros", Words({kGroups, kRows / 8}, zeros)},
          {"w.scales", TurnedScales(grouped)}};
}

Tensors InGptq(const Grouped& grouped, uint32_t less = 1) {
  std::vector<uint32_t> codes, zeros;
  for (int64_t k = 0; k < kColumns; k += 8) {
    for (int64_t n = 0; n < kRows; ++n) codes.push_back(Word([&](int64_t i) { return grouped.codes[n][k + i]; }));
  }
  for (int64_t g = 0; g < kGroups; ++g) {
    for (int64_t n = 0; n < kRows; n += 8) {
      zeros.push_back(Word([&](int64_t i) { return (grouped.zeros[n + i][g] - less) & 15; }));
    }
  }
  return {{"w.qweight", Words({kColumns / 8, kRows}, codes)},
          {"w.qzeros", Words({kGroups, kRows / 8}, zeros)},
          {"w.scales", TurnedScales(grouped)}};
}

Tensors InPacked(const Grouped& grouped) {
  std::vector<uint32_t> codes, zeros;
  std::vector<float> scales;
  for (int64_t n = 0; n < kRows; ++n) {
    for (int64_t k = 0; k < kColumns; k += 8) codes.push_back(Word([&](int64_t i) { return grouped.codes[n][k + i]; }));
    scales.insert(scales.end(), std::begin(grouped.scales[n]), std::end(grouped.scales[n]));
  }
  for (int64_t n = 0; n < kRows; n += 8) {
    for (int64_t g = 0; g < kGroups; ++g) zeros.push_back(Word([&](int64_t i) { return grouped.zeros[n + i][g]; }));
  }
  return {{"w.weight_packed", Words({kRows, kColumns / 8}, codes)},
          {"w.weight_scale", Halves({kRows, kGroups}, scales)},
          {"w.weight_zero_point", Words({kRows / 8, kGroups}, zeros)},
          {"w.weight_shape", Words({2}, {kRows, kColumns})}};
}

constexpr const char* kAwq = R"({"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm"})";
constexpr const char* kGptq = R"({"quant_method": "gptq", "bits": 4, "group_size": 64})";
constexpr const char* kGptqV2 =
    R"({"quant_method": "gptq", "bits": 4, "group_size": 64, "checkpoint_format": "gptq_v2"})";
constexpr const char* kPacked =
    R"({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups":
        {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 64}}}})";

struct Packing {
  const char* method;
  std::function<Tensors(const Grouped&)> pack;
};
const Packing kPackings[] = {{kAwq, InAwq},
                             {kGptq, [](const Grouped& grouped) { return InGptq(grouped); }},
                             {kGptqV2, [](const Grouped& grouped) { return InGptq(grouped, 0); }},
                             {kPacked, InPacked}};

TEST_F(PublishedWeights, FourBitsWithZeroPoints) {
  const Grouped grouped(1);
  for (const auto& [method, pack] : kPackings) {
    SCOPED_TRACE(method);
    const auto values = Values(method, pack(grouped), DType::kU4, {kRows, kColumns});
    ExpectSame(
        values, [&](int64_t n, int64_t k) { return grouped.Value(n, k); }, kRows, kColumns);
  }
}

// What every file has that was made without zero points: a GGUF format has it as it is.
TEST_F(PublishedWeights, FourBitsAroundTheMiddle) {
  Grouped grouped(2);
  for (auto& row : grouped.zeros) std::fill(std::begin(row), std::end(row), 8);
  for (const auto& [method, pack] : kPackings) {
    SCOPED_TRACE(method);
    const auto values = Values(method, pack(grouped), DType::kQ4_0, {kRows, kColumns});
    ExpectSame(
        values, [&](int64_t n, int64_t k) { return grouped.Value(n, k); }, kRows, kColumns);
  }
  Tensors tensors = InPacked(grouped);
  tensors.erase("w.weight_zero_point");
  const auto values = Values(kPacked, tensors, DType::kQ4_0, {kRows, kColumns});
  ExpectSame(
      values, [&](int64_t n, int64_t k) { return grouped.Value(n, k); }, kRows, kColumns);
}

// Columns in an order of their own: the nearest f16.
TEST_F(PublishedWeights, ColumnsOfAGroupThatAreApart) {
  const Grouped grouped(3);
  const auto group_of = [](int64_t k) { return k * 7 % kGroups; };
  std::vector<uint32_t> groups;
  for (int64_t k = 0; k < kColumns; ++k) groups.push_back(static_cast<uint32_t>(group_of(k)));
  Tensors tensors = InGptq(grouped);
  tensors["w.g_idx"] = Words({kColumns}, groups);
  const auto values = Values(kGptq, tensors, DType::kF16, {kRows, kColumns});
  ExpectSame(
      values, [&](int64_t n, int64_t k) { return F16ToF32(F32ToF16(grouped.Value(n, k, group_of(k)))); }, kRows,
      kColumns);
  for (int64_t k = 0; k < kColumns; ++k) groups[static_cast<size_t>(k)] = static_cast<uint32_t>(k / kGroup);
  tensors["w.g_idx"] = Words({kColumns}, groups);
  Values(kGptq, tensors, DType::kU4, {kRows, kColumns});
  groups[9] = kGroups;
  tensors["w.g_idx"] = Words({kColumns}, groups);
  EXPECT_THAT(Error(kGptq, tensors), HasSubstr("tensor \"w.g_idx\" has 2 at place 9, expected groups below 2"));
}

TEST_F(PublishedWeights, ScalesThatF16DoesNotHold) {
  Grouped grouped(4);
  Tensors tensors = InPacked(grouped);
  std::vector<float> scales;
  for (auto& row : grouped.scales) {
    for (float& scale : row) scales.push_back(scale *= 1.0f + 0x1p-15f);
  }
  tensors["w.weight_scale"] = Floats({kRows, kGroups}, scales);
  const auto values = Values(kPacked, tensors, DType::kF32, {kRows, kColumns});
  ExpectSame(
      values, [&](int64_t n, int64_t k) { return grouped.Value(n, k); }, kRows, kColumns);
}

TEST_F(PublishedWeights, OneGroupForWholeRows) {
  Grouped grouped(5);
  for (int64_t n = 0; n < kRows; ++n) {
    grouped.scales[n][1] = grouped.scales[n][0];
    grouped.zeros[n][1] = grouped.zeros[n][0];
  }
  Tensors tensors = InAwq(grouped);
  for (const char* name : {"w.qzeros", "w.scales"}) {
    Written& tensor = tensors[name];
    tensor.shape[0] = 1;
    tensor.bytes.resize(tensor.bytes.size() / 2);
  }
  const auto values =
      Values(R"({"quant_method": "awq", "bits": 4, "group_size": -1})", tensors, DType::kU4, {kRows, kColumns});
  ExpectSame(
      values, [&](int64_t n, int64_t k) { return grouped.Value(n, k); }, kRows, kColumns);
}

TEST_F(PublishedWeights, WrongIntegers) {
  const Grouped grouped(6);
  const auto without = [&](const char* name) {
    Tensors tensors = InGptq(grouped);
    tensors.erase(name);
    return Error(kGptq, tensors);
  };
  EXPECT_THAT(without("w.qzeros"), HasSubstr("tensor \"w.qzeros\" is missing"));
  EXPECT_THAT(without("w.scales"), HasSubstr("tensor \"w.scales\" is missing"));
  EXPECT_THAT(
      Error(R"({"quant_method": "gptq", "bits": 4, "group_size": 32})", InGptq(grouped)),
      HasSubstr("tensor \"w.scales\" is F16 [2, 16], expected one for each 32 of rows of 128 (\"group_size\")"));
  EXPECT_THAT(Error(R"({"quant_method": "awq", "bits": 4, "group_size": -1})", InAwq(grouped)),
              HasSubstr("tensor \"w.scales\" is F16 [2, 16]"));
  Tensors tensors = InAwq(grouped);
  tensors["w.qzeros"].shape = {kGroups * 2, kRows / 16};
  EXPECT_THAT(Error(kAwq, tensors), HasSubstr("tensor \"w.qzeros\" is I32 [4, 1], expected [2, 2]"));
  tensors = InAwq(grouped);
  tensors["w.scales"].shape = {kGroups * 2, kRows / 2};
  EXPECT_THAT(Error(kAwq, tensors), HasSubstr("tensor \"w.scales\" is F16 [4, 8], expected [groups, 16]"));
  tensors = InPacked(grouped);
  tensors["w.weight_g_idx"] = Words({1}, {0});
  EXPECT_THAT(Error(kPacked, tensors), HasSubstr("\"w.weight_g_idx\""));
}

// ---- MXFP4 ----------------------------------------------------------------------------------------------------------

constexpr const char* kMxfp4 = R"({"quant_method": "mxfp4"})";

Tensors InMxfp4(int64_t num, int64_t rows, int64_t blocks) {
  Rng rng(7);
  std::string codes, scales;
  for (int64_t i = 0; i < num * rows * blocks * 16; ++i) codes += static_cast<char>(rng.Below(256));
  for (int64_t i = 0; i < num * rows * blocks; ++i) scales += static_cast<char>(100 + rng.Below(50));
  return {{"w_blocks", {"U8", {num, rows, blocks, 16}, codes}}, {"w_scales", {"U8", {num, rows, blocks}, scales}}};
}

TEST_F(PublishedWeights, FourBitFloats) {
  const Tensors tensors = InMxfp4(3, 5, 2);
  const auto values = Values(kMxfp4, tensors, DType::kMXFP4, {3, 5, 64}, "w");
  constexpr float kLevels[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  ExpectSame(
      values,
      [&](int64_t n, int64_t k) {
        const auto byte = static_cast<uint8_t>(tensors.at("w_blocks").bytes[static_cast<size_t>((n * 64 + k) / 2)]);
        const int code = (byte >> (4 * (k % 2))) & 15;
        const auto scale = static_cast<uint8_t>(tensors.at("w_scales").bytes[static_cast<size_t>(n * 2 + k / 32)]);
        const float magnitude = std::ldexp(kLevels[code & 7], scale - 127);
        return code < 8 ? magnitude : -magnitude;
      },
      15, 64);
}

TEST_F(PublishedWeights, WrongFourBitFloats) {
  Tensors tensors = InMxfp4(3, 5, 2);
  tensors["w_blocks"].shape = {3, 5, 4, 8};
  EXPECT_THAT(Error(kMxfp4, tensors, "w"), HasSubstr("tensor \"w_blocks\" is U8 [3, 5, 4, 8], expected U8 [..., rows, "
                                                     "blocks, 16]: 32 elements, two to a byte"));
  tensors = InMxfp4(3, 5, 2);
  tensors["w_scales"].shape = {3, 10};
  EXPECT_THAT(Error(kMxfp4, tensors, "w"), HasSubstr("tensor \"w_scales\" is U8 [3, 10], expected U8 [3, 5, 2]"));
  tensors = InMxfp4(3, 5, 2);
  tensors["w_scales"].bytes[4] = '\xFF';
  EXPECT_THAT(Error(kMxfp4, tensors, "w"), HasSubstr("tensor \"w_scales\" holds a NaN (255) at place 4"));
  tensors.erase("w_scales");
  EXPECT_THAT(Error(kMxfp4, tensors, "w"), HasSubstr("tensor \"w_scales\" is missing"));
}

// ---- the source -----------------------------------------------------------------------------------------------------

TEST_F(PublishedWeights, ShowsMatricesAndHidesWhatTheyAreMadeOf) {
  Tensors tensors = InAwq(Grouped(8));
  tensors["norm.weight"] = Floats({2}, {1, 2});
  tensors["other.scales"] = Floats({1}, {1});  // belongs to nothing
  const auto source = Open(kAwq, tensors);
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_THAT((*source)->Names(), ElementsAre("norm.weight", "other.scales", "w.weight"));
  EXPECT_FALSE((*source)->Has("w.qweight"));
  EXPECT_TRUE((*source)->Get("norm.weight").ok());
}

// Memory goes with the last part, and comes again.
TEST_F(PublishedWeights, MatricesAreMadeAgain) {
  const Grouped grouped(9);
  const auto source = Open(kAwq, InAwq(grouped));
  ASSERT_TRUE(source.ok()) << source.status().message();
  const ConstTensorView first = (*source)->Get("w.weight").value();
  EXPECT_EQ((*source)->Get("w.weight")->data, first.data);
  const std::string hash = SourceHash(**source);
  (*source)->Release(first.Rows(0, 4));
  (*source)->Release(first.Rows(0, 4));
  EXPECT_EQ((*source)->Get("w.weight")->data, first.data);
  (*source)->Release(first.Rows(4, kRows - 4));
  const ConstTensorView second = (*source)->Get("w.weight").value();
  std::vector<float> values(kRows * kColumns);
  ToF32(second.dtype, second.data, kRows * kColumns, values.data());
  ExpectSame(
      values, [&](int64_t n, int64_t k) { return grouped.Value(n, k); }, kRows, kColumns);
  EXPECT_EQ(SourceHash(**source), hash);
}

TEST_F(PublishedWeights, WrongConfigs) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"quant_method": "quip"})",
       "\"quantization_config.quant_method\" is \"quip\", expected one of: awq, bitsandbytes"},
      {R"({})", "\"quant_method\""},
      {R"({"quant_method": "gptq", "bits": 8, "group_size": 64})", "\"bits\" is 8, expected 4"},
      {R"({"quant_method": "gptq", "bits": 4, "group_size": 16})",
       "\"group_size\" is 16, expected -1 or a multiple of 32"},
      {R"({"quant_method": "gptq", "bits": 4})", "\"group_size\""},
      {R"({"quant_method": "gptq", "bits": 4, "group_size": 64, "checkpoint_format": "marlin"})", "\"marlin\""},
      {R"({"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemv"})", "\"version\" is \"gemv\""},
      {R"({"quant_method": "fp8", "fmt": "e5m2"})", "\"fmt\" is \"e5m2\""},
      {R"({"quant_method": "fp8", "weight_block_size": [128, 96]})",
       "\"weight_block_size\" is [128,96], expected [rows, a multiple of 64]"},
      {R"({"quant_method": "fp8", "weight_block_size": [128]})", "\"weight_block_size\" is [128]"},
      {R"({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"})", "\"nvfp4-pack-quantized\""},
      {R"({"quant_method": "compressed-tensors", "format": "pack-quantized",
           "config_groups": {"a": {"weights": {"num_bits": 8, "type": "int"}}}})",
       "\"num_bits\" is 8, expected 4"},
  };
  for (const auto& [method, expected] : cases) {
    EXPECT_THAT(Error(method, InAwq(Grouped(10))), HasSubstr(expected)) << method;
  }
}

}  // namespace
}  // namespace headwise
