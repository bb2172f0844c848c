// The weights of a .gguf file: every golden model as a file gives the family the same matrices as its checkpoint.
#include "model/gguf_model.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include "model/families/family.h"
#include "model/families/weight_reader.h"
#include "model/load_config.h"
#include "model/model.h"
#include "support/describe_config.h"
#include "support/gguf_samples.h"
#include "support/golden.h"
#include "tensor/blocks.h"
#include "weights/published_weights.h"

namespace headwise {
namespace {

using ::testing::HasSubstr;

std::string Bytes(const ConstTensorView& view) {
  if (!view.present()) return "none";
  return std::string(static_cast<const char*>(view.data), static_cast<size_t>(view.size_bytes()));
}

void ExpectSame(const ModelWeights& found, const ModelWeights& expected) {
  const auto same = [](const ConstTensorView& a, const ConstTensorView& b) {
    EXPECT_EQ(a.present(), b.present());
    EXPECT_EQ(a.shape, b.shape);
    EXPECT_TRUE(Bytes(a) == Bytes(b));
  };
  same(found.embedding.rows(), expected.embedding.rows());
  same(found.output.weight.rows(), expected.output.weight.rows());
  same(found.final_norm.weight, expected.final_norm.weight);
  same(found.final_norm.bias, expected.final_norm.bias);
  same(found.output.bias, expected.output.bias);
  ASSERT_EQ(found.positions.present(), expected.positions.present());
  if (found.positions.present()) same(found.positions.rows(), expected.positions.rows());
  ASSERT_EQ(found.layers.size(), expected.layers.size());
  for (size_t i = 0; i < found.layers.size(); ++i) {
    const LayerWeights& a = found.layers[i];
    const LayerWeights& b = expected.layers[i];
    for (const auto part :
         {&LayerWeights::q, &LayerWeights::k, &LayerWeights::v, &LayerWeights::o, &LayerWeights::gate,
          &LayerWeights::up, &LayerWeights::down, &LayerWeights::router, &LayerWeights::shared_gate}) {
      ASSERT_EQ((a.*part).weight.present(), (b.*part).weight.present());
      if ((a.*part).weight.present()) same((a.*part).weight.rows(), (b.*part).weight.rows());
      same((a.*part).bias, (b.*part).bias);
    }
    for (const auto part : {&LayerWeights::norm, &LayerWeights::mlp_norm, &LayerWeights::post_norm,
                            &LayerWeights::mlp_post_norm, &LayerWeights::q_norm, &LayerWeights::k_norm}) {
      same((a.*part).weight, (b.*part).weight);
      same((a.*part).bias, (b.*part).bias);
    }
    same(a.sink_logits, b.sink_logits);
    ASSERT_EQ(a.experts.size(), b.experts.size());
    for (size_t x = 0; x < a.experts.size(); ++x) {
      for (const auto part : {&ExpertWeights::gate, &ExpertWeights::up, &ExpertWeights::down}) {
        same((a.experts[x].*part).weight.rows(), (b.experts[x].*part).weight.rows());
        same((a.experts[x].*part).bias, (b.experts[x].*part).bias);
      }
    }
  }
}

struct Sample {
  ModelConfig config;
  std::unique_ptr<FakeGgufFile> file;
};
Sample GoldenSample(const std::string& name) {
  const std::string folder = SourcePath("tests/golden/tiny/" + name);
  Sample sample;
  sample.config = ReadModelConfig(folder).value();
  sample.file = SampleFile(sample.config, *OpenWeightsFolder(folder).value(), "f");
  return sample;
}

TEST(GgufModel, EveryGoldenHasTheWeightsOfItsCheckpoint) {
  size_t num_compared = 0;
  for (const std::string& folder : GoldenFolders(SourcePath("tests/golden/tiny"))) {
    SCOPED_TRACE(folder);
    const ModelConfig config = ReadModelConfig(folder).value();
    if (FindGgufArchitecture(config.family) == nullptr) continue;
    const auto checkpoint = OpenWeightsFolder(folder).value();
    auto source = GgufModelWeights(SampleFile(config, *checkpoint, folder), config);
    ASSERT_TRUE(source.ok()) << source.status().message();
    const ModelFamily* family = FindFamily(config.family, folder).value();
    const auto found = family->read_weights(config, **source);
    const auto expected = family->read_weights(config, *checkpoint);
    ASSERT_TRUE(found.ok()) << found.status().message();
    ASSERT_TRUE(expected.ok());
    ExpectSame(*found, *expected);
    ++num_compared;
  }
  EXPECT_GE(num_compared, 35u);
}

TEST(GgufModel, OnlyRowsInAnotherOrderAreCopied) {
  const auto read = [](Sample& sample) {
    const auto source = GgufModelWeights(std::move(sample.file), sample.config).value();
    return FindFamily(sample.config.family, "c").value()->read_weights(sample.config, *source).value().layers[1];
  };
  // Views outlive the source here: only addresses are looked at.
  const auto data = [](const FakeGgufFile& file, const char* name) { return file.Get(name).value().data; };
  Sample llama = GoldenSample("llama-gqa");
  const void* const up = data(*llama.file, "blk.1.ffn_up.weight");
  const void* const v = data(*llama.file, "blk.1.attn_v.weight");
  const void* const q = data(*llama.file, "blk.1.attn_q.weight");
  const LayerWeights layer = read(llama);
  EXPECT_EQ(layer.up.weight.rows().data, up);
  EXPECT_EQ(layer.v.weight.rows().data, v);
  EXPECT_NE(layer.q.weight.rows().data, q);

  Sample neox = GoldenSample("gpt_neox");
  const void* const qkv = data(*neox.file, "blk.1.attn_qkv.weight");
  EXPECT_EQ(read(neox).q.weight.rows().data, qkv);
}

TEST(GgufModel, WhatTheFamilyWouldNotReadIsRefused) {
  const float one = 1.0f;
  const ConstTensorView scalar(&one, DType::kF32, {1});
  const auto error_with = [&](const std::string& name) {
    Sample sample = GoldenSample("llama-gqa");
    sample.file->Add(name, scalar);
    return GgufModelWeights(std::move(sample.file), sample.config).status().message();
  };
  EXPECT_EQ(error_with("blk.0.ffn_gate_exps.weight"),
            "f: tensor \"blk.0.ffn_gate_exps.weight\" has no place in family llama");
  EXPECT_EQ(error_with("output.bias"), "f: tensor \"output.bias\" has no place in family llama");
  // A bias of the second layer alone, and a layer too many.
  for (const char* name : {"blk.1.attn_q.bias", "blk.2.attn_q.weight", "blk.10.attn_q.weight"}) {
    EXPECT_EQ(error_with(name), fmt::format("f: tensor \"{}\" is there, expected 2 layers of the same tensors", name));
  }
}

TEST(GgufModel, MissingTensorsAreNamedAsInTheFile) {
  Sample sample = GoldenSample("llama-gqa");
  sample.file->Erase("blk.1.attn_q.weight");
  const auto source = GgufModelWeights(std::move(sample.file), sample.config).value();
  EXPECT_EQ(source->Get("model.layers.1.self_attn.q_proj.weight").status().message(),
            "f: tensor \"blk.1.attn_q.weight\" is missing, which is \"model.layers.1.self_attn.q_proj.weight\" in "
            "family llama");
}

TEST(GgufModel, NormsOfHeadsInBlocksAreRefused) {
  FakeGgufFile file(GgufMetadata("f"));
  const std::vector<std::byte> blocks(static_cast<size_t>(BytesOf(DType::kQ8_0, 64)));
  file.Add("n.weight", {blocks.data(), DType::kQ8_0, {2, 32}});
  const ModelConfig config;
  ModelWeights weights;
  WeightReader reader(config, file, weights);
  NormWeights norm;
  EXPECT_EQ(reader.Norm("n", {2, 32}, Bias::kNone, norm).message(),
            "f: tensor \"n.weight\" has the block format q8_0, expected plain numbers");
}

TEST(GgufModel, FactorsOfRotationsThatAreNotThereAreRefused) {
  const std::vector<float> factors(4, 1.0f);
  const ConstTensorView view(factors.data(), DType::kF32, {4});
  for (const char* name : {"gpt2", "mpt", "falcon-alibi"}) {
    Sample sample = GoldenSample(name);
    for (const char* tensor : {kGgufRopeShort, kGgufRopeLong}) sample.file->Add(tensor, view);
    EXPECT_THAT(GgufModelConfig(*sample.file).status().message(), HasSubstr("without a rotary embedding")) << name;
  }
  Sample sample = GoldenSample("phi3");
  sample.file->Add(kGgufRopeFreqs, view);
  EXPECT_THAT(GgufModelConfig(*sample.file).status().message(), HasSubstr("expected one without factors"));
  sample = GoldenSample("phi3");
  sample.file->Add(kGgufRopeLong, {factors.data(), DType::kF32, {3}});
  EXPECT_THAT(GgufModelConfig(*sample.file).status().message(), HasSubstr("\"long_factor\" has 3 numbers"));
}

TEST(GgufModel, DivisorsOfAnotherNumberAreRefused) {
  Sample sample = GoldenSample("llama-rope-llama3");
  const float two[] = {1.0f, 1.0f};
  sample.file->Add(kGgufRopeFreqs, {two, DType::kF32, {2}});
  EXPECT_THAT(GgufModelConfig(*sample.file).status().message(), HasSubstr("\"rope_freqs.weight\" is f32 [2]"));
}

TEST(GgufModel, ARecordedHashIsThatOfTheCheckpoint) {
  Sample plain = GoldenSample("qwen2");
  const auto checkpoint = OpenWeightsFolder(SourcePath("tests/golden/tiny/qwen2")).value();
  // Nothing is lost in this one: the same tensors in the same order of rows.
  EXPECT_EQ(SourceHash(*GgufModelWeights(std::move(plain.file), plain.config).value()), SourceHash(*checkpoint));

  Sample sample = GoldenSample("llama-mha");
  GgufMetadata metadata = sample.file->metadata();
  metadata.SetString(kGgufSourceHashKey, "0123abcd");
  auto file = std::make_unique<FakeGgufFile>(metadata);
  for (const std::string& name : sample.file->Names()) file->Add(name, sample.file->Get(name).value());
  EXPECT_EQ(SourceHash(*GgufModelWeights(std::move(file), sample.config).value()), "0123abcd");
}

TEST(GgufModel, APathIsAFileWhenItIsOneOrWouldBe) {
  EXPECT_FALSE(IsGgufPath(BundledModel()));
  EXPECT_TRUE(IsGgufPath(BundledModel() + "/config.json"));  // and opening it says what it is not
  EXPECT_TRUE(IsGgufPath("/no/such/file.gguf"));
  EXPECT_FALSE(IsGgufPath("/no/such/folder"));
}

// The bundled model as others quantised it: the same config, and every matrix within half a step of its blocks' scales,
// which it would not be with rows in another order.
TEST(GgufModel, AFileOfOthersIsTheBundledModel) {
  const std::string path = SourcePath("../shared/models/gguf/headwise-17m-q8_0.gguf");
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "the file is not beside the project (" << path << ")";
  const auto config = ReadModelConfig(path);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(Describe(*config), Describe(ReadModelConfig(BundledModel()).value()));

  const auto source = OpenModelWeights(path, *config);
  ASSERT_TRUE(source.ok()) << source.status().message();
  const auto checkpoint = OpenModelWeights(BundledModel(), *config).value();
  EXPECT_EQ((*source)->Names(), checkpoint->Names());
  for (const std::string& name : checkpoint->Names()) {
    const ConstTensorView found = (*source)->Get(name).value();
    const ConstTensorView expected = checkpoint->Get(name).value();
    ASSERT_EQ(found.shape, expected.shape) << name;
    const auto columns = static_cast<size_t>(expected.shape[expected.shape.rank() - 1]);
    const auto size = static_cast<size_t>(expected.shape.num_elements());
    std::vector<float> a(size), b(size);
    ToF32(found.dtype, found.data, expected.shape.num_elements(), a.data());
    ToF32(expected.dtype, expected.data, expected.shape.num_elements(), b.data());
    const std::vector<int64_t> rows = (*source)->RowOrder(name);
    constexpr size_t kBlock = 32;
    for (size_t begin = 0; begin < size; begin += kBlock) {
      const size_t row = begin / columns;
      const size_t from = rows.empty() ? begin : static_cast<size_t>(rows[row]) * columns + begin % columns;
      float largest = 0;
      for (size_t i = 0; i < kBlock; ++i) largest = std::max(largest, std::abs(b[from + i]));
      // Half a step, and the scale's own rounding to f16 at the largest of 127 steps.
      const float limit = largest / 127.0f * (0.5f + 127.0f / 2048.0f);
      for (size_t i = 0; i < kBlock; ++i) ASSERT_NEAR(a[begin + i], b[from + i], limit) << name << " " << begin + i;
    }
  }
}

}  // namespace
}  // namespace headwise
