// RazorAttention on models with ALiBi, and the counting of its scores.
#include "planner/razor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "backend/all_backends.h"
#include "support/golden.h"

namespace headwise {
namespace {

struct LoadedModel {
  std::unique_ptr<Backend> backend = *MakeBackend({.name = "ref"});
  std::unique_ptr<Model> model;

  explicit LoadedModel(const std::string& folder) {
    auto loaded = LoadModel(folder, *backend);
    EXPECT_TRUE(loaded.ok()) << loaded.status().message();
    model = *std::move(loaded);
  }
};

// The theorem itself [razor §3.1]: beyond its scope no head gives a key more than epsilon, whatever the text.
TEST(AlibiScopes, NothingBeyondThemHasWeight) {
  const LoadedModel loaded(SourcePath("tests/golden/tiny/mpt"));
  const ModelConfig& config = loaded.model->config;
  constexpr double kEpsilon = 0.01;
  const std::vector<int64_t> scopes = AlibiScopes(*loaded.model, kEpsilon);
  ASSERT_EQ(scopes.size(), static_cast<size_t>(config.num_layers * config.num_q_heads));
  Rng rng(2);
  std::vector<int32_t> ids;
  while (ids.size() < 400) ids.push_back(static_cast<int32_t>(rng.Below(static_cast<uint64_t>(config.vocab_size))));
  ThreadPool pool(1);
  GradDecoder<float> decoder(*loaded.model, pool);
  std::vector<float> hidden;
  decoder.Forward(
      {.ids = ids,
       .wanted = {},
       .on_attention =
           [&](const AttentionView<float>& view) {
             for (int64_t q_head = 0; q_head < config.num_q_heads; ++q_head) {
               const int64_t scope = scopes[static_cast<size_t>(view.layer_idx * config.num_q_heads + q_head)];
               for (int64_t query = scope + 1; query < 400; ++query) {
                 const int64_t key = query - scope - 1;
                 double score = 0;
                 for (int64_t d = 0; d < config.head_dim; ++d) {
                   const int64_t kv_head = q_head / config.q_heads_per_kv_head();
                   score += static_cast<double>(view.q[(query * config.num_q_heads + q_head) * config.head_dim + d]) *
                            view.k[(key * config.num_kv_heads + kv_head) * config.head_dim + d];
                 }
                 score = score * config.softmax_scale +
                         config.alibi_slopes[static_cast<size_t>(q_head)] * static_cast<double>(key - query);
                 EXPECT_LE(std::exp(score - view.lse[query * config.num_q_heads + q_head]), kEpsilon);
               }
             }
           }},
      hidden);
}

TEST(AlibiScopes, GrowAsTheSlopeAndEpsilonFall) {
  const LoadedModel loaded(SourcePath("tests/golden/tiny/mpt"));
  const auto loose = AlibiScopes(*loaded.model, 0.1);
  const auto tight = AlibiScopes(*loaded.model, 0.001);
  for (size_t i = 0; i < loose.size(); ++i) {
    EXPECT_GT(tight[i], loose[i]);
    // (2 norm input - ln eps) / slope: the difference is ln(100) / slope, but for rounding up.
    const double slope = loaded.model->config.alibi_slopes[i % static_cast<size_t>(loaded.model->config.num_q_heads)];
    EXPECT_NEAR(static_cast<double>(tight[i] - loose[i]), std::log(100.0) / slope, 1.0);
  }
}

TEST(RepeatedTokens, AreDistinctOrdinaryAndRepeated) {
  Rng rng(1);
  const auto ids = MakeRepeatedTokens(
      10, 50, [](int32_t id) { return id % 2 == 0; }, std::vector{7}, rng);
  ASSERT_TRUE(ids.ok());
  ASSERT_EQ(ids->size(), 41u);
  EXPECT_EQ(ids->front(), 7);
  EXPECT_EQ(std::set<int32_t>(ids->begin() + 1, ids->begin() + 11).size(), 10u);
  for (size_t i = 1; i < ids->size(); ++i) {
    EXPECT_EQ((*ids)[i] % 2, 0);
    if (i > 10) {
      EXPECT_EQ((*ids)[i], (*ids)[i - 10]);
    }
  }
  EXPECT_FALSE(MakeRepeatedTokens(
                   30, 50, [](int32_t id) { return id % 2 == 0; }, std::vector{7}, rng)
                   .ok());
}

TEST(RepeatedTokens, FitLearnedPositionsWithTheirStartToken) {
  const LoadedModel loaded(SourcePath("tests/golden/tiny/gpt2"));
  const ModelConfig& config = loaded.model->config;
  ASSERT_EQ(config.num_positions % kRazorRepetitions, 0);  // with the start token it would be one too many
  const int64_t tokens = RazorTokensPerRepetition(config);
  EXPECT_EQ(tokens, config.num_positions / kRazorRepetitions - 1);
  Rng rng(1);
  const auto ids = MakeRepeatedTokens(
      tokens, config.vocab_size, [](int32_t) { return true; }, std::vector{0}, rng);
  ThreadPool pool(1);
  GradDecoder<float> decoder(*loaded.model, pool);
  const RetrievalScores scores = ScoreRepeatedTokens(decoder, *ids, tokens, nullptr);
  EXPECT_GT(*std::ranges::max_element(scores.echo), 0.0);
}

TEST(ProtectedHeads, AGroupIsProtectedByAnyOfItsHeads) {
  const ModelShape shape{.architecture = "llama", .num_layers = 1, .num_q_heads = 6, .num_kv_heads = 3, .head_dim = 8};
  const RetrievalScores scores{.echo = {0, 0, 0, 0, 0.9, 0}, .induction = {0.1, 0.8, 0.7, 0, 0, 0}};
  EXPECT_EQ(ProtectedHeads(scores, shape, 1, 0), (std::vector<bool>{true, false, false}));
  EXPECT_EQ(ProtectedHeads(scores, shape, 2, 1), (std::vector<bool>{true, true, true}));
  EXPECT_EQ(ProtectedHeads(scores, shape, 0, 0), (std::vector<bool>{false, false, false}));
}

}  // namespace
}  // namespace headwise
