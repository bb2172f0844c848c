// The bundled model as a .gguf file of every format. That every family comes back whole is
// tests/golden/families_test.cc.
#include "engine/quantize.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "engine/open_tokenizer.h"
#include "engine/prompt.h"
#include "model/gguf_names.h"
#include "model/load_config.h"
#include "support/changed_model.h"
#include "support/describe_config.h"
#include "support/engines.h"
#include "support/golden.h"
#include "tensor/blocks.h"
#include "weights/gguf.h"
#include "weights/published_weights.h"

namespace headwise {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class Quantize : public ::testing::Test {
 protected:
  ~Quantize() override { fs::remove(path_); }
  QuantizeResult MustWrite(DType type) {
    const auto result = QuantizeModel({.model = BundledModel(), .out = path_, .type = type});
    EXPECT_TRUE(result.ok()) << result.status().message();
    return result.ok() ? *result : QuantizeResult();
  }

  const std::string path_ =
      (fs::path(::testing::TempDir()) /
       fmt::format("headwise_quantize_{}.gguf", ::testing::UnitTest::GetInstance()->current_test_info()->name()))
          .string();
};

TEST_F(Quantize, ConfigTokenizerAndHashAreThoseOfTheCheckpoint) {
  MustWrite(DType::kQ8_0);
  EXPECT_EQ(Describe(*ReadModelConfig(path_)), Describe(*ReadModelConfig(BundledModel())));
  const auto before = OpenTokenizer(BundledModel());
  const auto after = OpenTokenizer(path_);
  ASSERT_TRUE(after.ok()) << after.status().message();
  for (const char* text : {"It's 1984, isn't it?\n\n  <|im_start|>user", "naïve Ωmega\t\t12345 日本語", " "}) {
    EXPECT_EQ(*(*after)->Encode(text, SpecialText::kParse), *(*before)->Encode(text, SpecialText::kParse)) << text;
  }
  EXPECT_EQ((*after)->bos_id(), (*before)->bos_id());
  EXPECT_EQ((*after)->eos_id(), (*before)->eos_id());
  // The folder's tokenizer does not say, and its config does: a file says it itself.
  EXPECT_FALSE((*before)->AddsBos() || (*before)->OmitsBos());
  EXPECT_TRUE((*after)->AddsBos());
  EXPECT_EQ(BeginOfText(**after, *ReadModelConfig(path_)), 0);
  EXPECT_TRUE((*after)->chat_templates().empty());
  const auto file = OpenGgufFile(path_);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(*(*file)->metadata().String("tokenizer.ggml.pre"), "qwen2");
  EXPECT_EQ(*(*file)->metadata().String(kGgufSourceHashKey), SourceHash(**OpenSafetensorsFolder(BundledModel())));
}

TEST_F(Quantize, ChatTemplatesAreThoseOfTheCheckpoint) {
  const fs::path folder = path_ + ".model";
  fs::remove_all(folder);
  fs::create_directories(folder);
  for (const auto& file : fs::directory_iterator(BundledModel())) {
    fs::create_symlink(fs::absolute(file.path()), folder / file.path().filename());
  }
  std::ofstream(folder / "tokenizer_config.json")
      << R"({"pad_token": "<|im_end|>", "chat_template": [{"name": "rag", "template": "r"},
                                                         {"name": "default", "template": "d"}]})";
  const auto result = QuantizeModel({.model = folder.string(), .out = path_, .type = DType::kQ8_0});
  ASSERT_TRUE(result.ok()) << result.status().message();
  fs::remove_all(folder);
  const auto tokenizer = OpenTokenizer(path_);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  std::string found;
  for (const ChatTemplateText& each : (*tokenizer)->chat_templates()) found += each.name + "=" + each.source + " ";
  EXPECT_EQ(found, "default=d rag=r ");
  found.clear();
  for (const NamedToken& each : (*tokenizer)->named_tokens()) found += each.name + "=" + each.token + " ";
  EXPECT_EQ(found, "bos_token=<|begin_of_text|> eos_token=<|end_of_text|> pad_token=<|im_end|> ");
}

