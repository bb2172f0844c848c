// GGUF files as they should be, and every way in which they can be wrong.
#include "weights/gguf.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <tuple>

#include "base/file.h"
#include "support/gguf_bytes.h"
#include "support/gguf_folder.h"

namespace headwise {
namespace {

namespace fs = std::filesystem;
using namespace gguf_bytes;  // NOLINT: the words that files here are made of
using std::literals::operator""sv;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr uint64_t kHuge = uint64_t{1} << 60;

std::string FileOfKey(const std::string& key) {
  return FileOf({.keys = {key}});
}
// One tensor and 64 bytes of data.
std::string FileOfTensor(const std::string& tensor) {
  return FileOf({.tensors = {tensor}, .data_bytes = 64});
}

auto Parse(const std::string& file) {
  return ParseGguf(std::as_bytes(std::span(file)), "f");
}
std::string ParseError(const std::string& file) {
  const auto result = Parse(file);
  return result.ok() ? "(no error)" : result.status().message();
}

using Gguf = GgufFolder;

using Integers = std::vector<int64_t>;
using Doubles = std::vector<double>;
using Strings = std::vector<std::string>;

TEST_F(Gguf, EveryTypeOfValueIsReadFromItsBytes) {
  const std::string file = FileOf({.keys = {
                                       Key("u8", 0, Number<uint8_t>(255)),
                                       Key("i8", 1, Number<int8_t>(-128)),
                                       Key("u16", 2, Number<uint16_t>(65535)),
                                       Key("i16", 3, Number<int16_t>(-32768)),
                                       Key("u32", 4, Number<uint32_t>(4294967295)),
                                       Key("i32", 5, Number<int32_t>(-2147483647)),
                                       Key("f32", 6, Number(1.5f)),
                                       Key("bool", 7, Number<uint8_t>(1)),
                                       Key("string", 8, Text("h\0\xFF"sv)),
                                       Key("u64", 10, Number<uint64_t>(9223372036854775807)),
                                       Key("i64", 11, Number<int64_t>(-5)),
                                       Key("f64", 12, Number(0.1)),
                                       Array("bools", 7, 3, std::string("\1\0\1", 3)),
                                       Array("i16s", 3, 2, Number<int16_t>(-1) + Number<int16_t>(2)),
                                       Array("f32s", 6, 2, Number(0.5f) + Number(-0.25f)),
                                       Array("strings", 8, 2, Text("a") + Text("")),
                                       Array("none", 5, 0, ""),
                                   }});
  const auto contents = Parse(file);
  ASSERT_TRUE(contents.ok()) << contents.status().message();
  const GgufMetadata& metadata = contents->metadata;
  EXPECT_EQ(metadata.values().size(), 17u);
  const std::pair<const char*, int64_t> integers[] = {
      {"u8", 255},         {"i8", -128},         {"u16", 65535}, {"i16", -32768},
      {"u32", 4294967295}, {"i32", -2147483647}, {"i64", -5},    {"u64", std::numeric_limits<int64_t>::max()}};
  for (const auto& [key, value] : integers) EXPECT_EQ(metadata.Int(key).value(), value) << key;
  EXPECT_EQ(metadata.Double("f32").value(), 1.5);
  EXPECT_EQ(metadata.Double("f64").value(), 0.1);
  EXPECT_TRUE(metadata.BoolOr("bool", false).value());
  EXPECT_EQ(metadata.String("string").value(), "h\0\xFF"sv);
  EXPECT_THAT(metadata.Ints("bools").value(), ElementsAre(1, 0, 1));
  EXPECT_THAT(metadata.Ints("i16s").value(), ElementsAre(-1, 2));
  EXPECT_THAT(metadata.Doubles("f32s").value(), ElementsAre(0.5, -0.25));
  EXPECT_THAT(metadata.Strings("strings").value(), ElementsAre("a", ""));
  EXPECT_THAT(metadata.Ints("none").value(), SizeIs(0));
  EXPECT_EQ(metadata.values().at("i16s").type, GgufType::kI16);
  EXPECT_EQ(metadata.values().at("u8").type, GgufType::kU8);
}

TEST_F(Gguf, GettersNameTheKeyWhatWasFoundAndWhatWasExpected) {
  GgufMetadata metadata("m.gguf");
  metadata.SetU32("count", 5);
  metadata.SetF32("eps", 0.5);
  metadata.SetBool("flag", true);
  metadata.SetString("name", std::string(300, 'x'));
  metadata.SetF32("nan", NAN);
  metadata.Set("ints", {GgufType::kI16, Integers{1}});
  metadata.Set("floats", {GgufType::kF32, Doubles{1, 2, INFINITY}});
  metadata.Set("strings", {GgufType::kString, Strings{"a", "b"}});

  EXPECT_EQ(metadata.Double("count").value(), 5.0);
  EXPECT_EQ(metadata.IntOr("count", 1).value(), 5);
  EXPECT_EQ(metadata.IntOr("none", 1).value(), 1);
  EXPECT_EQ(metadata.DoubleOr("eps", 1).value(), 0.5);
  EXPECT_EQ(metadata.DoubleOr("none", 1.5).value(), 1.5);
  EXPECT_TRUE(metadata.BoolOr("flag", false).value());
  EXPECT_FALSE(metadata.BoolOr("none", false).value());
  EXPECT_EQ(metadata.StringOr("name", "y").value(), std::string(300, 'x'));
  EXPECT_EQ(metadata.StringOr("none", "y").value(), "y");

  const std::pair<Status, const char*> errors[] = {
      {metadata.Int("none").status(), "\"none\" is missing"},
      {metadata.Double("none").status(), "\"none\" is missing"},
      {metadata.String("none").status(), "\"none\" is missing"},
      {metadata.Ints("none").status(), "\"none\" is missing"},
      {metadata.Doubles("none").status(), "\"none\" is missing"},
      {metadata.Strings("none").status(), "\"none\" is missing"},
      {metadata.Int("eps").status(), "\"eps\" is 0.5 (f32), expected a whole number"},
      {metadata.IntOr("flag", 1).status(), "\"flag\" is true (bool), expected a whole number"},
      {metadata.Int("ints").status(), "\"ints\" is an array of 1 (i16), expected a whole number"},
      {metadata.Double("nan").status(), "\"nan\" is nan (f32), expected a finite number"},
      {metadata.DoubleOr("strings", 1).status(), "\"strings\" is an array of 2 (string), expected a finite number"},
      {metadata.Double("flag").status(), "\"flag\" is true (bool), expected a finite number"},
      {metadata.BoolOr("count", true).status(), "\"count\" is 5 (u32), expected true or false"},
      {metadata.String("count").status(), "\"count\" is 5 (u32), expected a string"},
      {metadata.StringOr("strings", "").status(), "\"strings\" is an array of 2 (string), expected a string"},
      {metadata.Int("name").status(), "xxx\"... (string), expected a whole number"},
      {metadata.Ints("count").status(), "\"count\" is 5 (u32), expected an array of whole numbers"},
      {metadata.Ints("floats").status(), "\"floats\" is an array of 3 (f32), expected an array of whole numbers"},
      {metadata.Doubles("ints").status(), "\"ints\" is an array of 1 (i16), expected an array of finite floats"},
      {metadata.Doubles("floats").status(), "\"floats\" has inf at 2, expected an array of finite floats"},
      {metadata.Strings("name").status(), "expected an array of strings"},
  };
  for (const auto& [status, expected] : errors) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidInput) << expected;
    EXPECT_THAT(status.message(), AllOf(::testing::StartsWith("m.gguf: \""), HasSubstr(expected)));
  }
  EXPECT_LT(metadata.Int("name").status().message().size(), 150u);
}

