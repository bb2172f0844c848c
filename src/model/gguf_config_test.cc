// Metadata as a config.json: the golden models of every family as a file would describe them, and what must be refused.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "model/gguf_export.h"
#include "model/gguf_model.h"
#include "model/load_config.h"
#include "support/describe_config.h"
#include "support/gguf_samples.h"
#include "support/golden.h"
#include "weights/published_weights.h"

namespace headwise {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

ModelConfig GoldenConfig(const std::string& name) {
  const auto config = ReadModelConfig(SourcePath("tests/golden/tiny/" + name));
  EXPECT_TRUE(config.ok()) << config.status().message();
  return config.ok() ? *config : ModelConfig{};
}

// A file with these tensors in one layer.
GgufTensorNames Tensors(std::initializer_list<std::string> in_layer) {
  GgufTensorNames names = {"output.weight"};
  for (const std::string& name : in_layer) names.insert("blk.0." + name);
  return names;
}

Result<ModelConfig> Read(const GgufMetadata& metadata, const GgufTensorNames& tensors = Tensors({})) {
  HW_ASSIGN_OR_RETURN(const Json json, GgufConfigJson(metadata, tensors));
  return ModelConfigFromJson(json, metadata.origin());
}
ModelConfig MustRead(const GgufMetadata& metadata, const GgufTensorNames& tensors = Tensors({})) {
  const auto config = Read(metadata, tensors);
  EXPECT_TRUE(config.ok()) << config.status().message();
  return config.ok() ? *config : ModelConfig{};
}
std::string Error(const GgufMetadata& metadata, const GgufTensorNames& tensors = Tensors({})) {
  return Read(metadata, tensors).status().message();
}

// Without the keys that end so.
GgufMetadata Without(const GgufMetadata& metadata, std::string_view end) {
  GgufMetadata rest(metadata.origin());
  for (const auto& [key, value] : metadata.values()) {
    if (!key.ends_with(end)) rest.Set(key, value);
  }
  return rest;
}

TEST(GgufConfig, EveryGoldenComesBackAsItWas) {
  size_t num_compared = 0;
  for (const std::string& folder : GoldenFolders(SourcePath("tests/golden/tiny"))) {
    ModelConfig expected = ReadModelConfig(folder).value();
    if (FindGgufArchitecture(expected.family) == nullptr) continue;
    const auto file = SampleFile(expected, *OpenWeightsFolder(folder).value(), folder);
    const auto found = GgufModelConfig(*file);
    ASSERT_TRUE(found.ok()) << found.status().message();
    if (!expected.ropes.empty() && expected.ropes[0].scaling == RopeConfig::Scaling::kLlama3) {
      const RopeConfig plain{.rotary_dims = expected.ropes[0].rotary_dims,
                             .theta = expected.ropes[0].theta,
                             .freq_divisors = Llama3Divisors(expected)};
      expected.ropes = {plain};
    }
    EXPECT_EQ(Describe(*found), Describe(expected)) << folder;
    ++num_compared;
  }
  EXPECT_GE(num_compared, 35u);
}

// The checkpoint's own config.json, by the golden's name.
Result<GgufMetadata> Export(const std::string& name, const ModelConfig& config) {
  HW_ASSIGN_OR_RETURN(const Json checkpoint, ReadJsonFile(SourcePath("tests/golden/tiny/" + name + "/config.json")));
  return GgufMetadataOf(config, checkpoint);
}

TEST(GgufConfig, WhatHasNoKeyIsNotWritten) {
  struct Change {
    const char* name;
    void (*change)(ModelConfig&);
    const char* expected;
  };
  const Change changes[] = {
      {"mistral-window", [](ModelConfig& c) { c.layers[1].window = 5; }, "windows of several lengths"},
      {"llama-mha", [](ModelConfig& c) { c.layers[1].window = 5; }, "a window, for which architecture llama"},
      {"granite", [](ModelConfig& c) { c.layers[0].window = 5; }, "a window"},
      {"llama-mha", [](ModelConfig& c) { c.layers[1].rope.reset(); }, "positions that differ from layer to layer"},
      {"gemma3", [](ModelConfig& c) { c.layers[0].rope = 0; }, "positions that differ from layer to layer"},
      {"gemma3", [](ModelConfig& c) { c.ropes[1].scaling = RopeConfig::Scaling::kLinear; }, "a scaled rotary"},
      {"gemma3", [](ModelConfig& c) { c.ropes[0].scaling = RopeConfig::Scaling::kLlama3; }, "rotary factors of some"},
      {"gemma3", [](ModelConfig& c) { c.ropes.pop_back(); }, "several rotary embeddings"},
      {"llama-yarn", [](ModelConfig& c) { c.ropes[0].rounds_range = false; }, "YaRN with \"truncate\" false"},
      {"gpt2", [](ModelConfig& c) { c.softmax_scale = 1.0; }, "an unusual scale of scores"},
      {"gpt2", [](ModelConfig& c) { c.mlp = MlpKind::kGelu; }, "an unusual activation"},
      {"phi", [](ModelConfig& c) { c.mlp = MlpKind::kGelu; }, "an unusual activation"},
      {"gpt_neox", [](ModelConfig& c) { c.mlp = MlpKind::kGeluTanh; }, "an unusual activation"},
  };
  for (const auto& [name, change, expected] : changes) {
    ModelConfig config = GoldenConfig(name);
    EXPECT_TRUE(Export(name, config).ok()) << name;
    change(config);
    const Status status = Export(name, config).status();
    EXPECT_EQ(status.code(), StatusCode::kUnsupported) << name;
    EXPECT_THAT(status.message(), AllOf(StartsWith("family "), HasSubstr(expected))) << name;
  }
}

// Which layers slide is written where the format's readers would think otherwise, and only there.
TEST(GgufConfig, WindowsOfSomeLayersComeBack) {
  for (const auto& [name, prefix] :
       {std::pair("qwen2", "qwen2"), std::pair("qwen3", "qwen3"), std::pair("mistral-window", "llama"),
        std::pair("gemma2", "gemma2"), std::pair("starcoder2", "starcoder2")}) {
    const ModelConfig golden = GoldenConfig(name);
    const auto file = SampleFile(golden, *OpenWeightsFolder(SourcePath("tests/golden/tiny/") + name).value(), "f");
    const std::vector<std::string> tensors = file->Names();
    for (const bool first : {false, true}) {
      for (const bool second : {false, true}) {
        ModelConfig config = golden;
        config.layers[0].window = first ? std::optional<int64_t>(9) : std::nullopt;
        config.layers[1].window = second ? std::optional<int64_t>(9) : std::nullopt;
        const auto metadata = Export(name, config);
        ASSERT_TRUE(metadata.ok()) << metadata.status().message();
        const bool is_usual =
            !(first || second) || (name == std::string("gemma2") ? first && !second : first && second);
        EXPECT_EQ(metadata->Has(fmt::format("{}.attention.sliding_window_pattern", prefix)), !is_usual) << name;
        EXPECT_EQ(MustRead(*metadata, {tensors.begin(), tensors.end()}).layers, config.layers) << name;
      }
    }
  }
}

// Beyond the trained length dynamic NTK scales without a factor too, and YaRN has an amplitude of its own.
TEST(GgufConfig, ScalingsWithAFactorOfOneComeBack) {
  ModelConfig dynamic = GoldenConfig("llama-rope-dynamic");
  dynamic.ropes[0].factor = 1.0;
  ModelConfig yarn = GoldenConfig("llama-yarn");
  yarn.ropes[0].factor = 1.0;
  yarn.ropes[0].amplitude = 1.5;
  for (const auto& [name, config] : {std::pair("llama-rope-dynamic", dynamic), std::pair("llama-yarn", yarn)}) {
    const auto metadata = Export(name, config);
    ASSERT_TRUE(metadata.ok()) << metadata.status().message();
    const ModelConfig read = MustRead(*metadata);
    ASSERT_EQ(read.ropes.size(), 1u) << name;
    EXPECT_EQ(read.ropes[0].scaling, config.ropes[0].scaling) << name;
    EXPECT_EQ(read.ropes[0].factor, 1.0) << name;
    EXPECT_EQ(read.ropes[0].amplitude, config.ropes[0].amplitude) << name;
  }
}

TEST(GgufConfig, FloatsAreTheDecimalsThatTheyWereWrittenFrom) {
  GgufMetadata metadata = SampleMetadata(GoldenConfig("llama-mha"), "f");
  metadata.SetF32("llama.attention.layer_norm_rms_epsilon", static_cast<double>(1e-6f));
  metadata.SetF32("llama.rope.freq_base", static_cast<double>(1234567.0f));
  EXPECT_EQ(MustRead(metadata).norm_eps, 1e-6);
  EXPECT_EQ(MustRead(metadata).ropes.at(0).theta, 1234567.0);
}

TEST(GgufConfig, MistralIsTheLlamaWithAWindowUnlessNamed) {
  GgufMetadata metadata = SampleMetadata(GoldenConfig("mistral-window"), "f");
  EXPECT_EQ(MustRead(metadata).family, "mistral");
  EXPECT_EQ(WindowOfAll(MustRead(metadata)), 16);
  metadata = SampleMetadata(GoldenConfig("mistral-gqa"), "f");
  EXPECT_EQ(MustRead(metadata).family, "mistral");
  EXPECT_EQ(WindowOfAll(MustRead(metadata)), std::nullopt);
  metadata.SetString(kGgufFamilyKey, "");
  EXPECT_EQ(MustRead(metadata).family, "llama");
  metadata.SetU32("llama.attention.sliding_window", 4096);
  EXPECT_EQ(MustRead(metadata).family, "mistral");
  EXPECT_EQ(WindowOfAll(MustRead(metadata)), 4096);
  metadata.SetString(kGgufFamilyKey, "llama");
  EXPECT_THAT(Error(metadata), HasSubstr("f: \"llama.attention.sliding_window\" is 4096"));
}

TEST(GgufConfig, AQwen2WindowIsOfAllLayers) {
  GgufMetadata metadata = SampleMetadata(GoldenConfig("qwen2"), "f");
  const GgufTensorNames tensors = Tensors({"attn_q.bias"});
  EXPECT_EQ(WindowOfAll(MustRead(metadata, tensors)), std::nullopt);
  metadata.SetU32("qwen2.attention.sliding_window", 64);
  EXPECT_EQ(WindowOfAll(MustRead(metadata, tensors)), 64);
  EXPECT_THAT(Error(metadata), HasSubstr("\"attention_bias\": false is not supported"));
  EXPECT_EQ(Error(metadata, Tensors({"attn_q.bias", "attn_output.bias"})),
            "f: tensor \"blk.0.attn_output.bias\" has no place in family qwen2");
}

TEST(GgufConfig, TensorsTellOfBiasesSinksAndTies) {
  const GgufMetadata metadata = SampleMetadata(GoldenConfig("llama-gqa"), "f");
  ModelConfig config = MustRead(metadata);
  EXPECT_FALSE(config.qkv_bias || config.o_bias || config.mlp_bias || config.learned_sinks || config.tied_embeddings);
  config = MustRead(metadata, {"blk.0.attn_k.bias", "blk.0.ffn_down.bias", "blk.0.attn_sinks.weight"});
  EXPECT_TRUE(config.qkv_bias && config.o_bias && config.mlp_bias && config.learned_sinks && config.tied_embeddings);

  const GgufMetadata mpt = SampleMetadata(GoldenConfig("mpt"), "f");
  EXPECT_FALSE(MustRead(mpt).norm_bias || MustRead(mpt).qkv_bias);
  EXPECT_TRUE(MustRead(mpt, Tensors({"attn_norm.bias"})).mlp_bias);
}

TEST(GgufConfig, RopeScalings) {
  GgufMetadata metadata = SampleMetadata(GoldenConfig("llama-mha"), "f");
  EXPECT_EQ(MustRead(metadata).ropes.at(0).scaling, RopeConfig::Scaling::kNone);
  metadata.SetF32("llama.rope.scale_linear", 4.0);  // of the format's first year
  EXPECT_EQ(MustRead(metadata).ropes.at(0).scaling, RopeConfig::Scaling::kLinear);
  metadata.SetF32("llama.rope.scaling.factor", 8.0);
  EXPECT_EQ(MustRead(metadata).ropes.at(0).factor, 8.0);
  metadata.SetString("llama.rope.scaling.type", "none");
  EXPECT_EQ(MustRead(metadata).ropes.at(0).scaling, RopeConfig::Scaling::kNone);
  metadata.SetString("llama.rope.scaling.type", "linear");
  metadata.SetF32("llama.rope.scaling.factor", 0.0);
  EXPECT_EQ(MustRead(metadata).ropes.at(0).scaling, RopeConfig::Scaling::kNone);
}

TEST(GgufConfig, EveryShareOfAHeadMayTurn) {
  GgufMetadata metadata = SampleMetadata(GoldenConfig("gpt_neox"), "f");
  metadata.SetU32("gptneox.attention.head_count", 1);
  metadata.SetU32("gptneox.attention.head_count_kv", 1);
  for (const int64_t head_dim : {64, 80, 98, 128, 254}) {
    for (const char* key : {"embedding_length", "attention.key_length", "attention.value_length"}) {
      metadata.SetU32(fmt::format("gptneox.{}", key), head_dim);
    }
    for (int64_t dims = 2; dims <= head_dim; dims += 2) {
      metadata.SetU32("gptneox.rope.dimension_count", dims);
      ASSERT_EQ(MustRead(metadata).ropes.at(0).rotary_dims, dims) << head_dim;
    }
  }
}

TEST(GgufConfig, AnyRatioOfTheFfnComesBack) {
  GgufMetadata metadata = SampleMetadata(GoldenConfig("mpt"), "f");
  for (int64_t ffn_dim = 1; ffn_dim < 600; ++ffn_dim) {
    metadata.SetU32("mpt.embedding_length", 49 * 4);
    metadata.SetU32("mpt.attention.key_length", 49);
    metadata.SetU32("mpt.attention.value_length", 49);
    metadata.SetU32("mpt.feed_forward_length", ffn_dim);
    ASSERT_EQ(MustRead(metadata).ffn_dim, ffn_dim);
  }
}

// As other programs write it: the window without a pattern.
TEST(GgufConfig, LayersSlideByTheConventionOfTheArchitecture) {
  const auto windows = [](const GgufMetadata& metadata) {
    std::string text;
    for (const LayerConfig& layer : MustRead(metadata, {}).layers) text += layer.window ? 'w' : '-';
    return text;
  };
  GgufMetadata metadata = SampleMetadata(GoldenConfig("gemma2"), "f");
  const auto set_layers = [&](const char* prefix, GgufValue pattern) {
    metadata = Without(metadata, "_pattern");
    metadata.SetU32(fmt::format("{}.block_count", prefix), 7);
    if (!std::holds_alternative<bool>(pattern.value)) {
      metadata.Set(fmt::format("{}.attention.sliding_window_pattern", prefix), std::move(pattern));
    }
  };
  set_layers("gemma2", {GgufType::kBool, false});
  EXPECT_EQ(windows(metadata), "w-w-w-w");
  set_layers("gemma2", {GgufType::kU32, int64_t{3}});
  EXPECT_EQ(windows(metadata), "ww-ww-w");
  set_layers("gemma2", {GgufType::kU32, int64_t{0}});
  EXPECT_EQ(windows(metadata), "wwwwwww");
  metadata.SetU32("gemma2.attention.sliding_window", 0);
  EXPECT_THAT(Error(metadata, {}), HasSubstr("\"gemma2.attention.sliding_window_pattern\" is there, expected with"));
  set_layers("gemma2", {GgufType::kBool, false});
  EXPECT_EQ(windows(metadata), "-------");

  metadata = SampleMetadata(GoldenConfig("gemma3"), "f");
  set_layers("gemma3", {GgufType::kBool, false});
  EXPECT_EQ(windows(metadata), "wwwww-w");
  const ModelConfig config = MustRead(metadata, {});
  EXPECT_EQ(config.layers[5].rope, 0);
  EXPECT_EQ(config.layers[6].rope, 1);
  EXPECT_EQ(config.ropes[1].scaling, RopeConfig::Scaling::kNone);
  metadata.SetF32("gemma3.rope.freq_base_swa", 5000.0);
  EXPECT_EQ(MustRead(metadata, {}).ropes[1].theta, 5000.0);
  EXPECT_EQ(MustRead(metadata, {}).ropes[0].theta, 1e6);
}

TEST(GgufConfig, SmolLm3RotatesAllButEveryFourthLayer) {
  GgufMetadata metadata = Without(SampleMetadata(GoldenConfig("smollm3"), "f"), "_pattern");
  metadata.SetU32("smollm3.block_count", 8);
  std::string rotated;
  for (const LayerConfig& layer : MustRead(metadata, {}).layers) rotated += layer.rope ? 'r' : '-';
  EXPECT_EQ(rotated, "rrr-rrr-");
}

TEST(GgufConfig, TheScaleOfGemmasScores) {
  const auto scale_of = [](const char* name, const char* prefix, int64_t num_layers) {
    GgufMetadata metadata = Without(SampleMetadata(GoldenConfig(name), "f"), "attention.scale");
    metadata = Without(metadata, "_pattern");
    metadata.SetU32(fmt::format("{}.block_count", prefix), num_layers);
    return MustRead(metadata, {}).softmax_scale;
  };
  // By the head dimension of 16 and, in the largest models, by 32 elements of 4 heads.
  EXPECT_EQ(scale_of("gemma2", "gemma2", 26), 0.25);
  EXPECT_EQ(scale_of("gemma2", "gemma2", 46), 1.0 / std::sqrt(8.0));
  EXPECT_EQ(scale_of("gemma3", "gemma3", 46), 0.25);
  EXPECT_EQ(scale_of("gemma3", "gemma3", 62), 1.0 / std::sqrt(8.0));
}

TEST(GgufConfig, CapsThatAreAbsentAreGemmasOwn) {
  GgufMetadata metadata = Without(SampleMetadata(GoldenConfig("gemma2"), "f"), "softcapping");
  EXPECT_EQ(MustRead(metadata, {}).score_cap, 50.0);
  EXPECT_EQ(MustRead(metadata, {}).logit_cap, 30.0);
  metadata.SetF32("gemma2.attn_logit_softcapping", 0.0);
  metadata.SetF32("gemma2.final_logit_softcapping", 0.0);
  EXPECT_EQ(MustRead(metadata, {}).score_cap, std::nullopt);
  EXPECT_EQ(MustRead(metadata, {}).logit_cap, std::nullopt);
}

TEST(GgufConfig, MultipliersThatAreAbsentDoNothing) {
  const ModelConfig config = MustRead(Without(SampleMetadata(GoldenConfig("granite"), "f"), "scale"));
  EXPECT_EQ(config.softmax_scale, 1.0 / std::sqrt(static_cast<double>(config.head_dim)));
  EXPECT_EQ(config.logit_scale, 1.0);
  EXPECT_EQ(config.embedding_scale, 1.0);
  EXPECT_EQ(config.norm_eps, 1e-6);
}

TEST(GgufConfig, LongRopeHasBothTensorsAndNoOtherScaling) {
  GgufMetadata metadata = SampleMetadata(GoldenConfig("phi3"), "f");
  const auto error = [&](std::initializer_list<const char*> tensors) {
    return Error(metadata, GgufTensorNames(tensors.begin(), tensors.end()));
  };
  EXPECT_THAT(error({kGgufRopeShort}), HasSubstr("f: tensor \"rope_factors_long.weight\" is missing"));
  EXPECT_THAT(error({kGgufRopeLong}), HasSubstr("f: tensor \"rope_factors_short.weight\" is missing"));
  EXPECT_THAT(error({}), HasSubstr("\"phi3.rope.scaling.attn_factor\" is 1.3"));
  metadata.SetF32("phi3.rope.scaling.factor", 4.0);
  EXPECT_THAT(error({kGgufRopeShort, kGgufRopeLong}), HasSubstr("\"phi3.rope.scaling.factor\" is 4"));
  metadata.SetString("phi3.rope.scaling.type", "linear");
  EXPECT_THAT(error({kGgufRopeShort, kGgufRopeLong}), HasSubstr("\"phi3.rope.scaling.type\" is \"linear\""));
}

TEST(GgufConfig, StableLmsNormTellsOfItsResidual) {
  GgufMetadata metadata = SampleMetadata(GoldenConfig("stablelm"), "f");
  metadata.SetBool("stablelm.use_parallel_residual", true);  // written for models that say nothing
  EXPECT_EQ(MustRead(metadata, Tensors({"ffn_norm.weight"})).residual, ResidualKind::kSerial);
  EXPECT_EQ(MustRead(metadata).residual, ResidualKind::kParallelSharedNorm);
  metadata.SetBool("stablelm.use_parallel_residual", false);
  EXPECT_THAT(Error(metadata), HasSubstr("\"stablelm.use_parallel_residual\" is false, expected true, as there is no"));
}

TEST(GgufConfig, MptOptions) {
  GgufMetadata metadata = SampleMetadata(GoldenConfig("mpt"), "f");
  metadata.SetF32("mpt.attention.max_alibi_bias", 16.0);
  metadata.SetF32("mpt.attention.clamp_kqv", 0.75);
  metadata.SetF32("mpt.attention.scale", 0.5);
  metadata.SetU32("mpt.attention.head_count_kv", 2);
  const ModelConfig config = MustRead(metadata);
  EXPECT_EQ(config.alibi_slopes[0], 0.0625f);
  EXPECT_EQ(config.qkv_clip, 0.75);
  EXPECT_EQ(config.softmax_scale, 0.5);
  EXPECT_EQ(config.num_kv_heads, 2);
  metadata.SetF32("mpt.attention.layer_norm_rms_epsilon", 1e-5);
  EXPECT_EQ(MustRead(metadata).norm, NormKind::kRms);
  metadata.SetF32("mpt.attention.max_alibi_bias", 0.0);
  EXPECT_THAT(Error(metadata), HasSubstr("\"alibi\": false is not supported"));
}

TEST(GgufConfig, FalconLayoutsAreToldByHeadsAndNorms) {
  GgufMetadata metadata = SampleMetadata(GoldenConfig("falcon-7b-style"), "f");
  EXPECT_EQ(MustRead(metadata).residual, ResidualKind::kParallelSharedNorm);
  EXPECT_EQ(MustRead(metadata).num_kv_heads, 1);
  EXPECT_EQ(MustRead(metadata, Tensors({"ffn_norm.weight"})).residual, ResidualKind::kSerial);
  EXPECT_EQ(MustRead(metadata, Tensors({"attn_norm_2.weight"})).residual, ResidualKind::kParallelTwoNorms);
  EXPECT_TRUE(MustRead(metadata, Tensors({"attn_qkv.bias"})).mlp_bias);
  metadata.SetU32("falcon.attention.head_count_kv", 2);
  EXPECT_EQ(MustRead(metadata).num_kv_heads, 2);
  EXPECT_EQ(MustRead(metadata).residual, ResidualKind::kParallelSharedNorm);
  metadata.SetU32("falcon.attention.head_count_kv", 4);
  metadata.SetF32("falcon.attention.max_alibi_bias", 8.0);
  EXPECT_EQ(MustRead(metadata).num_kv_heads, 4);
  EXPECT_EQ(MustRead(metadata).alibi_slopes[0], 0.0625f);
}

TEST(GgufConfig, TheVocabularyIsAsLargeAsTheTokenizer) {
  GgufMetadata metadata = SampleMetadata(GoldenConfig("llama-mha"), "f");
  EXPECT_EQ(MustRead(metadata).vocab_size, 384);
  metadata.Set("tokenizer.ggml.tokens", {GgufType::kString, std::vector<std::string>{"a", "b", "c", "d", "e"}});
  metadata.SetU32("tokenizer.ggml.eot_token_id", 3);
  metadata.SetU32("tokenizer.ggml.eom_token_id", 4);
  EXPECT_EQ(MustRead(metadata).vocab_size, 5);
  EXPECT_THAT(MustRead(metadata).eos_ids, ElementsAre(1, 3, 4));
  metadata.SetU32("tokenizer.ggml.eot_token_id", 1);
  EXPECT_THAT(MustRead(metadata).eos_ids, ElementsAre(1, 4));
  metadata.SetU32("tokenizer.ggml.bos_token_id", 5);
  EXPECT_EQ(Error(metadata), "f: \"tokenizer.ggml.bos_token_id\" is 5, expected a token id below 5");
}

TEST(GgufConfig, WithoutTokenIdsThereAreNone) {
  ModelConfig golden = GoldenConfig("llama-mha");
  golden.bos_id.reset();
  golden.eos_ids.clear();
  const ModelConfig config = MustRead(SampleMetadata(golden, "f"));
  EXPECT_EQ(config.bos_id, std::nullopt);
  EXPECT_THAT(config.eos_ids, IsEmpty());
}

TEST(GgufConfig, RequiredKeysAreNamedWhenMissing) {
  for (const auto& [name, prefix] :
       {std::pair("llama-mha", "llama"), std::pair("qwen2", "qwen2"), std::pair("gpt_neox", "gptneox"),
        std::pair("falcon-7b-style", "falcon"), std::pair("mpt", "mpt"), std::pair("qwen3", "qwen3"),
        std::pair("gemma2", "gemma2"), std::pair("gemma3", "gemma3"), std::pair("phi3", "phi3"),
        std::pair("phi", "phi2"), std::pair("olmo2", "olmo2"), std::pair("granite", "granite"),
        std::pair("starcoder2", "starcoder2"), std::pair("stablelm", "stablelm"), std::pair("cohere", "command-r"),
        std::pair("smollm3", "smollm3"), std::pair("glm4", "glm4"), std::pair("gpt2", "gpt2")}) {
    const GgufMetadata good = SampleMetadata(GoldenConfig(name), "f");
    const bool rms = good.Has(fmt::format("{}.attention.layer_norm_rms_epsilon", prefix));
    for (const std::string key :
         {"block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
          "vocab_size", rms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon"}) {
      GgufMetadata metadata("f");
      const std::string full = fmt::format("{}.{}", prefix, key);
      for (const auto& [each, value] : good.values()) {
        if (each != full) metadata.Set(each, value);
      }
      EXPECT_THAT(Error(metadata, Tensors({"attn_q.bias"})), AllOf(StartsWith("f: "), HasSubstr(full))) << name;
    }
  }
  EXPECT_THAT(Error(GgufMetadata("f")), AllOf(StartsWith("f: "), HasSubstr("general.architecture")));
}

struct Refusal {
  const char* base;
  const char* key;
  GgufValue value;
  const char* expected;
};

TEST(GgufConfig, NonsenseAndTheUnsupportedAreRefusedByName) {
  const GgufType u32 = GgufType::kU32;
  const GgufType f32 = GgufType::kF32;
  const GgufType text = GgufType::kString;
  const Refusal refusals[] = {
      {"llama-mha",
       "general.architecture",
       {text, std::string("gemma")},
       "\"general.architecture\" is \"gemma\", expected one of: llama, qwen2, qwen3, gemma2, gemma3, phi3,"},
      {"llama-mha", "headwise.family", {text, std::string("qwen2")}, "\"headwise.family\" is \"qwen2\", expected a"},
      {"llama-mha", "llama.block_count", {u32, int64_t{0}}, "\"llama.block_count\" is 0, expected 1 to"},
      {"llama-mha", "llama.block_count", {u32, int64_t{5000}}, "layers is 5000"},
      {"llama-mha", "llama.block_count", {text, std::string("2")}, "llama.block_count"},
      {"llama-mha", "llama.context_length", {GgufType::kI32, int64_t{-1}}, "\"llama.context_length\" is -1"},
      {"llama-mha", "llama.embedding_length", {GgufType::kU64, int64_t{1} << 40}, "is 1099511627776, expected 1 to"},
      {"llama-mha", "llama.attention.head_count", {u32, std::vector<int64_t>{4, 4}}, "llama.attention.head_count"},
      {"llama-mha", "llama.attention.head_count_kv", {u32, int64_t{3}}, "4 query heads are not a multiple of 3"},
      {"llama-mha", "llama.attention.value_length", {u32, int64_t{8}}, "\"llama.attention.value_length\" is 8"},
      {"llama-mha", "llama.rope.dimension_count", {u32, int64_t{8}}, "\"llama.rope.dimension_count\" is 8"},
      {"llama-mha", "llama.rope.freq_base", {f32, 0.5}, "rope theta is 0.5"},
      {"llama-mha", "llama.rope.freq_base", {f32, std::nan("")}, "\"llama.rope.freq_base\" is nan"},
      {"llama-mha",
       "llama.rope.scaling.type",
       {text, std::string("longrope")},
       "tensor \"rope_factors_short.weight\" is missing"},
      {"llama-mha", "llama.rope.scaling.type", {text, std::string("ntk")}, "\"llama.rope.scaling.type\" is \"ntk\""},
      {"llama-rope-linear", "llama.rope.scaling.factor", {f32, 0.5}, "\"llama.rope.scaling.factor\" is 0.5"},
      {"llama-mha", "llama.attention.layer_norm_rms_epsilon", {f32, -1.0}, "norm epsilon is -1"},
      {"llama-mha", "llama.expert_count", {u32, int64_t{8}}, "\"llama.expert_count\" is 8"},
      {"llama-mha", "llama.logit_scale", {f32, 0.25}, "\"llama.logit_scale\" is 0.25"},
      {"llama-mha", "llama.attention.scale", {f32, 0.25}, "\"llama.attention.scale\" is 0.25"},
      {"llama-mha", "llama.attention.causal", {GgufType::kBool, false}, "\"llama.attention.causal\" is false"},
      {"llama-mha", "llama.attention.max_alibi_bias", {f32, 8.0}, "\"llama.attention.max_alibi_bias\" is 8"},
      {"llama-mha", "tokenizer.ggml.eos_token_id", {u32, int64_t{384}}, "expected a token id below 384"},
      {"mistral-window", "llama.attention.sliding_window", {GgufType::kI32, int64_t{-5}}, "is -5, expected 0 to"},
      {"gpt_neox", "gptneox.rope.dimension_count", {u32, int64_t{64}}, "\"gptneox.rope.dimension_count\" is 64"},
      {"gpt_neox", "gptneox.attention.head_count_kv", {u32, int64_t{1}}, "\"gptneox.attention.head_count_kv\" is 1"},
      {"gpt_neox", "gptneox.attention.sliding_window", {u32, int64_t{9}}, "\"gptneox.attention.sliding_window\" is 9"},
      {"gpt_neox", "gptneox.attention.key_length", {u32, int64_t{16}}, "value_length\" is 32"},
      {"falcon-7b-style", "falcon.attention.max_alibi_bias", {f32, 4.0}, "\"falcon.attention.max_alibi_bias\" is 4"},
      {"falcon-7b-style", "falcon.embedding_length", {u32, int64_t{128}}, "\"falcon.attention.key_length\" is 16"},
      {"mpt", "mpt.attention.clamp_kqv", {f32, -1.0}, "\"clip_qkv\" is -1"},
      {"llama-yarn", "llama.rope.scaling.yarn_attn_factor", {f32, 0.5}, "rope.scaling.yarn_attn_factor\" is 0.5"},
      {"qwen3", "qwen3.attn_logit_softcapping", {f32, 50.0}, "\"qwen3.attn_logit_softcapping\" is 50"},
      {"qwen3", "qwen3.rope.freq_base_swa", {f32, 100.0}, "\"qwen3.rope.freq_base_swa\" is 100"},
      {"qwen3",
       "qwen3.attention.sliding_window_pattern",
       {GgufType::kBool, std::vector<int64_t>{1, 0, 1}},
       "\"qwen3.attention.sliding_window_pattern\" is an array of 3, expected one entry for each of 2 layers"},
      {"qwen3", "qwen3.attention.sliding_window_pattern", {GgufType::kI32, int64_t{-1}}, "_pattern\" is -1"},
      {"gemma2", "gemma2.attn_logit_softcapping", {f32, -1.0}, "\"attn_logit_softcapping\" is -1"},
      {"gemma3", "gemma3.embedding_scale", {f32, 2.0}, "\"gemma3.embedding_scale\" is 2"},
      {"gemma3", "gemma3.rope.dimension_count", {u32, int64_t{8}}, "\"gemma3.rope.dimension_count\" is 8"},
      {"olmo2", "olmo2.attention.sliding_window", {u32, int64_t{4096}}, "\"olmo2.attention.sliding_window\" is 4096"},
      {"granite", "granite.logit_scale", {f32, -2.0}, "\"logits_scaling\" is -2"},
      {"granite", "granite.expert_count", {u32, int64_t{8}}, "\"granite.expert_count\" is 8"},
      {"granite", "granite.rope.scaling.finetuned", {GgufType::kBool, false}, "rope.scaling.finetuned\" is false"},
      {"glm4",
       "glm4.rope.dimension_sections",
       {GgufType::kI32, std::vector<int64_t>{8, 12, 12, 0}},
       "\"glm4.rope.dimension_sections\" is there"},
      {"glm4", "glm4.nextn_predict_layers", {u32, int64_t{1}}, "\"glm4.nextn_predict_layers\" is 1"},
      {"glm4", "glm4.rope.dimension_count", {u32, int64_t{32}}, "\"glm4.rope.dimension_count\" is 32"},
      {"cohere", "command-r.attention.scale", {f32, 0.5}, "\"command-r.attention.scale\" is 0.5"},
      {"phi", "phi2.embedding_length", {u32, int64_t{64}}, "\"phi2.attention.key_length\" is 8"},
      {"gpt2", "gpt2.attention.head_count_kv", {u32, int64_t{2}}, "\"gpt2.attention.head_count_kv\" is 2"},
      {"starcoder2", "starcoder2.attention.rope_pattern", {u32, int64_t{2}}, "starcoder2.attention.rope_pattern\" is"},
  };
  for (const auto& [base, key, value, expected] : refusals) {
    GgufMetadata metadata = SampleMetadata(GoldenConfig(base), "f");
    metadata.Set(key, value);
    EXPECT_THAT(Error(metadata), AllOf(StartsWith("f: "), HasSubstr(expected))) << base << " " << key;
  }
  GgufMetadata odd = SampleMetadata(GoldenConfig("llama-mha"), "f");
  GgufMetadata without_length("f");
  for (const auto& [key, value] : odd.values()) {
    if (!key.ends_with("_length") || key.ends_with("embedding_length")) without_length.Set(key, value);
  }
  without_length.SetU32("llama.embedding_length", 65);
  EXPECT_THAT(Error(without_length), HasSubstr("\"llama.attention.head_count\" is 4, expected a divisor of"));
}

}  // namespace
}  // namespace headwise
