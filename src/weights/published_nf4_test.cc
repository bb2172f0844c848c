// Matrices as bitsandbytes keeps them in 4 bits: the numbers that its own library makes of them, bit for bit
// (tests/golden/nf4), and every way in which their tensors can be wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "support/golden.h"
#include "weights/published_test_folder.h"

namespace headwise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kNf4 = R"({"quant_method": "bitsandbytes", "load_in_4bit": true, "bnb_4bit_quant_type": "nf4"})";
constexpr const char* kState = "twice.weight.quant_state.bitsandbytes__nf4";

class PublishedNf4 : public PublishedFolder {
 protected:
  static std::string GoldenFolder() { return SourcePath("tests/golden/nf4"); }
  // The tensors of the golden's folder, to be changed.
  static Tensors Golden() {
    const auto source = OpenSafetensorsFolder(GoldenFolder());
    EXPECT_TRUE(source.ok()) << source.status().message();
    Tensors tensors;
    if (!source.ok()) return tensors;
    for (const std::string& name : (*source)->Names()) {
      const RawTensor raw = (*source)->FindRaw(name).value();
      tensors[name] = {std::string(raw.dtype), raw.shape,
                       std::string(reinterpret_cast<const char*>(raw.data), raw.num_bytes)};
    }
    return tensors;
  }
  std::string ErrorWith(const std::string& name, const Written& tensor, const char* matrix = "twice.weight") const {
    Tensors tensors = Golden();
    tensors[name] = tensor;
    return Error(kNf4, tensors, matrix);
  }
  std::string ErrorWithout(const std::string& name, const char* matrix = "twice.weight") const {
    Tensors tensors = Golden();
    tensors.erase(name);
    return Error(kNf4, tensors, matrix);
  }
  std::string ErrorWithState(const std::string& key, const Json& value) const {
    const Tensors tensors = Golden();
    Json state = Json::parse(tensors.at(kState).bytes);
    state[key] = value;
    return ErrorWith(kState, Text(state.dump()));
  }
  static Written Text(const std::string& text) { return {"U8", {static_cast<int64_t>(text.size())}, text}; }
};

TEST_F(PublishedNf4, HasTheBitsThatItsOwnLibraryMakes) {
  const auto source = OpenWeightsFolder(GoldenFolder());
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_THAT((*source)->Names(), ElementsAre("once.weight", "twice.weight"));
  const GoldenTensors golden(GoldenFolder() + "/golden.safetensors");
  for (const char* name : {"once", "twice"}) {
    const auto view = (*source)->Get(std::string(name) + ".weight");
    ASSERT_TRUE(view.ok()) << view.status().message();
    EXPECT_EQ(NameOf(view->dtype), "nf4");
    std::vector<float> values(static_cast<size_t>(view->shape.num_elements()));
    ToF32(view->dtype, view->data, view->shape.num_elements(), values.data());
    const std::vector<float> expected = golden.F32(name);
    ASSERT_EQ(values.size(), expected.size());
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(values[i]), std::bit_cast<uint32_t>(expected[i])) << name << " " << i;
    }
  }
}

// "bnb_4bit_quant_storage": the same bytes under another type's name. And scales may be of longer runs.
TEST_F(PublishedNf4, CodesMayBeKeptAsAnyType) {
  Tensors tensors = Golden();
  tensors["once.weight"].dtype = "BF16";
  tensors["once.weight"].shape = {192, 1};
  const auto values = Values(kNf4, tensors, DType::kNF4, {6, 128}, "once.weight");
  EXPECT_EQ(values, GoldenTensors(GoldenFolder() + "/golden.safetensors").F32("once"));

  Json state = Json::parse(tensors["once.weight.quant_state.bitsandbytes__nf4"].bytes);
  state["blocksize"] = 512;  // the second run is cut
  tensors["once.weight.quant_state.bitsandbytes__nf4"] = Text(state.dump());
  tensors["once.weight.absmax"] = Floats({2}, {2, 3});
  const auto longer = Values(kNf4, tensors, DType::kNF4, {6, 128}, "once.weight");
  for (size_t i = 0; i < longer.size(); ++i) {
    const auto byte = static_cast<uint8_t>(tensors["once.weight"].bytes[i / 2]);
    if (((byte >> (i % 2 == 0 ? 4 : 0)) & 15) == 15) {
      EXPECT_EQ(longer[i], i < 512 ? 2 : 3) << i;
    }
  }
}

TEST_F(PublishedNf4, WhatIsMissingIsNamed) {
  for (const char* part : {"absmax", "quant_map", "nested_quant_map", "quant_state.bitsandbytes__nf4"}) {
    const std::string name = std::string("twice.weight.") + part;
    EXPECT_THAT(ErrorWithout(name), HasSubstr("tensor \"" + name + "\" is missing"));
  }
  EXPECT_THAT(ErrorWithout("twice.weight.nested_absmax"),
              HasSubstr("tensor \"twice.weight.absmax\" is U8 [20], expected F32 [20]"));
}

