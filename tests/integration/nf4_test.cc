// A whole model as bitsandbytes keeps it in 4 bits: the logits of the model that has the numbers its matrices stand
// for.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/json.h"
#include "engine/quantize.h"
#include "support/engines.h"
#include "support/golden.h"
#include "support/tolerance.h"
#include "tensor/block_reader.h"
#include "weights/published_test_folder.h"
#include "weights/safetensors.h"

namespace headwise {
namespace {

constexpr const char* kMethod = R"({"quant_method": "bitsandbytes", "load_in_4bit": true, "load_in_8bit": false,
                                    "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": false})";
constexpr int64_t kBlock = 64;

class Nf4Model : public PublishedFolder {
 protected:
  void SetUp() override {
    if (IsTestDevice("cuda")) GTEST_SKIP() << "no weights in nf4 on cuda";
    PublishedFolder::SetUp();
    const auto source = OpenWeightsFolder(kFrom);
    ASSERT_TRUE(source.ok()) << source.status().message();
    Tensors tensors;
    for (const std::string& name : (*source)->Names()) {
      const ConstTensorView view = (*source)->Get(name).value();
      std::vector<float> values(static_cast<size_t>(view.shape.num_elements()));
      ToF32(view.dtype, view.data, view.shape.num_elements(), values.data());
      std::vector<int64_t> shape;
      for (int dim = 0; dim < view.shape.rank(); ++dim) shape.push_back(view.shape[dim]);
      if (name.ends_with("_proj.weight")) Quantise(name, shape, values, tensors);
      plain_[name] = {values, shape};
      if (!tensors.contains(name)) tensors[name] = Floats(shape, values);
    }
    Write(kMethod, tensors);
    WriteConfig(folder_ / "config.json", true);
    WritePlain();
  }

  // The nearest level of each number; `values` become what these stand for.
  static void Quantise(const std::string& name, const std::vector<int64_t>& shape, std::vector<float>& values,
                       Tensors& tensors) {
    std::string codes;
    std::vector<float> scales;
    for (size_t i = 0; i < values.size(); ++i) {
      if (i % kBlock == 0) {
        const auto end = values.begin() + static_cast<std::ptrdiff_t>(i) + kBlock;
        scales.push_back(0);
        for (auto it = end - kBlock; it != end; ++it) scales.back() = std::max(scales.back(), std::abs(*it));
      }
      int best = 0;
      for (int code = 0; code < 16; ++code) {
        const float error = std::abs(scales.back() * kNF4Levels[code] - values[i]);
        if (error < std::abs(scales.back() * kNF4Levels[best] - values[i])) best = code;
      }
      values[i] = scales.back() * kNF4Levels[best];
      if (i % 2 == 0) {
        codes += static_cast<char>(best << 4);
      } else {
        codes.back() = static_cast<char>(codes.back() | best);
      }
    }
    const Json state = {{"quant_type", "nf4"}, {"blocksize", kBlock}, {"dtype", "bfloat16"}, {"shape", shape}};
    std::string text = state.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');  // floats behind it begin on whole ones
    tensors[name] = {"U8", {static_cast<int64_t>(codes.size()), 1}, codes};
    tensors[name + ".absmax"] = Floats({static_cast<int64_t>(scales.size())}, scales);
    tensors[name + ".quant_map"] = Floats({16}, {std::begin(kNF4Levels), std::end(kNF4Levels)});
    tensors[name + ".quant_state.bitsandbytes__nf4"] = {"U8", {static_cast<int64_t>(text.size())}, text};
  }
  void WriteConfig(const std::filesystem::path& path, bool is_quantised) const {
    Json config = ReadJsonFile(kFrom + "/config.json").value();
    config.erase("quantization_config");
    if (is_quantised) config["quantization_config"] = Json::parse(kMethod);
    std::ofstream(path) << config.dump();
  }
  void WritePlain() const {
    std::filesystem::create_directories(folder_ / "plain");
    WriteConfig(folder_ / "plain" / "config.json", false);
    std::vector<NamedTensor> tensors;
    for (const auto& [name, tensor] : plain_) {
      tensors.push_back({name, {tensor.first.data(), DType::kF32, Shape(std::span<const int64_t>(tensor.second))}});
    }
    ASSERT_TRUE(WriteSafetensors((folder_ / "plain" / "model.safetensors").string(), tensors).ok());
  }

  const std::string kFrom = SourcePath("tests/golden/tiny/llama-fp8");  // rows of multiples of 64
  std::map<std::string, std::pair<std::vector<float>, std::vector<int64_t>>> plain_;
};

TEST_F(Nf4Model, HasTheLogitsOfItsNumbers) {
  const std::vector<int32_t> ids = GoldenTensors(kFrom + "/golden.safetensors").Ids("ids_a");
  const std::string gguf = (folder_ / "model.gguf").string();
  const Status written = QuantizeModel({.model = folder_.string(), .out = gguf, .type = DType::kF32}).status();
  ASSERT_TRUE(written.ok()) << written.message();
  for (const BackendChoice& choice : BackendChoices()) {
    const auto plain = MustCreate(ExactOptions((folder_ / "plain").string(), choice));
    ASSERT_NE(plain, nullptr);
    const std::vector<float> expected = MustRunForced(*plain, ids).logits;
    for (const std::string& path : {folder_.string(), gguf}) {
      const auto engine = MustCreate(ExactOptions(path, choice));
      ASSERT_NE(engine, nullptr);
      for (const int64_t chunk : {64, 7, 1}) {
        EXPECT_LE(MaxDifference(MustRunForced(*engine, ids, nullptr, -1, chunk).logits, expected), kTinyLogitsF32)
            << choice.name() << " " << path << " chunk " << chunk;
      }
    }
  }
}

// In 8 or 16 bits nothing of it is a whole number: bf16 where prompts are.
TEST_F(Nf4Model, IsNotMultipliedInInt8) {
  EngineOptions options;
  options.model = folder_.string();
  const auto engine = MustCreate(options);
  ASSERT_NE(engine, nullptr);
  EXPECT_NE(engine->arithmetic().compute, "int8");
}

}  // namespace
}  // namespace headwise