TEST_F(Gguf, HeadersAreChecked) {
  const std::string fine = FileOf({});
  EXPECT_TRUE(Parse(fine).ok()) << ParseError(fine);
  EXPECT_EQ(Parse(FileOf({.version = 2})).value().version, 2u);
  const std::pair<std::string, const char*> cases[] = {
      {"", "needs 4 bytes at byte 0, but only 0 follow"},
      {fine.substr(0, 23), "needs 8 bytes at byte 16, but only 7 follow: is the file cut short?"},
      {"GGML" + fine.substr(4), "starts with \"GGML\", expected \"GGUF\""},
      {std::string("\xFF\0\n\x7F", 4) + fine.substr(4), "expected \"GGUF\""},
      {Header(0, 0, 0), "has version 0, expected 2 or 3"},
      {Header(1, 0, 0), "has version 1, expected 2 or 3"},
      {Header(4, 0, 0), "has version 4, expected 2 or 3"},
      {Header(0x03000000, 0, 0), "is big endian, expected a little-endian file"},
      {Header(0x02000000, 0, 0), "is big endian, expected a little-endian file"},
      {Header(3, kHuge, 0), "says 1152921504606846976 tensors follow"},
      {Header(3, 0, kHuge), "says 1152921504606846976 metadata keys follow"},
      {Header(3, ~uint64_t{0}, ~uint64_t{0}), "tensors follow, the 0 bytes that do hold at most 0"},
      {Header(3, 3, 0) + std::string(64, '\0'), "says 3 tensors follow, the 64 bytes that do hold at most 2"},
      {Header(3, 0, 5) + std::string(64, '\0'), "says 5 metadata keys follow, the 64 bytes that do hold at most 4"},
  };
  for (const auto& [file, expected] : cases)
    EXPECT_THAT(ParseError(file), AllOf(HasSubstr("f: GGUF header: "), HasSubstr(expected)));
}

