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

TEST(GgufConfig, EveryGoldenComesBackAsItWas) {
  size_t num_compared = 0;
  for (const std::string& folder : GoldenFolders(SourcePath("tests/golden/tiny"))) {
    ModelConfig expected = ReadModelConfig(folder).value();
    if (FindGgufArchitecture(expected.family) == nullptr) continue;
    const auto file = SampleFile(expected, *OpenSafetensorsFolder(folder).value(), folder);
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
  EXPECT_GE(num_compared, 19u);
}

TEST(GgufConfig, LayersThatDifferAreNotWritten) {
  for (const char* name : {"qwen2", "mistral-window"}) {
    ModelConfig config = GoldenConfig(name);
    ASSERT_TRUE(GgufMetadataOf(config, Json::object()).ok());
    config.layers[1].window = 5;
    const Status status = GgufMetadataOf(config, Json::object()).status();
    EXPECT_EQ(status.code(), StatusCode::kUnsupported) << name;
    EXPECT_THAT(status.message(), HasSubstr("windows or positions differ from layer to layer")) << name;
  }
  ModelConfig config = GoldenConfig("llama-mha");
  config.layers[1].rope = std::nullopt;
  EXPECT_EQ(GgufMetadataOf(config, Json::object()).status().code(), StatusCode::kUnsupported);
  config.layers[0].rope = std::nullopt;
  EXPECT_EQ(GgufMetadataOf(config, Json::object()).status().code(), StatusCode::kUnsupported);
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
        std::pair("falcon-7b-style", "falcon"), std::pair("mpt", "mpt")}) {
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
       "\"general.architecture\" is \"gemma\", expected one of: llama, qwen2, gptneox, falcon, mpt"},
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
       "\"llama.rope.scaling.type\" is \"longrope\""},
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
