// Each family's tensors: found, checked, taken apart.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "model/families/family.h"
#include "model/load_config.h"
#include "model/read_weights.h"
#include "support/fake_source.h"
#include "support/golden.h"
#include "weights/published_weights.h"

namespace headwise {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Loaded {
  ModelConfig config;
  std::unique_ptr<WeightSource> source;
  const ModelFamily* family = nullptr;

  Result<ModelWeights> Read() const { return family->read_weights(config, *source); }
  Result<ModelWeights> Read(const WeightSource& from) const { return family->read_weights(config, from); }
};

Loaded Load(const std::string& folder) {
  auto config = ReadModelConfig(folder);
  auto source = OpenWeightsFolder(folder);
  EXPECT_TRUE(config.ok() && source.ok()) << config.status().message() << source.status().message();
  Loaded loaded{.config = *config, .source = *std::move(source)};
  loaded.family = FindFamily(loaded.config.family, folder).value();
  return loaded;
}
Loaded LoadGolden(const std::string& name) {
  return Load(SourcePath("tests/golden/tiny/" + name));
}

// What model_weights.h promises.
void ExpectShapes(const ModelConfig& c, const ModelWeights& w) {
  const int64_t q_rows = c.num_q_heads * c.head_dim;
  const int64_t kv_rows = c.num_kv_heads * c.head_dim;
  const auto expect_vector = [](const ConstTensorView& view, int64_t size, bool present) {
    EXPECT_EQ(view.present(), present);
    if (!view.present()) return;
    EXPECT_EQ(view.dtype, DType::kF32);
    EXPECT_EQ(view.shape, Shape({size}));
  };
  const auto expect_linear = [&](const LinearWeights& linear, int64_t rows, int64_t columns, bool bias) {
    EXPECT_TRUE(linear.weight.present());
    EXPECT_EQ(linear.weight.shape, Shape({rows, columns}));
    expect_vector(linear.bias, rows, bias);
  };
  const auto expect_norm = [&](const NormWeights& norm, bool present) {
    expect_vector(norm.weight, c.model_dim, present);
    expect_vector(norm.bias, c.model_dim, present && c.norm_bias);
  };
  // One for all heads, or one for each.
  const auto expect_heads_norm = [&](const NormWeights& norm, int64_t num_heads) {
    ASSERT_EQ(norm.weight.present(), c.qk_norm != QkNorm::kNone);
    if (!norm.weight.present()) return;
    const int64_t size = norm.weight.shape.num_elements();
    EXPECT_TRUE(size == num_heads * c.head_dim || (c.qk_norm == QkNorm::kHeads && size == c.head_dim)) << size;
  };
  EXPECT_EQ(w.positions.present(), c.positions == PositionKind::kLearned);
  EXPECT_EQ(w.embedding.shape, Shape({c.vocab_size, c.model_dim}));
  EXPECT_EQ(w.output.weight.shape, Shape({c.vocab_size, c.model_dim}));
  EXPECT_EQ(w.output.weight == w.embedding, c.tied_embeddings);
  expect_norm(w.final_norm, true);
  ASSERT_EQ(static_cast<int64_t>(w.layers.size()), c.num_layers);
  for (int64_t layer_idx = 0; layer_idx < c.num_layers; ++layer_idx) {
    const LayerWeights& layer = w.layers[static_cast<size_t>(layer_idx)];
    const bool has_before = c.norm_places != NormPlaces::kAfter;
    const bool has_after = c.norm_places != NormPlaces::kBefore;
    expect_norm(layer.norm, has_before);
    expect_norm(layer.post_norm, has_after);
    expect_norm(layer.mlp_norm, has_before && c.residual != ResidualKind::kParallelSharedNorm);
    expect_norm(layer.mlp_post_norm, has_after);
    expect_heads_norm(layer.q_norm, c.num_q_heads);
    expect_heads_norm(layer.k_norm, c.num_kv_heads);
    expect_linear(layer.q, q_rows, c.model_dim, c.qkv_bias);
    expect_linear(layer.k, kv_rows, c.model_dim, c.qkv_bias);
    expect_linear(layer.v, kv_rows, c.model_dim, c.qkv_bias);
    expect_linear(layer.o, c.model_dim, q_rows, c.o_bias);
    const int64_t ffn_dim = c.FfnDim(layer_idx);
    EXPECT_EQ(layer.up.weight.present(), ffn_dim > 0);
    if (ffn_dim > 0) {
      expect_linear(layer.up, ffn_dim, c.model_dim, c.mlp_bias);
      expect_linear(layer.down, c.model_dim, ffn_dim, c.mlp_bias);
      if (IsGated(c.mlp)) expect_linear(layer.gate, ffn_dim, c.model_dim, c.mlp_bias);
    }
    EXPECT_EQ(layer.gate.weight.present(), ffn_dim > 0 && IsGated(c.mlp));
    const bool has_experts = c.layer(layer_idx).has_experts;
    ASSERT_EQ(static_cast<int64_t>(layer.experts.size()), has_experts ? c.experts.num_experts : 0);
    EXPECT_EQ(layer.shared_gate.weight.present(), has_experts && c.experts.has_shared_gate);
    if (has_experts) expect_linear(layer.router, c.experts.num_experts, c.model_dim, c.experts.router_bias);
    for (const ExpertWeights& expert : layer.experts) {
      expect_linear(expert.gate, c.experts.ffn_dim, c.model_dim, c.experts.bias);
      expect_linear(expert.up, c.experts.ffn_dim, c.model_dim, c.experts.bias);
      expect_linear(expert.down, c.model_dim, c.experts.ffn_dim, c.experts.bias);
    }
    expect_vector(layer.sink_logits, c.num_q_heads, c.learned_sinks);
  }
}

TEST(FamilyWeights, EveryGoldenAndTheBundledModelLoad) {
  std::vector<std::string> folders = GoldenFolders(SourcePath("tests/golden/tiny"));
  folders.push_back(BundledModel());
  for (const std::string& folder : folders) {
    SCOPED_TRACE(folder);
    const Loaded loaded = Load(folder);
    const auto weights = loaded.Read();
    ASSERT_TRUE(weights.ok()) << weights.status().message();
    ExpectShapes(loaded.config, *weights);
  }
}

// Take away each tensor in turn, then give each a wrong shape, then a dtype that is no float format.
TEST(FamilyWeights, EveryTensorIsNeededAndChecked) {
  for (const std::string& folder : GoldenFolders(SourcePath("tests/golden/tiny"))) {
    SCOPED_TRACE(folder);
    const Loaded loaded = Load(folder);
    for (const std::string& name : loaded.source->Names()) {
      FakeSource source(*loaded.source);
      const ConstTensorView good = source[name];
      source.Erase(name);
      EXPECT_THAT(loaded.Read(source).status().message(), HasSubstr(fmt::format("\"{}\" is missing", name)));

      ConstTensorView bad = good;
      bad.shape = good.shape.rank() == 1 ? Shape{good.shape[0], 1} : Shape{good.shape[0] + 1, good.shape[1]};
      source[name] = bad;
      EXPECT_THAT(loaded.Read(source).status().message(), AllOf(HasSubstr(name), HasSubstr(bad.shape.ToString()),
                                                                HasSubstr("expected " + good.shape.ToString())));

      source[name] = {good.data, DType::kI32, good.shape};
      EXPECT_THAT(loaded.Read(source).status().message(), AllOf(HasSubstr(name), HasSubstr("i32")));
    }
  }
}

TEST(FamilyWeights, MoreExpertsThanTensorsAreNamed) {
  Loaded loaded = Load(SourcePath("tests/golden/tiny/mixtral"));
  loaded.config.experts.num_experts = 5;
  FakeSource source(*loaded.source);
  const std::string router = "model.layers.0.block_sparse_moe.gate.weight";
  EXPECT_THAT(loaded.Read(source).status().message(),
              AllOf(HasSubstr(router), HasSubstr("[4, 16]"), HasSubstr("expected [5, 16]")));
  source.Make(router, {5, 16}, [](int64_t) { return 1.0f; });
  EXPECT_THAT(loaded.Read(source).status().message(),
              HasSubstr("\"model.layers.0.block_sparse_moe.experts.4.w1.weight\" is missing"));
  loaded.config.experts.num_experts = 3;
  source.Make(router, {3, 16}, [](int64_t) { return 1.0f; });
  EXPECT_THAT(ReadModelWeights(loaded.config, source).status().message(),
              HasSubstr("\"model.layers.0.block_sparse_moe.experts.3.w1.weight\" and"));
}

// The same where one tensor holds all experts of a layer.
TEST(FamilyWeights, MoreExpertsThanATensorHoldsAreNamed) {
  const std::string at = "model.layers.0.";
  struct Case {
    const char* folder;
    const char* router;
    const char* stack;
    const char* found;
    const char* expected;
  };
  for (const Case& each :
       {Case{"granitemoe", "block_sparse_moe.router.layer.weight", "block_sparse_moe.input_linear.weight",
             "[4, 12, 16]", "expected [5, 12, 16]"},
        Case{"gpt_oss", "mlp.router.weight", "mlp.experts.gate_up_proj", "[4, 16, 12]", "expected [5, 16, 12]"}}) {
    SCOPED_TRACE(each.folder);
    Loaded loaded = LoadGolden(each.folder);
    loaded.config.experts.num_experts = 5;
    FakeSource source(*loaded.source);
    source.Make(at + each.router, {5, 16}, [](int64_t) { return 1.0f; });
    if (source.Has(at + "mlp.router.bias")) source.Make(at + "mlp.router.bias", {5}, [](int64_t) { return 1.0f; });
    EXPECT_THAT(loaded.Read(source).status().message(),
                AllOf(HasSubstr("\"" + at + each.stack + "\""), HasSubstr(each.found), HasSubstr(each.expected)));
  }
}

TEST(FamilyWeights, MatricesStayInTheFileAndSmallVectorsAreWidened) {
  const Loaded loaded = Load(BundledModel());  // bf16
  const auto weights = loaded.Read();
  ASSERT_TRUE(weights.ok());
  const ConstTensorView q = loaded.source->Get("model.layers.3.self_attn.q_proj.weight").value();
  EXPECT_EQ(weights->layers[3].q.weight.rows().data, q.data);
  EXPECT_EQ(weights->layers[3].q.weight.dtype, DType::kBF16);
  const ConstTensorView norm = loaded.source->Get("model.norm.weight").value();
  for (int64_t i = 0; i < loaded.config.model_dim; ++i) {
    EXPECT_EQ(static_cast<const float*>(weights->final_norm.weight.data)[i], LoadAsF32(norm.dtype, norm.data, i));
  }
}

// Row r of a fused matrix that holds r everywhere must come out at the place the layout gives it.
void ExpectRows(const LinearWeights& linear, const std::vector<int64_t>& rows) {
  ASSERT_EQ(linear.weight.shape[0], static_cast<int64_t>(rows.size()));
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto row = static_cast<int64_t>(i);
    const auto expected = static_cast<float>(rows[i]);
    EXPECT_EQ(LoadAsF32(linear.weight.dtype, linear.weight.rows().data, row * linear.weight.shape[1]), expected) << i;
    if (linear.bias.present()) {
      EXPECT_EQ(static_cast<const float*>(linear.bias.data)[i], expected) << i;
    }
  }
}