TEST_F(Gguf, MetadataIsChecked) {
  const std::string one = Number<uint32_t>(1);
  const std::string padding(64, '\0');
  const std::pair<std::string, const char*> cases[] = {
      {Header(3, 0, 1) + Number(kHuge) + padding, "metadata key 1 of 1: needs 1152921504606846976 bytes at byte 32"},
      {Header(3, 0, 1) + Number(~uint64_t{0}) + padding, "needs 18446744073709551615 bytes"},
      {FileOfKey(Key("k", 13, one)), "\"k\": has value type 13, expected 0 (u8) to 12 (f64)"},
      {FileOfKey(Key("k", ~0u, one)), "\"k\": has value type 4294967295"},
      {FileOfKey(Key("k", kString, Number(kHuge))), "\"k\": needs 1152921504606846976 bytes"},
      {FileOfKey(Array("k", kU8, kHuge, "")), "\"k\": says 1152921504606846976 numbers follow"},
      {FileOfKey(Array("k", kF32, kHuge * 4, "")), "\"k\": says 4611686018427387904 numbers follow"},
      {FileOfKey(Array("k", kU64, kHuge * 2 + 1, "")), "\"k\": says 2305843009213693953 numbers follow"},
      {FileOfKey(Array("k", kString, kHuge, "")), "\"k\": says 1152921504606846976 strings follow"},
      {FileOfKey(Array("k", kString, 1, Number(kHuge))), "\"k\": needs 1152921504606846976 bytes"},
      {FileOfKey(Array("k", kArray, 1, Number(kU8) + Number<uint64_t>(0))), "\"k\": is an array of arrays"},
      {FileOfKey(Array("k", 99, 1, one)), "\"k\": has value type 99"},
      {FileOfKey(Key("k", kU64, Number(uint64_t{1} << 63))), "\"k\": holds 9223372036854775808, expected"},
      {FileOfKey(Array("k", kU64, 2, Number<uint64_t>(1) + Number(~uint64_t{0}))), "\"k\": holds 18446744073709551615"},
      {FileOfKey(Key("k", kBool, "\2")), "\"k\": holds a bool of 2, expected 0 or 1"},
      {FileOfKey(Array("k", kBool, 2, "\1\xFF")), "\"k\": holds a bool of 255, expected 0 or 1"},
      {FileOf({.keys = {Key("k", kU32, one), Key("l", kU32, one), Key("k", kU32, one)}}), "\"k\": stands there twice"},
      {FileOfKey(Key("k\n\xFF", 13, one)), "\"k\\n\\x"},
      {FileOfKey(Key(std::string(1000, 'k'), 13, one)), "kkk\"...: has value type 13"},
  };
  for (const auto& [file, expected] : cases)
    EXPECT_THAT(ParseError(file), AllOf(HasSubstr("f: "), HasSubstr(expected)));
}