TEST_F(PublishedNf4, WrongTensors) {
  Written codes = Golden()["twice.weight"];
  codes.bytes.pop_back();
  codes.shape[0] -= 1;
  EXPECT_THAT(ErrorWith("twice.weight", codes),
              HasSubstr("tensor \"twice.weight\" is U8 [639, 1], expected 640 bytes for the codes of [20, 64]"));
  codes = Golden()["twice.weight"];
  codes.bytes += '\0';
  codes.shape[0] += 1;
  EXPECT_THAT(ErrorWith("twice.weight", codes),
              HasSubstr("tensor \"twice.weight\" is U8 [641, 1], expected 640 bytes for the codes of [20, 64]"));
  EXPECT_THAT(ErrorWith("once.weight.absmax", Floats({3, 4}, std::vector<float>(12, 1)), "once.weight"),
              HasSubstr("tensor \"once.weight.absmax\" is F32 [3, 4], expected F32 [12]"));
  EXPECT_THAT(ErrorWith("once.weight.absmax", Floats({12}, std::vector<float>(12, INFINITY)), "once.weight"),
              HasSubstr("tensor \"once.weight.absmax\" holds inf at place 0"));
  EXPECT_THAT(ErrorWith("twice.weight.absmax", Text("short")),
              HasSubstr("tensor \"twice.weight.absmax\" is U8 [5], expected U8 [20]"));
  EXPECT_THAT(ErrorWith("twice.weight.nested_absmax", Floats({1}, {1})),
              HasSubstr("tensor \"twice.weight.nested_absmax\" is F32 [1], expected F32 [2]"));
  EXPECT_THAT(ErrorWith("twice.weight.nested_quant_map", Floats({2}, {0, 1})),
              HasSubstr("tensor \"twice.weight.nested_quant_map\" is F32 [2], expected F32 [256]"));
  EXPECT_THAT(ErrorWith("twice.weight.nested_absmax", Floats({2}, {3.4e38f, 3.4e38f})), HasSubstr("(no error)"));
  const std::vector<float> large(256, 2.0f);
  Tensors tensors = Golden();
  tensors["twice.weight.nested_absmax"] = Floats({2}, {3.4e38f, 3.4e38f});
  tensors["twice.weight.nested_quant_map"] = Floats({256}, large);
  EXPECT_THAT(Error(kNf4, tensors, "twice.weight"),
              HasSubstr("tensor \"twice.weight.absmax\" stands for inf at place 0, expected finite numbers"));
  std::vector<float> table(16, 0.5f);
  EXPECT_THAT(ErrorWith("twice.weight.quant_map", Floats({16}, table)),
              HasSubstr("tensor \"twice.weight.quant_map\" is another table than that of nf4"));
}

// A text that says what the matrix is.
TEST_F(PublishedNf4, WrongStates) {
  const auto named = [](const std::string& what) {
    return HasSubstr(std::string("tensor \"") + kState + "\": " + what);
  };
  EXPECT_THAT(ErrorWithState("quant_type", "fp4"), named("\"quant_type\" is \"fp4\", expected \"nf4\""));
  EXPECT_THAT(ErrorWithState("blocksize", 32), named("\"blocksize\" is 32, expected a multiple of 64"));
  EXPECT_THAT(ErrorWithState("blocksize", 0), named("\"blocksize\" is 0"));
  EXPECT_THAT(ErrorWithState("blocksize", 96), named("\"blocksize\" is 96, expected a multiple of 64"));
  EXPECT_THAT(ErrorWithState("shape", {40, 32}), named("\"shape\" is [40,32], expected [rows, a multiple of 64]"));
  EXPECT_THAT(ErrorWithState("shape", {20.5, 64}), named("\"shape\" is [20.5,64], expected [rows, a multiple of 64]"));
  EXPECT_THAT(ErrorWithState("shape", {20, 64.5}), named("\"shape\" is [20,64.5]"));
  EXPECT_THAT(ErrorWithState("shape", {1280}), named("\"shape\" is [1280]"));
  EXPECT_THAT(ErrorWithState("shape", {-20, -64}), named("\"shape\" is [-20,-64]"));
  EXPECT_THAT(ErrorWithState("shape", {4611686018427387904, 64}), named("\"shape\" is [4611686018427387904,64]"));
  EXPECT_THAT(ErrorWithState("shape", {1073741824, 1073741824}), HasSubstr("tensor \"twice.weight\" is U8"));
  EXPECT_THAT(ErrorWithState("nested_blocksize", -1), named("\"nested_blocksize\" is -1, expected at least 1"));
  EXPECT_THAT(ErrorWithState("nested_offset", 1e300), named("\"nested_offset\" is 1e+300"));
  EXPECT_THAT(ErrorWithState("nested_offset", nullptr), HasSubstr("\"nested_offset\""));
  EXPECT_THAT(ErrorWith(kState, Text("{")), HasSubstr(kState));
  EXPECT_THAT(ErrorWith(kState, Text("[]")), HasSubstr(kState));
  EXPECT_THAT(ErrorWith(kState, Text("\xff\xfe")), HasSubstr(kState));
  EXPECT_THAT(ErrorWith(kState, Floats({1}, {1})), HasSubstr("is F32 [1], expected U8 [bytes] of JSON"));
}

TEST_F(PublishedNf4, WrongConfigs) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"quant_method": "bitsandbytes", "load_in_8bit": true})", "\"load_in_8bit\" is true, expected false"},
      {R"({"quant_method": "bitsandbytes"})", "\"load_in_4bit\" is false, expected true"},
      {R"({"quant_method": "bitsandbytes", "load_in_4bit": true})", "\"bnb_4bit_quant_type\" is \"fp4\""},
      {R"({"quant_method": "bitsandbytes", "load_in_4bit": "yes"})", "\"load_in_4bit\""},
  };
  for (const auto& [method, expected] : cases) {
    EXPECT_THAT(Error(method, Golden(), "once.weight"), HasSubstr(expected)) << method;
  }
}

}  // namespace
}  // namespace headwise
