// Safetensors files as they should be, and every way in which they can be wrong.
#include "weights/safetensors.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "weights/weight_source.h"

namespace headwise {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A file of this header and that many bytes of data, 0, 1, 2, ...
std::string FileOf(const std::string& header, size_t data_bytes) {
  const uint64_t header_bytes = header.size();
  std::string file(reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes));
  file += header;
  for (size_t i = 0; i < data_bytes; ++i) file += static_cast<char>(i);
  return file;
}

// An otherwise good file of 16 bytes of data with one tensor described by `entry`.
std::string FileOfEntry(const std::string& entry) {
  return FileOf(R"({"w": )" + entry + "}", 16);
}

auto Parse(const std::string& file) {
  return ParseSafetensorsHeader(std::as_bytes(std::span(file)), "f");
}
std::string ParseError(const std::string& file) {
  const auto result = Parse(file);
  return result.ok() ? "(no error)" : result.status().message();
}

class Safetensors : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::path(::testing::TempDir()) / fmt::format("headwise_{}_{}", test->name(), ::getpid());
    fs::create_directories(folder_);
  }
  void TearDown() override {
    fs::permissions(folder_, fs::perms::owner_all);
    fs::remove_all(folder_);
  }

  std::string Path(const std::string& name) const { return (folder_ / name).string(); }
  void Write(const std::string& name, const std::string& content) const {
    std::ofstream(Path(name), std::ios::binary) << content;
  }
  Status OpenFolderStatus() const { return OpenSafetensorsFolder(folder_.string()).status(); }

  fs::path folder_;
};

TEST_F(Safetensors, EveryUsableDTypeIsReadBackAsWritten) {
  const float f32[] = {1.5f, -2.0f, 3.25f};
  const uint16_t f16[] = {0x3C00};
  const uint16_t bf16[] = {0x3F80, 0x4000};
  const int32_t i32[] = {7, -8, 9, 10, 11, 12};
  // The single f16 in front would put the f32 that follows at an odd place, were they written in this order.
  const NamedTensor tensors[] = {{"half", {f16, DType::kF16, {1}}},
                                 {"b", {bf16, DType::kBF16, {2, 1}}},
                                 {"a", {f32, DType::kF32, {3}}},
                                 {"ids", {i32, DType::kI32, {1, 2, 3}}},
                                 {"none", {f32, DType::kF32, {0, 4}}}};
  ASSERT_TRUE(WriteSafetensors(Path("x.safetensors"), tensors).ok());
  const auto source = OpenSafetensorsFile(Path("x.safetensors"));
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_THAT((*source)->Names(), ElementsAre("a", "b", "half", "ids", "none"));
  for (const NamedTensor& tensor : tensors) {
    const auto view = (*source)->Get(tensor.name);
    ASSERT_TRUE(view.ok()) << view.status().message();
    EXPECT_EQ(view->dtype, tensor.view.dtype) << tensor.name;
    EXPECT_EQ(view->shape, tensor.view.shape) << tensor.name;
    EXPECT_EQ(std::memcmp(view->data, tensor.view.data, static_cast<size_t>(view->size_bytes())), 0) << tensor.name;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(view->data) % static_cast<uintptr_t>(SizeOf(view->dtype)), 0u);
  }
}

TEST_F(Safetensors, GetChecksTheShapeAndThatItIsAFloatFormat) {
  const int32_t ids[] = {1, 2};
  const float weights[] = {1, 2};
  const NamedTensor tensors[] = {{"ids", {ids, DType::kI32, {2}}}, {"w", {weights, DType::kF32, {2, 1}}}};
  ASSERT_TRUE(WriteSafetensors(Path("x.safetensors"), tensors).ok());
  const auto source = OpenSafetensorsFile(Path("x.safetensors"));
  ASSERT_TRUE(source.ok());
  EXPECT_TRUE((*source)->Get("w", {2, 1}).ok());
  EXPECT_THAT((*source)->Get("w", {1, 2}).status().message(),
              AllOf(HasSubstr("x.safetensors"), HasSubstr("\"w\""), HasSubstr("[2, 1]"), HasSubstr("expected [1, 2]")));
  EXPECT_THAT((*source)->Get("ids", {2}).status().message(), AllOf(HasSubstr("\"ids\" is i32"), HasSubstr("f32")));
  const Status missing = (*source)->Get("no.such", {2}).status();
  EXPECT_EQ(missing.code(), StatusCode::kNotFound);
  EXPECT_THAT(missing.message(), HasSubstr("\"no.such\""));
}