TEST(FamilyWeights, GptNeoxRowsAreHeadsOfQueryKeyValue) {
  Loaded loaded = LoadGolden("gpt_neox");
  FakeSource source(*loaded.source);
  const std::string name = "gpt_neox.layers.0.attention.query_key_value";
  source.Make(name + ".weight", {192, 64}, [](int64_t i) { return static_cast<float>(i / 64); });
  source.Make(name + ".bias", {192}, [](int64_t i) { return static_cast<float>(i); });
  const auto weights = loaded.Read(source);
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  std::vector<int64_t> rows[3];
  for (int64_t head = 0; head < 2; ++head) {
    for (int64_t part = 0; part < 3; ++part) {
      for (int64_t i = 0; i < 32; ++i) rows[part].push_back(head * 96 + part * 32 + i);
    }
  }
  EXPECT_EQ(rows[0][32], 96);
  ExpectRows(weights->layers[0].q, rows[0]);
  ExpectRows(weights->layers[0].k, rows[1]);
  ExpectRows(weights->layers[0].v, rows[2]);
  EXPECT_EQ(weights->layers[0].q.weight.dtype, DType::kF16);
}

TEST(FamilyWeights, FalconRowsAreGroupsOfQueriesKeyValue) {
  Loaded loaded = LoadGolden("falcon-7b-style");
  loaded.config.num_kv_heads = 2;
  FakeSource source(*loaded.source);
  for (const char* layer : {"0", "1"}) {
    source.Make(fmt::format("transformer.h.{}.self_attention.query_key_value.weight", layer), {128, 64},
                [](int64_t i) { return static_cast<float>(i / 64); });
  }
  const auto weights = loaded.Read(source);
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  // Head dim 16, two query heads a group: 32 query rows, 16 key rows, 16 value rows, twice.
  std::vector<int64_t> q, k, v;
  for (const int64_t group : {0, 64}) {
    for (int64_t i = 0; i < 32; ++i) q.push_back(group + i);
    for (int64_t i = 0; i < 16; ++i) k.push_back(group + 32 + i);
    for (int64_t i = 0; i < 16; ++i) v.push_back(group + 48 + i);
  }
  ExpectRows(weights->layers[0].q, q);
  ExpectRows(weights->layers[0].k, k);
  ExpectRows(weights->layers[0].v, v);
}