TEST_F(Quantize, MatricesGetTheFormatOrTheNextThatFits) {
  // Rows of 384 and of 1,024: only the second are whole blocks of 256.
  using Counts = std::map<DType, int64_t>;
  EXPECT_EQ(MustWrite(DType::kQ8_0).num_matrices, (Counts{{DType::kQ8_0, 57}}));
  EXPECT_EQ(MustWrite(DType::kQ4_0).num_matrices, (Counts{{DType::kQ8_0, 1}, {DType::kQ4_0, 56}}));
  EXPECT_EQ(MustWrite(DType::kQ4_K).num_matrices, (Counts{{DType::kQ8_0, 41}, {DType::kQ4_K, 16}}));
  // Those of MLPs alone.
  EXPECT_EQ(MustWrite(DType::kMXFP4).num_matrices, (Counts{{DType::kQ8_0, 33}, {DType::kMXFP4, 24}}));
}

// As gpt-oss is published, so it is written.
TEST_F(Quantize, BlocksThatAreAsWantedStayAsTheyAre) {
  const std::string folder = SourcePath("tests/golden/tiny/gpt_oss-mxfp4");
  const auto result = QuantizeModel({.model = folder, .out = path_, .type = DType::kMXFP4});
  ASSERT_TRUE(result.ok()) << result.status().message();
  const auto source = OpenWeightsFolder(folder);
  const auto file = OpenGgufFile(path_);
  ASSERT_TRUE(source.ok() && file.ok());
  const auto before = (*source)->Get("model.layers.0.mlp.experts.down_proj");
  const auto after = (*file)->Get("blk.0.ffn_down_exps.weight");
  ASSERT_TRUE(before.ok() && after.ok() && after->shape == before->shape);
  ASSERT_EQ(after->dtype, DType::kMXFP4);
  EXPECT_EQ(std::memcmp(after->data, before->data, static_cast<size_t>(before->size_bytes())), 0);
  EXPECT_EQ((*file)->Get("blk.0.ffn_gate_exps.weight")->dtype, DType::kMXFP4);
  EXPECT_EQ((*file)->Get("blk.0.attn_q.weight")->dtype, DType::kQ8_0);
  EXPECT_NE(MustCreate(ExactOptions(path_, {.backend = "cpu", .isa = "auto"})), nullptr);
}

// Every element is what FromF32 makes of the checkpoint's: nothing else touches the numbers on the way.
TEST_F(Quantize, WhatIsWrittenIsTheQuantizedCheckpoint) {
  MustWrite(DType::kQ4_0);
  const auto file = OpenGgufFile(path_);
  ASSERT_TRUE(file.ok());
  const auto source = OpenSafetensorsFolder(BundledModel());
  const auto before = (*source)->Get("model.layers.2.mlp.down_proj.weight");
  const auto after = (*file)->Get("blk.2.ffn_down.weight");
  ASSERT_TRUE(after.ok() && after->dtype == DType::kQ4_0 && after->shape == before->shape);
  const auto count = static_cast<size_t>(before->shape.num_elements());
  std::vector<float> values(count);
  ToF32(before->dtype, before->data, before->shape.num_elements(), values.data());
  std::vector<std::byte> expected(static_cast<size_t>(after->size_bytes()));
  FromF32(DType::kQ4_0, values.data(), before->shape.num_elements(), expected.data());
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), static_cast<const std::byte*>(after->data)));
}

// Norms, of heads too, and positions are added or multiplied with as they are.
TEST_F(Quantize, OnlyMatricesOfProductsGetBlocks) {
  for (const char* name : {"cohere", "gpt2", "stablelm-parallel", "gemma3", "phi3"}) {
    const auto result =
        QuantizeModel({.model = SourcePath("tests/golden/tiny/") + name, .out = path_, .type = DType::kQ8_0});
    ASSERT_TRUE(result.ok()) << result.status().message();
    const auto file = OpenGgufFile(path_).value();
    for (const std::string& tensor : file->Names()) {
      const ConstTensorView view = file->Get(tensor).value();
      const bool is_matrix =
          view.shape.rank() == 2 && tensor != "position_embd.weight" && tensor.find("_norm.") == std::string::npos;
      EXPECT_EQ(view.dtype == DType::kF32, !is_matrix) << name << " " << tensor;
    }
    EXPECT_NE(MustCreate(ExactOptions(path_, {.backend = "cpu", .isa = "auto"})), nullptr) << name;
  }
}

