#include "model/gguf_names.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "model/families/family.h"
#include "model/load_config.h"
#include "support/golden.h"
#include "weights/published_weights.h"
#include "weights/weight_source.h"

namespace headwise {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

const GgufArchitecture& Of(std::string_view family) {
  const GgufArchitecture* architecture = FindGgufArchitecture(family);
  EXPECT_NE(architecture, nullptr) << family;
  return *architecture;
}

// The name that a source of such a file has for it: without what only some checkpoints' names begin with, and without
// a head.
std::string Usual(const GgufArchitecture& architecture, std::string name) {
  if (const auto head = GgufHeadOf(architecture, name)) name.erase(name.rfind(fmt::format(".{}.", *head)), 2);
  if (architecture.family == "gpt2" && name.starts_with("transformer.")) name.erase(0, 12);
  return name;
}

// Every tensor of every tiny checkpoint has a name in files, no two the same but those of heads, and comes back from
// it.
TEST(GgufNames, EveryTensorOfTheFamiliesGoesBothWays) {
  size_t num_names = 0;
  for (const std::string& folder : GoldenFolders(SourcePath("tests/golden/tiny"))) {
    const ModelConfig config = ReadModelConfig(folder).value();
    if (FindGgufArchitecture(config.family) == nullptr) continue;
    const GgufArchitecture& architecture = Of(config.family);
    std::vector<std::string> in_file;
    for (const std::string& name : OpenWeightsFolder(folder).value()->Names()) {
      if (GgufIsOfExpert(name)) continue;
      const auto file_name = GgufTensorName(architecture, name);
      ASSERT_TRUE(file_name.has_value()) << folder << " " << name;
      EXPECT_THAT(FamilyTensorNames(architecture, *file_name), Contains(Usual(architecture, name))) << folder;
      EXPECT_TRUE(GgufHeadOf(architecture, name) || std::ranges::count(in_file, *file_name) == 0) << folder << name;
      in_file.push_back(*file_name);
      ++num_names;
    }
  }
  EXPECT_GT(num_names, 300u);
}

TEST(GgufNames, SomeLiterally) {
  EXPECT_EQ(GgufTensorName(Of("llama"), "model.layers.3.self_attn.q_proj.weight"), "blk.3.attn_q.weight");
  EXPECT_EQ(GgufTensorName(Of("mistral"), "model.layers.31.mlp.down_proj.weight"), "blk.31.ffn_down.weight");
  EXPECT_EQ(GgufTensorName(Of("qwen2"), "model.layers.0.self_attn.k_proj.bias"), "blk.0.attn_k.bias");
  EXPECT_EQ(GgufTensorName(Of("llama"), "model.layers.0.self_attn.sinks"), "blk.0.attn_sinks.weight");
  EXPECT_EQ(GgufTensorName(Of("llama"), "model.embed_tokens.weight"), "token_embd.weight");
  EXPECT_EQ(GgufTensorName(Of("gpt_neox"), "embed_out.weight"), "output.weight");
  EXPECT_EQ(GgufTensorName(Of("mpt"), "transformer.blocks.2.attn.Wqkv.weight"), "blk.2.attn_qkv.weight");
  // Falcon's norm before the MLP has the first name, that before attention the second.
  EXPECT_EQ(GgufTensorName(Of("falcon"), "transformer.h.1.ln_mlp.bias"), "blk.1.attn_norm.bias");
  EXPECT_EQ(GgufTensorName(Of("falcon"), "transformer.h.1.ln_attn.bias"), "blk.1.attn_norm_2.bias");
  EXPECT_THAT(FamilyTensorNames(Of("falcon"), "blk.1.attn_norm.bias"),
              ElementsAre("transformer.h.1.input_layernorm.bias", "transformer.h.1.ln_mlp.bias"));
}

TEST(GgufNames, SomeOfTheFamiliesWithNamesOfTheirOwn) {
  const auto name = [](const char* family, const char* tensor) {
    return GgufTensorName(Of(family), fmt::format("model.layers.2.{}.weight", tensor)).value_or("none").substr(6);
  };
  EXPECT_EQ(name("qwen3", "self_attn.q_norm"), "attn_q_norm.weight");
  // A norm of one name stands elsewhere from family to family.
  for (const char* family : {"gemma2", "gemma3_text", "olmo2"}) {
    EXPECT_EQ(name(family, "post_attention_layernorm"), "post_attention_norm.weight") << family;
    EXPECT_EQ(name(family, "post_feedforward_layernorm"), "post_ffw_norm.weight") << family;
  }
  EXPECT_EQ(name("gemma2", "pre_feedforward_layernorm"), "ffn_norm.weight");
  EXPECT_EQ(name("glm4", "post_attention_layernorm"), "ffn_norm.weight");
  EXPECT_EQ(name("glm4", "post_self_attn_layernorm"), "post_attention_norm.weight");
  EXPECT_EQ(name("glm4", "post_mlp_layernorm"), "post_ffw_norm.weight");
  for (const char* family : {"phi3", "glm4"}) EXPECT_EQ(name(family, "mlp.gate_up_proj"), "ffn_up.weight") << family;
  EXPECT_EQ(name("phi3", "self_attn.qkv_proj"), "attn_qkv.weight");
  EXPECT_EQ(name("phi", "self_attn.dense"), "attn_output.weight");
  EXPECT_EQ(name("starcoder2", "mlp.c_proj"), "ffn_down.weight");
  EXPECT_EQ(GgufTensorName(Of("gpt2"), "transformer.h.3.attn.c_proj.weight"), "blk.3.attn_output.weight");
  EXPECT_EQ(GgufTensorName(Of("gpt2"), "h.3.mlp.c_proj.bias"), "blk.3.ffn_down.bias");
  EXPECT_EQ(GgufTensorName(Of("gpt2"), "wpe.weight"), "position_embd.weight");
  for (const char* prefix : {"model.", "model.language_model.", "language_model.model."}) {
    EXPECT_EQ(GgufTensorName(Of("gemma3_text"), fmt::format("{}norm.weight", prefix)), "output_norm.weight") << prefix;
  }
}

TEST(GgufNames, HowNumbersDiffer) {
  EXPECT_EQ(GgufOffset(Of("gemma3_text"), "model.layers.0.self_attn.q_norm.weight"), 1.0);
  EXPECT_EQ(GgufOffset(Of("gemma2"), "model.language_model.norm.weight"), 0.0);  // no name of this family
  EXPECT_EQ(GgufOffset(Of("gemma2"), "model.norm.weight"), 1.0);
  EXPECT_EQ(GgufOffset(Of("gemma2"), "model.embed_tokens.weight"), 0.0);
  EXPECT_EQ(GgufOffset(Of("qwen3"), "model.norm.weight"), 0.0);
  EXPECT_TRUE(GgufIsTransposed(Of("gpt2"), "h.0.attn.c_attn.weight"));
  EXPECT_TRUE(GgufIsTransposed(Of("gpt2"), "transformer.h.0.mlp.c_fc.weight"));
  EXPECT_FALSE(GgufIsTransposed(Of("gpt2"), "h.0.mlp.c_fc.bias"));
  EXPECT_FALSE(GgufIsTransposed(Of("gpt2"), "wte.weight"));
  EXPECT_EQ(GgufHeadOf(Of("stablelm"), "model.layers.0.self_attn.q_layernorm.norms.12.weight"), 12);
  EXPECT_EQ(GgufHeadOf(Of("stablelm"), "model.layers.0.self_attn.q_layernorm.norms.weight"), std::nullopt);
  EXPECT_EQ(GgufTensorName(Of("stablelm"), "model.layers.0.self_attn.q_layernorm.norms.01.weight"), std::nullopt);
  EXPECT_EQ(GgufHeadOf(Of("qwen3"), "model.layers.0.self_attn.q_norm.1.weight"), std::nullopt);
}

TEST(GgufNames, WhatIsNoTensorOfTheFamilyHasNoName) {
  for (const char* name : {"blk.0.attn_qkv.weight", "blk.0.ffn_gate_exps.weight", "blk.0.attn_norm.bias",
                           "blk.00.attn_q.weight", "blk.x.attn_q.weight", "blk..attn_q.weight", "blk.0.attn_q",
                           "blk.0.attn_q.weight.weight", "output.bias", "blk.0.attn_sinks", ""}) {
    EXPECT_THAT(FamilyTensorNames(Of("llama"), name), IsEmpty()) << name;
  }
  EXPECT_EQ(GgufTensorName(Of("llama"), "model.layers.0.self_attn.rotary_emb.inv_freq"), std::nullopt);
  EXPECT_EQ(GgufTensorName(Of("llama"), "model.layers.-1.self_attn.q_proj.weight"), std::nullopt);
  EXPECT_EQ(FindGgufArchitecture("baichuan"), nullptr);
}

TEST(GgufNames, RowsAreFamiliesOfTheRegistry) {
  for (const GgufArchitecture& architecture : GgufArchitectures()) {
    EXPECT_EQ(FindFamily(architecture.family, "c").value()->name, architecture.family);
  }
}

TEST(GgufRowOrder, PairsOfLlamaAreNeighbours) {
  ModelConfig config;
  config.num_q_heads = 2;
  config.num_kv_heads = 1;
  config.head_dim = 6;
  EXPECT_THAT(GgufRowOrder(Of("llama"), config, "model.layers.0.self_attn.q_proj.weight"),
              ElementsAre(0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11));
  EXPECT_THAT(GgufRowOrder(Of("mistral"), config, "model.layers.0.self_attn.k_proj.bias"),
              ElementsAre(0, 3, 1, 4, 2, 5));
  for (const char* name : {"model.layers.0.self_attn.v_proj.weight", "model.layers.0.self_attn.o_proj.weight",
                           "model.embed_tokens.weight", "model.layers.0.self_attn.sinks"}) {
    EXPECT_THAT(GgufRowOrder(Of("llama"), config, name), IsEmpty()) << name;
  }
  for (const char* family : {"granite", "smollm3"}) {
    EXPECT_THAT(GgufRowOrder(Of(family), config, "model.layers.0.self_attn.k_proj.weight"),
                ElementsAre(0, 3, 1, 4, 2, 5))
        << family;
  }
  for (const char* family :
       {"qwen2", "qwen3", "gemma2", "gemma3_text", "olmo2", "phi", "starcoder2", "stablelm", "cohere", "glm4"}) {
    EXPECT_THAT(GgufRowOrder(Of(family), config, "model.layers.0.self_attn.q_proj.weight"), IsEmpty()) << family;
  }
}

TEST(GgufRowOrder, FusedMatricesAreBlocks) {
  ModelConfig config;
  config.num_q_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 1;
  // Groups: q q k v, q q k v.
  EXPECT_THAT(GgufRowOrder(Of("falcon"), config, "transformer.h.0.self_attention.query_key_value.weight"),
              ElementsAre(0, 1, 4, 5, 2, 6, 3, 7));
  config.num_q_heads = 2;
  config.head_dim = 2;
  EXPECT_THAT(GgufRowOrder(Of("gpt_neox"), config, "gpt_neox.layers.0.attention.query_key_value.bias"),
              ElementsAre(0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11));
  EXPECT_THAT(GgufRowOrder(Of("mpt"), config, "transformer.blocks.0.attn.Wqkv.weight"), IsEmpty());
}

TEST(GgufRowOrder, IsAPermutation) {
  ModelConfig config;
  config.num_q_heads = 12;
  config.num_kv_heads = 4;
  config.head_dim = 64;
  for (const auto& [family, name] : {std::pair("llama", "model.layers.0.self_attn.q_proj.weight"),
                                     std::pair("llama", "model.layers.0.self_attn.k_proj.weight"),
                                     std::pair("falcon", "transformer.h.0.self_attention.query_key_value.weight")}) {
    std::vector<int64_t> rows = GgufRowOrder(Of(family), config, name);
    std::vector<int64_t> all(rows.size());
    std::iota(all.begin(), all.end(), 0);
    EXPECT_NE(rows, all);
    std::sort(rows.begin(), rows.end());
    EXPECT_EQ(rows, all);
  }
}

}  // namespace
}  // namespace headwise
