#include "model/gguf_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "model/families/family.h"
#include "model/load_config.h"
#include "support/golden.h"
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

// Every tensor of every tiny checkpoint has a name in files, no two the same, and comes back from it.
TEST(GgufNames, EveryTensorOfTheFamiliesGoesBothWays) {
  size_t num_names = 0;
  for (const std::string& folder : GoldenFolders(SourcePath("tests/golden/tiny"))) {
    const ModelConfig config = ReadModelConfig(folder).value();
    if (FindGgufArchitecture(config.family) == nullptr) continue;
    const GgufArchitecture& architecture = Of(config.family);
    std::vector<std::string> in_file;
    for (const std::string& name : OpenSafetensorsFolder(folder).value()->Names()) {
      const auto file_name = GgufTensorName(architecture, name);
      ASSERT_TRUE(file_name.has_value()) << folder << " " << name;
      EXPECT_THAT(FamilyTensorNames(architecture, *file_name), Contains(name)) << folder;
      EXPECT_THAT(in_file, ::testing::Not(Contains(*file_name))) << folder;
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
  EXPECT_THAT(GgufRowOrder(Of("qwen2"), config, "model.layers.0.self_attn.q_proj.weight"), IsEmpty());
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
