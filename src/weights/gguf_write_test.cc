// What is written as a GGUF file: byte by byte, read back, and refused.
#include "weights/gguf.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <limits>

#include "base/file.h"
#include "support/full_disk.h"
#include "support/gguf_bytes.h"
#include "support/gguf_folder.h"

namespace headwise {
namespace {

namespace fs = std::filesystem;
using namespace gguf_bytes;  // NOLINT: the words that files here are made of
using std::literals::operator""s;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A tensor to write, of bytes 0, 1, 2, ...
GgufTensor Counting(std::string name, DType dtype, Shape shape) {
  return {std::move(name), dtype, shape, [](std::span<std::byte> bytes) {
            for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i);
            return Status::Ok();
          }};
}

class GgufWrite : public GgufFolder {
 protected:
  std::ptrdiff_t NumFiles() const { return std::distance(fs::directory_iterator(folder_), fs::directory_iterator()); }
  std::string WriteError(const GgufMetadata& metadata, std::span<const GgufTensor> tensors = {}) const {
    const Status status = WriteGguf(Path(), metadata, tensors);
    return status.ok() ? "(no error)" : status.message();
  }
  std::string WriteError(std::string key, GgufValue value) const {
    GgufMetadata metadata;
    metadata.Set(std::move(key), std::move(value));
    return WriteError(metadata);
  }
};

using Integers = std::vector<int64_t>;
using Doubles = std::vector<double>;
using Strings = std::vector<std::string>;

TEST_F(GgufWrite, EveryTypeOfValueIsReadBackAsWritten) {
  using Int = std::numeric_limits<int64_t>;
  GgufMetadata metadata;
  const std::pair<GgufType, std::pair<int64_t, int64_t>> ranges[] = {
      {GgufType::kU8, {0, 255}},         {GgufType::kI8, {-128, 127}},
      {GgufType::kU16, {0, 65535}},      {GgufType::kI16, {-32768, 32767}},
      {GgufType::kU32, {0, 4294967295}}, {GgufType::kI32, {-2147483648, 2147483647}},
      {GgufType::kU64, {0, Int::max()}}, {GgufType::kI64, {Int::min(), Int::max()}}};
  for (const auto& [type, range] : ranges) {
    const auto number = static_cast<uint32_t>(type);
    metadata.Set(fmt::format("least.{}", number), {type, range.first});
    metadata.Set(fmt::format("most.{}", number), {type, range.second});
    metadata.Set(fmt::format("both.{}", number), {type, Integers{range.first, range.second}});
  }
  metadata.SetBool("true", true);
  metadata.SetBool("false", false);
  metadata.Set("bools", {GgufType::kBool, Integers{0, 1}});
  metadata.SetF32("f32", 0.1f);
  metadata.Set("f64", {GgufType::kF64, 0.1});
  metadata.Set("infinite", {GgufType::kF32, std::numeric_limits<double>::infinity()});
  metadata.Set("f32s", {GgufType::kF32, Doubles{1e-30f, -3}});
  metadata.Set("f64s", {GgufType::kF64, Doubles{1e300}});
  metadata.SetString("string", "naïve\n\0"s);
  metadata.Set("strings", {GgufType::kString, Strings{"", "\xFF", std::string(1000, 'x')}});
  metadata.Set("no.strings", {GgufType::kString, Strings{}});
  metadata.Set("no.floats", {GgufType::kF32, Doubles{}});
  ASSERT_EQ(WriteError(metadata), "(no error)");
  const auto file = OpenGgufFile(Path());
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ((*file)->metadata().values().size(), metadata.values().size());
  for (const auto& [key, value] : metadata.values()) {
    ASSERT_TRUE((*file)->metadata().Has(key)) << key;
    EXPECT_EQ((*file)->metadata().values().at(key).type, value.type) << key;
    EXPECT_TRUE((*file)->metadata().values().at(key).value == value.value) << key;
  }
}

// Byte by byte what the format says.
TEST_F(GgufWrite, TheWriterKeepsToTheFormat) {
  GgufMetadata metadata;
  metadata.SetU32("a.count", 7);
  metadata.SetString("general.architecture", "llama");
  metadata.Set("general.alignment", {GgufType::kU64, int64_t{4096}});
  metadata.Set("z", {GgufType::kI32, Integers{-1, 2}});
  const GgufTensor tensors[] = {Counting("m", DType::kQ8_0, {2, 32}), Counting("v", DType::kF32, {3})};
  std::vector<std::string> told;
  ASSERT_TRUE(WriteGguf(Path(), metadata, tensors, [&](const GgufTensor& t) { told.push_back(t.name); }).ok());
  EXPECT_THAT(told, ElementsAre("m", "v"));
  std::string expected =
      FileOf({.keys = {Key("general.architecture", kString, Text("llama")), Key("a.count", kU32, Number<uint32_t>(7)),
                       Key("general.alignment", kU32, Number<uint32_t>(32)),
                       Array("z", kI32, 2, Number<int32_t>(-1) + Number<int32_t>(2))},
              .tensors = {Tensor("m", {32, 2}, kTensorQ8_0, 0), Tensor("v", {3}, kTensorF32, 96)},
              .data_bytes = 2 * 34});
  expected += std::string(96 - 2 * 34, '\0');
  for (int i = 0; i < 3 * 4; ++i) expected += static_cast<char>(i);
  expected += std::string(32 - 3 * 4, '\0');
  EXPECT_EQ(ReadFile(Path()).value(), expected);
}

TEST_F(GgufWrite, EveryDTypeIsReadBackAsWritten) {
  std::vector<GgufTensor> tensors;
  for (auto dtype = DType::kF32; dtype <= DType::kTQ2_0; dtype = static_cast<DType>(static_cast<int>(dtype) + 1)) {
    tensors.push_back(Counting(std::string(NameOf(dtype)), dtype, {3, 256}));
    tensors.push_back(Counting(fmt::format("{}.vector", NameOf(dtype)), dtype, {256}));
  }
  tensors.push_back(Counting("deep", DType::kF16, {2, 1, 5, 1}));
  tensors.push_back(Counting(std::string(63, 'n'), DType::kI32, {1, 2, 3}));
  ASSERT_EQ(WriteError(GgufMetadata(), tensors), "(no error)");
  const auto file = OpenGgufFile(Path());
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ((*file)->origin(), Path());
  const std::vector<std::string> names = (*file)->Names();
  EXPECT_EQ(names.size(), tensors.size());
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  for (const GgufTensor& tensor : tensors) {
    ASSERT_TRUE((*file)->Has(tensor.name));
    const auto view = (*file)->Get(tensor.name);
    ASSERT_TRUE(view.ok()) << view.status().message();
    EXPECT_EQ(view->dtype, tensor.dtype) << tensor.name;
    EXPECT_EQ(view->shape, tensor.shape) << tensor.name;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(view->data) % 32, 0u) << tensor.name;
    std::vector<std::byte> bytes(static_cast<size_t>(view->size_bytes()));
    ASSERT_TRUE(tensor.fill(bytes).ok());
    EXPECT_EQ(std::memcmp(view->data, bytes.data(), bytes.size()), 0) << tensor.name;
  }
  EXPECT_EQ(fs::file_size(Path()) % 32, 0u);
}