TEST_F(Safetensors, WriterRefusesNamesThatCannotBeReadBack) {
  const float x[] = {1};
  const ConstTensorView view(x, DType::kF32, {1});
  const NamedTensor twice[] = {{"w", view}, {"w", view}};
  EXPECT_THAT(WriteSafetensors(Path("x"), twice).message(), HasSubstr("\"w\""));
  const NamedTensor reserved[] = {{"__metadata__", view}};
  EXPECT_THAT(WriteSafetensors(Path("x"), reserved).message(), HasSubstr("__metadata__"));
  EXPECT_FALSE(fs::exists(Path("x")));
  const NamedTensor fine[] = {{"w", view}};
  EXPECT_EQ(WriteSafetensors(Path("no/such/folder"), fine).code(), StatusCode::kNotFound);
}

// Cut at every byte: inside the length, inside the header, inside the data.
TEST_F(Safetensors, EveryTruncationIsAnError) {
  const std::string whole = FileOfEntry(R"({"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]})");
  ASSERT_TRUE(Parse(whole).ok()) << ParseError(whole);
  for (size_t size = 0; size < whole.size(); ++size) {
    const std::string message = ParseError(whole.substr(0, size));
    EXPECT_THAT(message, HasSubstr("f")) << size;
    EXPECT_NE(message, "(no error)") << size;
  }
  EXPECT_THAT(ParseError(whole.substr(0, 7)), HasSubstr("has 7 bytes"));
  EXPECT_THAT(ParseError(whole.substr(0, 30)), HasSubstr("cut short"));
}

TEST_F(Safetensors, HeaderMustBeAJsonObject) {
  EXPECT_THAT(ParseError(FileOf("", 0)), HasSubstr("not valid JSON"));
  EXPECT_THAT(ParseError(FileOf("{\"w\": ", 0)), HasSubstr("not valid JSON"));
  EXPECT_THAT(ParseError(FileOf("[1]", 0)), HasSubstr("expected an object"));
  EXPECT_THAT(ParseError(FileOf("\"\xFF\"", 0)), HasSubstr("not valid JSON"));
  EXPECT_THAT(ParseError(FileOf(std::string(100000, '['), 0)), HasSubstr("nested deeper"));
  EXPECT_THAT(ParseError(FileOf("{}{}", 0)), HasSubstr("not valid JSON"));
  EXPECT_TRUE(Parse(FileOf("{}   ", 0)).ok());  // padding
  std::string huge = FileOf("{}", 0);
  std::memset(huge.data(), 0xFF, 8);
  EXPECT_THAT(ParseError(huge), HasSubstr("18446744073709551615"));
}

TEST_F(Safetensors, EntriesAreChecked) {
  const std::pair<const char*, const char*> cases[] = {
      {R"(3)", "expected an object"},
      {R"({"shape": [4], "data_offsets": [0, 16]})", "\"dtype\" is missing"},
      {R"({"dtype": 5, "shape": [4], "data_offsets": [0, 16]})", "\"dtype\" is 5"},
      {R"({"dtype": "F32", "data_offsets": [0, 16]})", "\"shape\""},
      {R"({"dtype": "F32", "shape": 4, "data_offsets": [0, 16]})", "\"shape\""},
      {R"({"dtype": "F32", "shape": [-4], "data_offsets": [0, 16]})", "\"shape\""},
      {R"({"dtype": "F32", "shape": [4.0], "data_offsets": [0, 16]})", "\"shape\""},
      {R"({"dtype": "F32", "shape": ["4"], "data_offsets": [0, 16]})", "\"shape\""},
      {R"({"dtype": "F32", "shape": [99999999999999999999], "data_offsets": [0, 16]})", "\"shape\""},
      {R"({"dtype": "F32", "shape": [18446744073709551615], "data_offsets": [0, 16]})", "\"shape\""},
      // 4 * 2^31 * 2^31 is 2^64: zero, were it to wrap.
      {R"({"dtype": "F32", "shape": [2147483648, 2147483648], "data_offsets": [0, 0]})", "too many elements"},
      {R"({"dtype": "F32", "shape": [4]})", "\"data_offsets\""},
      {R"({"dtype": "F32", "shape": [4], "data_offsets": [0]})", "data_offsets"},
      {R"({"dtype": "F32", "shape": [4], "data_offsets": [0, 16, 16]})", "data_offsets"},
      {R"({"dtype": "F32", "shape": [4], "data_offsets": [-1, 15]})", "data_offsets"},
      {R"({"dtype": "F32", "shape": [4], "data_offsets": [16, 0]})", "data_offsets"},
      {R"({"dtype": "F32", "shape": [4], "data_offsets": [1, 17]})", "within the 16 bytes"},
      {R"({"dtype": "F32", "shape": [4], "data_offsets": [18446744073709551600, 18446744073709551615]})", "offsets"},
      {R"({"dtype": "F32", "shape": [3], "data_offsets": [0, 16]})", "takes 12 bytes, data_offsets hold 16"},
      {R"({"dtype": "F16", "shape": [4], "data_offsets": [0, 16]})", "takes 8 bytes"},
      {R"({"dtype": "F32", "shape": [], "data_offsets": [0, 0]})", "takes 4 bytes"},
  };
  for (const auto& [entry, expected] : cases) {
    EXPECT_THAT(ParseError(FileOfEntry(entry)), AllOf(HasSubstr(expected), HasSubstr("\"w\""))) << entry;
  }
}