TEST_F(Gguf, AlignmentIsCheckedAndObeyed) {
  const auto aligned = [](uint32_t alignment, size_t real, uint64_t offset) {
    return FileOf({.keys = {Key("general.alignment", kU32, Number(alignment))},
                   .tensors = {Tensor("t", {2}, kTensorF32, offset)},
                   .data_bytes = 200,
                   .alignment = real});
  };
  for (const uint32_t alignment : {1u, 2u, 8u, 32u, 64u, 4096u}) {
    const auto contents = Parse(aligned(alignment, alignment, alignment < 200 ? alignment : 0));
    ASSERT_TRUE(contents.ok()) << contents.status().message();
    EXPECT_EQ(contents->alignment, alignment);
    const GgufTensorInfo& info = contents->tensors.at("t");
    EXPECT_EQ(info.begin % alignment, 0u);
    EXPECT_EQ(info.end, info.begin + 8);
  }
  for (const uint32_t alignment : {0u, 3u, 48u, 4194304u, 2147483648u, 4294967295u}) {
    EXPECT_THAT(
        ParseError(aligned(alignment, 32, 0)),
        HasSubstr(fmt::format("f: \"general.alignment\" is {}, expected a power of two up to 2097152", alignment)));
  }
  // As an unsigned number it is a power of two.
  EXPECT_THAT(ParseError(FileOfKey(Key("general.alignment", kI64, Number(std::numeric_limits<int64_t>::min())))),
              HasSubstr("is -9223372036854775808"));
  EXPECT_THAT(ParseError(FileOfKey(Key("general.alignment", kI32, Number<int32_t>(-32)))), HasSubstr("is -32"));
  EXPECT_THAT(ParseError(FileOfKey(Key("general.alignment", kString, Text("32")))), HasSubstr("a whole number"));
  EXPECT_THAT(ParseError(aligned(64, 64, 32)), HasSubstr("tensor \"t\": has offset 32, expected a multiple of 64"));
  EXPECT_EQ(Parse(FileOf({})).value().alignment, 32);
}

TEST_F(Gguf, TensorsAreChecked) {
  const auto whole = Parse(FileOfTensor(Tensor("t", {2, 3}, kTensorF32, 32)));
  ASSERT_TRUE(whole.ok()) << whole.status().message();
  const GgufTensorInfo& info = whole->tensors.at("t");
  EXPECT_EQ(info.shape, (Shape{3, 2}));
  EXPECT_EQ(info.end - info.begin, 24u);
  const std::pair<std::string, const char*> cases[] = {
      {Tensor("t", {}, kTensorF32, 0) + std::string(8, '\0'), "has 0 dimensions, expected 1 to 4"},
      {Tensor("t", {1, 1, 1, 1, 1}, kTensorF32, 0), "has 5 dimensions, expected 1 to 4"},
      {Text("t") + Number(~0u) + std::string(24, '\0'), "has 4294967295 dimensions"},
      {Tensor("t", {4, 0}, kTensorF32, 0), "shape is [0, 4], expected dimensions of at least 1"},
      {Tensor("t", {uint64_t{1} << 63}, kTensorF32, 0), "a dimension of 9223372036854775808 has too many elements"},
      // 2^32 * 2^32 is 2^64: zero, were it to wrap.
      {Tensor("t", {uint64_t{1} << 32, uint64_t{1} << 32}, kTensorF32, 0), "has too many elements"},
      {Tensor("t", {uint64_t{1} << 62}, kTensorF32, 0), "[4611686018427387904] has too many elements"},
      {Tensor("t", {33}, kTensorQ8_0, 0), "rows have 33 elements, expected whole blocks of 32 (q8_0)"},
      {Tensor("t", {16, 2}, kTensorQ8_0, 0), "rows have 16 elements, expected whole blocks of 32 (q8_0)"},
      {Tensor("t", {32, 8}, kTensorQ6_K, 0), "rows have 32 elements, expected whole blocks of 256 (q6_k)"},
      {Tensor("t", {1}, kTensorF32, 4), "has offset 4, expected a multiple of 32"},
      {Tensor("t", {17}, kTensorF32, 0), "is f32 [17] at offset 0, beyond the 64 bytes of data"},
      {Tensor("t", {9}, kTensorF32, 32), "is f32 [9] at offset 32, beyond the 64 bytes of data"},
      {Tensor("t", {1}, kTensorF32, 64), "at offset 64, beyond the 64 bytes of data"},
      {Tensor("t", {8}, kTensorF32, ~uint64_t{31}), "at offset 18446744073709551584, beyond the 64 bytes of data"},
      {Tensor("t", {32}, 16, 0), "has tensor type 16 (IQ2_XXS), which cannot be read"},
      {Tensor("t", {32}, 40, 0), "has tensor type 40 (NVFP4), which cannot be read"},
      {Tensor("t", {32}, 31, 0), "has tensor type 31, which cannot be read"},
      {Tensor("t", {32}, ~0u, 0), "has tensor type 4294967295, which cannot be read"},
  };
  for (const auto& [tensor, expected] : cases) {
    EXPECT_THAT(ParseError(FileOfTensor(tensor)), AllOf(HasSubstr("f: tensor \"t\""), HasSubstr(expected)));
  }
  EXPECT_THAT(ParseError(Header(3, 1, 0) + Number(kHuge) + std::string(64, '\0')),
              HasSubstr("f: tensor 1 of 1: needs 1152921504606846976 bytes"));
  EXPECT_EQ(Parse(FileOfTensor(Tensor("t", {32}, 16, 0))).status().code(), StatusCode::kUnsupported);
  EXPECT_THAT(ParseError(FileOfTensor(Tensor(std::string(5000, 't'), {1}, 16, 0))), HasSubstr("ttt\"...: has"));
}