TEST_F(GgufWrite, GetChecksTheShapeAndLetsMatricesAloneHaveBlocks) {
  const GgufTensor tensors[] = {Counting("m", DType::kQ4_K, {2, 256}), Counting("v", DType::kQ8_0, {32}),
                                Counting("cube", DType::kQ8_0, {1, 1, 32}), Counting("ids", DType::kI32, {1, 2}),
                                Counting("norm", DType::kF32, {8})};
  ASSERT_EQ(WriteError(GgufMetadata(), tensors), "(no error)");
  const auto file = OpenGgufFile(Path());
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE((*file)->Get("m", {2, 256}).ok());
  EXPECT_TRUE((*file)->Get("norm", {8}).ok());
  const auto error = [&](const char* name, const Shape& shape) { return (*file)->Get(name, shape).status().message(); };
  EXPECT_THAT(error("m", {256, 2}), AllOf(HasSubstr("x.gguf"), HasSubstr("\"m\" is q4_k [2, 256]"),
                                          HasSubstr("expected [256, 2]"), HasSubstr("block format")));
  EXPECT_THAT(error("v", {32}), AllOf(HasSubstr("\"v\" is q8_0"), HasSubstr("expected [32] of f32, f16 or bf16")));
  EXPECT_TRUE((*file)->Get("cube", {1, 1, 32}).ok());  // as the matrices of experts are
  EXPECT_THAT(error("ids", {1, 2}), HasSubstr("\"ids\" is i32"));
  EXPECT_EQ((*file)->Get("none", {1}).status().code(), StatusCode::kNotFound);
  EXPECT_THAT(error("none", {1}), AllOf(HasSubstr("x.gguf"), HasSubstr("\"none\" is missing")));
  EXPECT_FALSE((*file)->Has("none"));
}