TEST_F(Safetensors, TensorsMustNotOverlapButMayLeaveHoles) {
  const auto two = [](const char* a, const char* b) {
    return FileOf(fmt::format(R"({{"a": {{"dtype": "F32", "shape": [1], "data_offsets": {}}},
                                   "b": {{"dtype": "F32", "shape": [1], "data_offsets": {}}}}})",
                              a, b),
                  16);
  };
  EXPECT_TRUE(Parse(two("[0, 4]", "[4, 8]")).ok());
  EXPECT_TRUE(Parse(two("[12, 16]", "[4, 8]")).ok());
  for (const std::string& file : {two("[0, 4]", "[0, 4]"), two("[0, 4]", "[2, 6]"), two("[8, 12]", "[5, 9]")}) {
    EXPECT_THAT(ParseError(file), AllOf(HasSubstr("overlap"), HasSubstr("\"a\""), HasSubstr("\"b\"")));
  }
}

TEST_F(Safetensors, ANameMayStandOnce) {
  const char* entry = R"({"dtype": "F32", "shape": [1], "data_offsets": [0, 4]})";
  EXPECT_THAT(ParseError(FileOf(fmt::format(R"({{"w": {}, "w": {}}})", entry, entry), 8)),
              AllOf(HasSubstr("\"w\""), HasSubstr("twice")));
}

TEST_F(Safetensors, OtherDTypesMayStandInTheFileButHaveNoView) {
  Write("x.safetensors", FileOf(R"({"__metadata__": {"format": "pt"},
      "mask": {"dtype": "BOOL", "shape": [3], "data_offsets": [0, 3]},
      "new": {"dtype": "F4", "shape": [2], "data_offsets": [3, 4]},
      "deep": {"dtype": "F32", "shape": [1, 1, 1, 1, 1], "data_offsets": [4, 8]},
      "odd": {"dtype": "F32", "shape": [1], "data_offsets": [9, 13]}} )",
                                16));
  const auto source = OpenSafetensorsFile(Path("x.safetensors"));
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_THAT((*source)->Names(), ElementsAre("deep", "mask", "new", "odd"));
  EXPECT_THAT((*source)->Get("mask").status().message(), AllOf(HasSubstr("\"mask\""), HasSubstr("BOOL")));
  EXPECT_THAT((*source)->Get("new").status().message(), AllOf(HasSubstr("\"new\""), HasSubstr("F4")));
  EXPECT_THAT((*source)->Get("deep").status().message(), AllOf(HasSubstr("\"deep\""), HasSubstr("5 dimensions")));
  EXPECT_EQ((*source)->Get("mask").status().code(), StatusCode::kUnsupported);
  const auto header = Parse(ReadFile(Path("x.safetensors")).value());
  ASSERT_TRUE(header.ok());
  // Whether it is aligned depends on the header's length, which the test does not want to count.
  const bool aligned = header->at("odd").begin % 4 == 0;
  EXPECT_EQ((*source)->Get("odd").ok(), aligned);
  ASSERT_FALSE(aligned);
  EXPECT_THAT((*source)->Get("odd").status().message(), AllOf(HasSubstr("\"odd\""), HasSubstr("multiple")));
}

TEST_F(Safetensors, FilesAndFoldersThatCannotBeReadAreNamed) {
  EXPECT_EQ(OpenSafetensorsFile(Path("none")).status().code(), StatusCode::kNotFound);
  EXPECT_THAT(OpenSafetensorsFile(folder_.string()).status().message(), HasSubstr("is a folder"));
  EXPECT_THAT(OpenFolderStatus().message(), AllOf(HasSubstr(folder_.string()), HasSubstr("model.safetensors")));
  Write("model.safetensors", "");
  EXPECT_THAT(OpenFolderStatus().message(), HasSubstr("has 0 bytes"));
  EXPECT_FALSE(OpenSafetensorsFolder(Path("model.safetensors")).ok());  // a file where a folder should be
  EXPECT_FALSE(OpenSafetensorsFolder(Path("missing")).ok());
  EXPECT_FALSE(OpenSafetensorsFolder(std::string(10000, 'x')).ok());  // a name the system refuses
}