// The types of tensors by their numbers, from the format's description.
TEST_F(Gguf, TensorTypesHaveTheirNumbers) {
  const std::pair<uint32_t, DType> types[] = {
      {0, DType::kF32},     {1, DType::kF16},    {2, DType::kQ4_0},   {3, DType::kQ4_1},  {6, DType::kQ5_0},
      {7, DType::kQ5_1},    {8, DType::kQ8_0},   {12, DType::kQ4_K},  {13, DType::kQ5_K}, {14, DType::kQ6_K},
      {20, DType::kIQ4_NL}, {30, DType::kBF16},  {26, DType::kI32},   {10, DType::kQ2_K}, {11, DType::kQ3_K},
      {23, DType::kIQ4_XS}, {34, DType::kTQ1_0}, {35, DType::kTQ2_0}, {39, DType::kMXFP4}};
  for (const auto& [number, dtype] : types) {
    const auto contents = Parse(FileOf({.tensors = {Tensor("t", {256}, number, 0)}, .data_bytes = 1024}));
    ASSERT_TRUE(contents.ok()) << contents.status().message();
    const GgufTensorInfo& info = contents->tensors.at("t");
    EXPECT_EQ(info.dtype, dtype) << number;
    EXPECT_EQ(static_cast<int64_t>(info.end - info.begin), BytesOf(dtype, 256)) << number;
  }
}

TEST_F(Gguf, TensorsMustNotOverlapButMayLeaveHolesAndStandInAnyOrder) {
  const auto two = [](uint64_t a, uint64_t b) {
    return FileOf({.tensors = {Tensor("a", {9}, kTensorF32, a), Tensor("b", {9}, kTensorF32, b)}, .data_bytes = 256});
  };
  EXPECT_EQ(ParseError(two(0, 64)), "(no error)");
  EXPECT_EQ(ParseError(two(160, 32)), "(no error)");
  for (const std::string& file : {two(0, 0), two(0, 32), two(96, 64)}) {
    EXPECT_THAT(ParseError(file),
                AllOf(HasSubstr("f: tensors"), HasSubstr("overlap"), HasSubstr("\"a\""), HasSubstr("\"b\"")));
  }
  EXPECT_THAT(ParseError(FileOf(
                  {.tensors = {Tensor("a", {1}, kTensorF32, 0), Tensor("a", {1}, kTensorF32, 32)}, .data_bytes = 64})),
              HasSubstr("f: tensor \"a\": stands there twice"));
}

// Cut at every byte: inside the header, the metadata, the table, the padding, the data.
TEST_F(Gguf, EveryTruncationIsAnError) {
  for (const uint32_t version : {2u, 3u}) {
    const std::string whole =
        FileOf({.version = version,
                .keys = {Key("general.architecture", kString, Text("llama")), Key("n", kU32, Number<uint32_t>(7)),
                         Array("scores", kF32, 3, Number(1.0f) + Number(2.0f) + Number(3.0f)),
                         Array("words", kString, 3, Text("one") + Text("") + Text("three"))},
                .tensors = {Tensor("v", {3}, kTensorF32, 0), Tensor("m", {32, 2}, kTensorQ8_0, 32)},
                .data_bytes = 32 + 68});
    ASSERT_TRUE(Parse(whole).ok()) << ParseError(whole);
    for (size_t size = 0; size < whole.size(); ++size) {
      // A copy of just these bytes, so that a sanitizer sees a read beyond them.
      const std::vector<char> cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
      const auto contents = ParseGguf(std::as_bytes(std::span(cut)), "f");
      ASSERT_FALSE(contents.ok()) << size;
      EXPECT_THAT(contents.status().message(), HasSubstr("f: ")) << size;
    }
    EXPECT_THAT(ParseError(whole.substr(0, whole.size() - 1)), AllOf(HasSubstr("\"m\""), HasSubstr("cut short")));
  }
}