TEST_F(GgufWrite, TheWriterRefusesValuesThatDoNotFitTheirType) {
  const std::pair<GgufValue, const char*> cases[] = {
      {{GgufType::kU8, int64_t{256}}, "256 does not fit the type u8"},
      {{GgufType::kU8, int64_t{-1}}, "-1 does not fit the type u8"},
      {{GgufType::kI8, int64_t{128}}, "128 does not fit the type i8"},
      {{GgufType::kI8, int64_t{-129}}, "-129 does not fit the type i8"},
      {{GgufType::kU16, int64_t{65536}}, "65536 does not fit the type u16"},
      {{GgufType::kI16, int64_t{-32769}}, "-32769 does not fit the type i16"},
      {{GgufType::kU32, int64_t{4294967296}}, "4294967296 does not fit the type u32"},
      {{GgufType::kI32, int64_t{2147483648}}, "2147483648 does not fit the type i32"},
      {{GgufType::kU64, int64_t{-1}}, "-1 does not fit the type u64"},
      {{GgufType::kF32, 1e39}, "the float 1e+39 does not fit the type f32"},
      {{GgufType::kU32, 1.0}, "the float 1 does not fit the type u32"},
      {{GgufType::kF32, int64_t{1}}, "1 does not fit the type f32"},
      {{GgufType::kU8, true}, "true does not fit the type u8"},
      {{GgufType::kBool, int64_t{1}}, "a whole number does not fit the type bool"},
      {{GgufType::kString, int64_t{1}}, "1 does not fit the type string"},
      {{GgufType::kU32, "5"s}, "\"5\" does not fit the type u32"},
      {{GgufType::kArray, int64_t{0}}, "0 does not fit the type array"},
      {{GgufType::kBool, Integers{0, 2}}, "2 does not fit the type bool"},
      {{GgufType::kU16, Integers{1, 70000}}, "70000 does not fit the type u16"},
      {{GgufType::kF32, Doubles{1, -1e39}}, "the float -1e+39 does not fit the type f32"},
      {{GgufType::kArray, Strings{"a"}}, "\"a\" does not fit the type array"},
  };
  for (const auto& [value, expected] : cases) {
    EXPECT_THAT(WriteError("k", value), AllOf(HasSubstr("x.gguf: \"k\": "), HasSubstr(expected)));
  }
  EXPECT_THAT(WriteError(std::string(65536, 'k'), {GgufType::kU8, int64_t{1}}), HasSubstr("the key has 65536 bytes"));
  EXPECT_EQ(NumFiles(), 0);
}

TEST_F(GgufWrite, TheWriterRefusesTensorsThatCannotBeReadBack) {
  constexpr int64_t kMany = int64_t{1} << 32;
  const std::pair<GgufTensor, const char*> cases[] = {
      {Counting("t", DType::kF32, {}), "has no dimensions"},
      {Counting("t", DType::kF32, {2, 0}), "shape is [2, 0]"},
      {Counting("t", DType::kF32, {-1}), "shape is [-1]"},
      {Counting("t", DType::kF32, {kMany, kMany}), "too many elements"},
      {Counting("t", DType::kQ4_0, {32, 31}), "rows have 31 elements"},
      {Counting("t" + std::string(63, 't'), DType::kF32, {1}), "the name has 64 bytes, expected at most 63"},
  };
  for (const auto& [tensor, expected] : cases) {
    EXPECT_THAT(WriteError(GgufMetadata(), {&tensor, 1}), AllOf(HasSubstr("x.gguf: tensor \"t"), HasSubstr(expected)));
  }
  const GgufTensor twice[] = {Counting("t", DType::kF32, {1}), Counting("t", DType::kF32, {1})};
  EXPECT_THAT(WriteError(GgufMetadata(), twice), HasSubstr("tensor \"t\" is given twice"));
  EXPECT_EQ(NumFiles(), 0);
}

TEST_F(GgufWrite, AWriteThatFailsHalfWayLeavesTheOldFile) {
  Write("old");
  GgufTensor failing = Counting("second", DType::kF32, {100});
  failing.fill = [](std::span<std::byte>) { return Status::NotFound("no such weight"); };
  const GgufTensor stopped[] = {Counting("first", DType::kF32, {100}), failing};
  const Status status = WriteGguf(Path(), GgufMetadata(), stopped);
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("x.gguf: tensor \"second\": no such weight"));

  const GgufTensor large[] = {Counting("first", DType::kF32, {100}), Counting("second", DType::kF32, {1000})};
  Status full_status;
  {
    const FullDisk full(2000);
    full_status = WriteGguf(Path(), GgufMetadata(), large);
  }
  EXPECT_EQ(full_status.code(), StatusCode::kIo);
  EXPECT_THAT(full_status.message(), AllOf(HasSubstr("x.gguf"), HasSubstr("cannot write")));

  EXPECT_EQ(ReadFile(Path()).value(), "old");
  EXPECT_EQ(NumFiles(), 1);
}

}  // namespace
}  // namespace headwise