TEST_F(Safetensors, UnreadableFolderIsAnErrorNotAnException) {
  if (::geteuid() == 0) GTEST_SKIP() << "root reads everything";
  Write("model.safetensors", FileOf("{}", 0));
  fs::permissions(folder_, fs::perms::none);
  EXPECT_THAT(OpenFolderStatus().message(), HasSubstr("ermission"));
}

TEST_F(Safetensors, ShardsAreOneSource) {
  const float a[] = {1, 2};
  const float b[] = {3};
  const NamedTensor first[] = {{"a", {a, DType::kF32, {2}}}};
  const NamedTensor second[] = {{"b", {b, DType::kF32, {1}}}, {"unlisted", {b, DType::kF32, {1}}}};
  ASSERT_TRUE(WriteSafetensors(Path("s1.safetensors"), first).ok());
  ASSERT_TRUE(WriteSafetensors(Path("s2.safetensors"), second).ok());
  Write("model.safetensors.index.json", R"({"weight_map": {"b": "s2.safetensors", "a": "s1.safetensors"}})");
  const auto source = OpenSafetensorsFolder(folder_.string());
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_THAT((*source)->Names(), ElementsAre("a", "b", "unlisted"));  // a part of the model, whatever the index says
  EXPECT_EQ(*static_cast<const float*>((*source)->Get("b", {1}).value().data), 3.0f);

  // The same tensors in one file have the same hash; another value or shape has another.
  const float c[] = {4};
  const NamedTensor third = {"unlisted", {b, DType::kF32, {1}}};
  const NamedTensor whole[] = {{"b", {b, DType::kF32, {1}}}, {"a", {a, DType::kF32, {2}}}, third};
  const NamedTensor other_value[] = {{"b", {c, DType::kF32, {1}}}, {"a", {a, DType::kF32, {2}}}, third};
  const NamedTensor other_shape[] = {{"b", {b, DType::kF32, {1, 1}}}, {"a", {a, DType::kF32, {2}}}, third};
  const std::string hash = SourceHash(**source);
  EXPECT_EQ(hash.size(), 64u);
  const auto hash_of = [&](std::span<const NamedTensor> tensors) {
    EXPECT_TRUE(WriteSafetensors(Path("whole.safetensors"), tensors).ok());
    const auto file = OpenSafetensorsFile(Path("whole.safetensors"));
    return file.ok() ? SourceHash(**file) : file.status().message();
  };
  EXPECT_EQ(hash_of(whole), hash);
  EXPECT_NE(hash_of(other_value), hash);
  EXPECT_NE(hash_of(other_shape), hash);
}

TEST_F(Safetensors, BadIndexesAreRefused) {
  const float a[] = {1};
  const NamedTensor tensors[] = {{"a", {a, DType::kF32, {1}}}};
  ASSERT_TRUE(WriteSafetensors(Path("s1.safetensors"), tensors).ok());
  const std::pair<const char*, const char*> cases[] = {
      {"{", "not valid JSON"},
      {"[]", "expected an object"},
      {R"({"metadata": {}})", "\"weight_map\""},
      {R"({"weight_map": []})", "weight_map"},
      {R"({"weight_map": {}})", "empty"},
      {R"({"weight_map": {"a": 1}})", "\"a\" is 1, expected a file name"},
      {R"({"weight_map": {"a": ""}})", "expected a file name"},
      {R"({"weight_map": {"a": "../s1.safetensors"}})", "expected a file name"},
      {R"({"weight_map": {"a": ".."}})", "expected a file name"},
      {R"({"weight_map": {"a": "s1.safetensors\u0000"}})", "expected a file name"},
      {R"({"weight_map": {"a": "s9.safetensors"}})", "s9.safetensors"},
      {R"({"weight_map": {"a": "s1.safetensors", "z": "s1.safetensors"}})", "\"z\" is missing"},
  };
  for (const auto& [index, expected] : cases) {
    Write("model.safetensors.index.json", index);
    EXPECT_THAT(OpenFolderStatus().message(), AllOf(HasSubstr(expected), HasSubstr("model.safetensors.index.json")))
        << index;
  }
}

}  // namespace
}  // namespace headwise