// The root mean square of differences of logits, in units of their standard deviation.
double LogitsApart(const std::string& path, const std::string& compute) {
  EngineOptions options = ExactOptions(path, {.backend = "cpu", .isa = "auto"});
  options.compute = compute;
  const auto quantized = MustCreate(options);
  const auto exact = MustCreate(ExactOptions(BundledModel(), {.backend = "cpu", .isa = "auto"}));
  std::vector<int32_t> ids = {0};
  for (int32_t i = 0; i < 40; ++i) ids.push_back(300 + 37 * i);
  const ForcedRows a = MustRunForced(*quantized, ids);
  const ForcedRows b = MustRunForced(*exact, ids);
  double squares = 0;
  double apart = 0;
  for (size_t i = 0; i < b.logits.size(); ++i) {
    squares += static_cast<double>(b.logits[i]) * b.logits[i];
    apart += std::pow(static_cast<double>(a.logits[i]) - b.logits[i], 2);
  }
  return std::sqrt(apart / squares);
}

TEST_F(Quantize, LogitsStayNearThoseOfTheCheckpoint) {
  MustWrite(DType::kBF16);
  EXPECT_LE(LogitsApart(path_, "f32"), 1e-4) << "the checkpoint is bf16";
  MustWrite(DType::kQ8_0);
  for (const char* compute : {"f32", "bf16", "int8"}) EXPECT_LE(LogitsApart(path_, compute), 0.04) << compute;
  MustWrite(DType::kQ4_0);
  EXPECT_GE(LogitsApart(path_, "f32"), 0.1) << "four bits are not eight";
}

TEST_F(Quantize, BadInputIsNamedAndNothingIsLost) {
  std::ofstream(path_) << "precious";
  EXPECT_THAT(QuantizeModel({.model = "/nowhere", .out = path_}).status().message(), HasSubstr("/nowhere"));
  EXPECT_THAT(QuantizeModel({.model = path_, .out = path_}).status().message(), HasSubstr("expected a Hugging Face"));
  EXPECT_THAT(QuantizeModel({.model = BundledModel(), .out = "/nowhere/x.gguf"}).status().message(),
              HasSubstr("/nowhere/x.gguf"));
  const ChangedModel model("llama-gqa");
  EXPECT_THAT(QuantizeModel({.model = model.path(), .out = model.Path("model.safetensors")}).status().message(),
              HasSubstr("is a file of the model"));
  EXPECT_TRUE(OpenSafetensorsFolder(model.path()).ok());
  std::string content;
  std::ifstream(path_) >> content;
  EXPECT_EQ(content, "precious");
}

// Codes of a NaN look like any others.
TEST_F(Quantize, WeightsThatAreNoNumbersAreNamed) {
  std::ofstream(path_) << "precious";
  const ChangedModel model("llama-gqa");
  for (const DType type : {DType::kQ8_0, DType::kQ4_0, DType::kBF16, DType::kF32}) {
    model.SetNumber("model.layers.1.mlp.down_proj.weight", 161, std::nanf(""));
    EXPECT_THAT(QuantizeModel({.model = model.path(), .out = path_, .type = type}).status().message(),
                AllOf(HasSubstr("\"model.layers.1.mlp.down_proj.weight\" holds"), HasSubstr("nan at [1, 1]")));
  }
  model.SetNumber("model.embed_tokens.weight", 3, INFINITY);
  EXPECT_THAT(QuantizeModel({.model = model.path(), .out = path_}).status().message(), HasSubstr("inf at [0, 3]"));
  model.SetNumber("model.embed_tokens.weight", 3, 1e6f);
  EXPECT_THAT(QuantizeModel({.model = model.path(), .out = path_, .type = DType::kF16}).status().message(),
              AllOf(HasSubstr("\"model.embed_tokens.weight\""), HasSubstr("beyond the range of f16")));
  model.SetNumber("model.embed_tokens.weight", 3, 3.4e38f);
  EXPECT_THAT(QuantizeModel({.model = model.path(), .out = path_, .type = DType::kBF16}).status().message(),
              HasSubstr("beyond the range of bf16, expected smaller ones or f32"));
  std::string content;
  std::ifstream(path_) >> content;
  EXPECT_EQ(content, "precious");
}

}  // namespace
}  // namespace headwise