TEST(FamilyWeights, PackedBlocksAreViewsOfTheFile) {
  const Loaded loaded = LoadGolden("mpt");
  const auto weights = loaded.Read();
  ASSERT_TRUE(weights.ok());
  const auto* fused = static_cast<const float*>(loaded.source->Get("transformer.blocks.1.attn.Wqkv.weight")->data);
  EXPECT_EQ(weights->layers[1].q.weight.rows().data, fused);
  EXPECT_EQ(weights->layers[1].k.weight.rows().data, fused + 64 * 64);
  EXPECT_EQ(weights->layers[1].v.weight.rows().data, fused + 128 * 64);
}

TEST(FamilyWeights, Baichuan2ScalesTheRowsOfItsOutput) {
  constexpr int64_t kVocabulary = 125696;
  const auto config = ParseModelConfig(R"({"model_type": "baichuan", "hidden_size": 2, "num_attention_heads": 1,
      "intermediate_size": 1, "num_hidden_layers": 1, "vocab_size": 125696, "max_position_embeddings": 8})",
                                       "config");
  ASSERT_TRUE(config.ok()) << config.status().message();
  FakeSource source;
  const auto one = [](int64_t) { return 1.0f; };
  source.Make("model.embed_tokens.weight", {kVocabulary, 2}, one);
  for (const char* norm : {"model.norm", "model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm"}) {
    source.Make(std::string(norm) + ".weight", {2}, one);
  }
  source.Make("model.layers.0.self_attn.W_pack.weight", {6, 2}, one);
  source.Make("model.layers.0.self_attn.o_proj.weight", {2, 2}, one);
  source.Make("model.layers.0.mlp.gate_proj.weight", {1, 2}, one);
  source.Make("model.layers.0.mlp.up_proj.weight", {1, 2}, one);
  source.Make("model.layers.0.mlp.down_proj.weight", {2, 1}, one);
  // Rows (3, 4), and one row of zeros, which stays one.
  source.Make("lm_head.weight", {kVocabulary, 2}, [](int64_t i) { return i < 2 ? 0.0f : (i % 2 == 0 ? 3.0f : 4.0f); });
  const auto weights = FindFamily("baichuan", "test").value()->read_weights(*config, source);
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  const ConstTensorView output = weights->output.weight.rows();
  EXPECT_EQ(output.dtype, DType::kF16);
  EXPECT_EQ(LoadAsF32(output.dtype, output.data, 0), 0.0f);
  EXPECT_NEAR(LoadAsF32(output.dtype, output.data, 2 * kVocabulary - 2), 0.6f, 5e-4f);
  EXPECT_NEAR(LoadAsF32(output.dtype, output.data, 2 * kVocabulary - 1), 0.8f, 5e-4f);
}

TEST(Families, AreFoundByEveryNameTheyAnswerTo) {
  EXPECT_EQ(ModelFamilies().size(), 26u);
  for (const ModelFamily& family : ModelFamilies()) {
    EXPECT_EQ(FindFamily(family.name, "c").value()->name, family.name);
    for (const std::string_view name : family.other_names) {
      EXPECT_EQ(FindFamily(name, "c").value()->name, family.name);
    }
    EXPECT_FALSE(family.description.empty());
  }
}

}  // namespace
}  // namespace headwise
