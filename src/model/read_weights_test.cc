// What a checkpoint holds and its config does not know of.
#include "model/read_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "model/load_config.h"
#include "support/fake_source.h"
#include "support/golden.h"
#include "weights/published_weights.h"

namespace headwise {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Checkpoint {
  explicit Checkpoint(const std::string& name)
      : folder(SourcePath("tests/golden/tiny/" + name)),
        config(*ReadModelConfig(folder)),
        file(*OpenWeightsFolder(folder)),
        source(*file) {}
  Status Read() const { return ReadModelWeights(config, source).status(); }

  std::string folder;
  ModelConfig config;
  std::unique_ptr<WeightSource> file;
  FakeSource source;
};

float One(int64_t /*element*/) {
  return 1.0f;
}

TEST(ReadModelWeights, EveryGoldenIsReadWhole) {
  for (const std::string& folder : GoldenFolders(SourcePath("tests/golden/tiny"))) {
    const Checkpoint checkpoint(std::filesystem::path(folder).filename().string());
    const auto read = ReadModelWeights(checkpoint.config, checkpoint.source);
    ASSERT_TRUE(read.ok()) << read.status().message();
    EXPECT_EQ(read->names.size(), checkpoint.source.Names().size()) << folder;
  }
}

TEST(ReadModelWeights, FewerLayersThanTheFileHasIsAnError) {
  for (const char* name : {"llama-gqa", "gpt_neox", "falcon-grouped", "mpt", "baichuan-7b", "qwen2"}) {
    Checkpoint checkpoint(name);
    checkpoint.config.num_layers = 1;
    checkpoint.config.layers.resize(1);
    EXPECT_THAT(checkpoint.Read().message(),
                AllOf(HasSubstr("fake: tensor"), HasSubstr(".1."), HasSubstr("others"), HasSubstr("with 1 layers")));
  }
}

TEST(ReadModelWeights, BiasesThatTheConfigDeniesAreAnError) {
  Checkpoint llama("llama-bias");
  llama.config.qkv_bias = llama.config.o_bias = false;
  EXPECT_THAT(llama.Read().message(), HasSubstr("\"model.layers.0.self_attn.k_proj.bias\" and"));
  llama.config.mlp_bias = false;
  EXPECT_THAT(llama.Read().message(), HasSubstr("no biases"));
  Checkpoint neox("gpt_neox");
  neox.config.qkv_bias = neox.config.o_bias = false;
  EXPECT_THAT(neox.Read().message(), HasSubstr("attention.dense.bias"));
}

TEST(ReadModelWeights, PartsOfOtherArchitecturesAreAnError) {
  Checkpoint checkpoint("llama-gqa");
  checkpoint.source.Make("model.layers.1.self_attn.q_norm.weight", {16}, One);
  EXPECT_THAT(checkpoint.Read().message(), HasSubstr("\"model.layers.1.self_attn.q_norm.weight\" has no place"));
}

TEST(ReadModelWeights, BuffersThatFollowFromTheConfigMayBeThere) {
  Checkpoint llama("llama-mha");
  llama.source.Make("model.layers.0.self_attn.rotary_emb.inv_freq", {8}, One);
  llama.source.Make("model.rotary_emb.inv_freq", {8}, One);
  EXPECT_TRUE(llama.Read().ok());
  Checkpoint neox("gpt_neox");
  neox.source.Make("gpt_neox.layers.0.attention.bias", {1, 1, 8, 8}, One);
  neox.source.Make("gpt_neox.layers.1.attention.masked_bias", {1}, One);
  neox.source.Make("gpt_neox.layers.1.attention.rotary_emb.inv_freq", {8}, One);
  EXPECT_TRUE(neox.Read().ok());
  // Of its own family alone.
  llama.source.Make("gpt_neox.layers.0.attention.dense.bias", {8}, One);
  EXPECT_FALSE(llama.Read().ok());
}

TEST(ReadModelWeights, ATiedOutputMayBeThereOnceMoreIfItIsTheSame) {
  Checkpoint checkpoint("qwen2");
  ASSERT_TRUE(checkpoint.config.tied_embeddings);
  checkpoint.source["lm_head.weight"] = checkpoint.source["model.embed_tokens.weight"];
  std::vector<float> copy(static_cast<size_t>(checkpoint.source["lm_head.weight"].shape.num_elements()));
  const ConstTensorView embedding = checkpoint.source["model.embed_tokens.weight"];
  ASSERT_EQ(embedding.dtype, DType::kF32);
  std::copy_n(static_cast<const float*>(embedding.data), copy.size(), copy.begin());
  checkpoint.source["lm_head.weight"].data = copy.data();
  EXPECT_TRUE(checkpoint.Read().ok()) << checkpoint.Read().message();
  copy.back() += 1;
  EXPECT_THAT(checkpoint.Read().message(), HasSubstr("\"lm_head.weight\" has no place"));
}

TEST(ReadModelWeights, SmallTensorsAreNumbers) {
  Checkpoint llama("llama-bias");
  llama.source.Make("model.layers.1.input_layernorm.weight", {llama.config.model_dim},
                    [](int64_t i) { return i == 5 ? NAN : 1.0f; });
  EXPECT_THAT(llama.Read().message(),
              HasSubstr("\"model.layers.1.input_layernorm.weight\" holds nan at [5], expected"));
  Checkpoint neox("gpt_neox");
  const std::string fused = "gpt_neox.layers.0.attention.query_key_value.bias";
  neox.source.Make(fused, neox.source[fused].shape, [](int64_t i) { return i == 9 ? -INFINITY : 1.0f; });
  EXPECT_THAT(neox.Read().message(), HasSubstr("\"" + fused + "\" holds -inf at [9]"));
}

}  // namespace
}  // namespace headwise