TEST_F(Gguf, TensorsThatAreNotAlignedToTheirElementsHaveNoView) {
  Write(FileOf({.keys = {Key("general.alignment", kU32, Number<uint32_t>(1))},
                .tensors = {Tensor("f32", {1}, kTensorF32, 0), Tensor("q8", {32}, kTensorQ8_0, 4),
                            Tensor("odd.q8", {32}, kTensorQ8_0, 39), Tensor("even.q8", {32}, kTensorQ8_0, 74)},
                .data_bytes = 108,
                .alignment = 1}));
  const auto file = OpenGgufFile(Path());
  ASSERT_TRUE(file.ok()) << file.status().message();
  const auto contents = Parse(ReadFile(Path()).value());
  for (const auto& [name, info] : contents->tensors) {
    const size_t needed = name == "f32" ? 4 : 2;
    EXPECT_EQ((*file)->Get(name).ok(), info.begin % needed == 0) << name << " at " << info.begin;
  }
  // Whichever they are of the two: they are an odd number of bytes apart.
  EXPECT_NE((*file)->Get("q8").ok(), (*file)->Get("odd.q8").ok());
  const char* odd = (*file)->Get("q8").ok() ? "odd.q8" : "q8";
  EXPECT_THAT((*file)->Get(odd).status().message(),
              AllOf(HasSubstr(odd), HasSubstr("starts at byte"), HasSubstr("not a multiple of 2 (q8_0)")));
}

TEST_F(Gguf, FilesThatCannotBeReadAreNamed) {
  EXPECT_EQ(OpenGgufFile(Path()).status().code(), StatusCode::kNotFound);
  EXPECT_THAT(OpenGgufFile(folder_.string()).status().message(), HasSubstr("is a folder"));
  Write("");
  EXPECT_THAT(OpenGgufFile(Path()).status().message(), AllOf(HasSubstr("x.gguf"), HasSubstr("cut short")));
}

TEST_F(Gguf, AFileOfAnotherWriter) {
  const std::string path = HEADWISE_SOURCE_DIR "/../shared/models/gguf/headwise-17m-q8_0.gguf";
  if (!fs::exists(path)) GTEST_SKIP() << path << " is not there";
  const auto file = OpenGgufFile(path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  const GgufMetadata& metadata = (*file)->metadata();
  EXPECT_EQ(metadata.String("general.architecture").value(), "llama");
  EXPECT_EQ(metadata.Int("llama.block_count").value(), 8);
  EXPECT_EQ(metadata.Double("llama.rope.freq_base").value(), 1e6);
  EXPECT_TRUE(metadata.BoolOr("tokenizer.ggml.add_bos_token", false).value());
  const auto tokens = metadata.Strings("tokenizer.ggml.tokens").value();
  ASSERT_EQ(tokens.size(), 8192u);
  EXPECT_EQ(tokens[2], "<|im_start|>");
  EXPECT_THAT(metadata.Ints("tokenizer.ggml.token_type").value().first(3), ElementsAre(3, 3, 3));
  EXPECT_EQ(metadata.Strings("tokenizer.ggml.merges").value()[1], "h e");

  EXPECT_EQ((*file)->Names().size(), 74u);
  const std::tuple<const char*, DType, Shape> tensors[] = {{"token_embd.weight", DType::kQ8_0, {8192, 384}},
                                                           {"output_norm.weight", DType::kF32, {384}},
                                                           {"blk.0.attn_q.weight", DType::kQ8_0, {512, 384}},
                                                           {"blk.7.ffn_down.weight", DType::kQ8_0, {384, 1024}}};
  for (const auto& [name, dtype, shape] : tensors) {
    const auto view = (*file)->Get(name, shape);
    ASSERT_TRUE(view.ok()) << view.status().message();
    EXPECT_EQ(view->dtype, dtype) << name;
  }
  // Weights of a norm are near 1: the bytes are those of the tensor.
  const auto* norm = static_cast<const float*>((*file)->Get("blk.3.ffn_norm.weight").value().data);
  for (int i = 0; i < 384; ++i) EXPECT_TRUE(norm[i] > 0.01f && norm[i] < 100.0f) << norm[i];
}

}  // namespace
}  // namespace headwise
