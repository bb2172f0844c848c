// Heads that choose by score which tokens they keep, against float64 simulations of the policies' papers
// (tools/make_selection_golden.py): the same tokens are kept at every step, and outputs are within tolerance.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/sequence.h"
#include "kv/rule_json.h"
#include "support/engines.h"
#include "support/golden.h"
#include "support/tolerance.h"

namespace headwise {
namespace {

class SelectionGolden : public testing::Test {
 protected:
  const Json json_ = ReadJsonFile(SourcePath("tests/golden/selection/golden.json")).value();
  const GoldenTensors tensors_{SourcePath("tests/golden/selection/golden.safetensors")};
};
class SelectionPolicies : public SelectionGolden, public testing::WithParamInterface<const char*> {};

// Ascending, of every head.
std::vector<std::vector<int32_t>> KeptOf(const Sequence& sequence) {
  const KvCache& cache = *sequence.cache;
  std::vector<std::vector<int32_t>> kept;
  for (int64_t layer_idx = 0; layer_idx < cache.num_layers(); ++layer_idx) {
    for (int64_t kv_head = 0; kv_head < cache.num_kv_heads(); ++kv_head) {
      kept.push_back(cache.KeptPositions(layer_idx, kv_head).value());
      std::sort(kept.back().begin(), kept.back().end());
    }
  }
  return kept;
}

// Reads ids behind what the sequence has; the final hidden states.
std::vector<float> Read(Engine& engine, const std::shared_ptr<Sequence>& sequence, std::span<const int32_t> ids,
                        int64_t chunk_tokens) {
  std::vector<float> rows;
  ForcedRun run;
  run.sequence = sequence;
  run.ids = ids;
  run.chunk_tokens = chunk_tokens;
  run.rows = ForcedRun::Rows::kEvery;
  run.on_row = [&](int64_t, std::span<const float>, std::span<const float> hidden) {
    rows.insert(rows.end(), hidden.begin(), hidden.end());
    return true;
  };
  const Status status = engine.RunForced(run);
  EXPECT_TRUE(status.ok()) << status.message();
  return rows;
}

TEST_P(SelectionPolicies, TheSameTokensAreKeptAtEveryStep) {
  if (IsTestDevice("cuda")) GTEST_SKIP() << "the cuda backend does not select";
  const std::string name = GetParam();
  const Json& golden = json_.at("cases").at(name);
  const std::vector<int32_t> ids = tensors_.Ids("ids");
  const std::vector<int32_t> rows = tensors_.Ids("rows");
  const bool has_later = golden.contains("dropped");
  const std::vector<float> expected = has_later ? tensors_.F32("hidden_" + name) : std::vector<float>();
  const auto prompt_tokens = json_.at("prompt_tokens").get<size_t>();
  for (const BackendChoice& choice : BackendChoices()) {
    EngineOptions options =
        ExactOptions(SourcePath("tests/golden/tiny/" + json_.at("model").get<std::string>()), choice);
    options.page_tokens = 16;
    const auto engine = MustCreate(options);
    ASSERT_NE(engine, nullptr);
    auto plan = std::make_shared<HeadPlan>(HeadPlan::Dense(engine->shape()));
    auto rules = ParseRuleTable(golden.at("plan"), plan->shape, name);
    ASSERT_TRUE(rules.ok()) << rules.status().message();
    plan->rules = *std::move(rules);
    if (name == "fastgen") {
      plan->tokens.special = json_.at("special").get<std::vector<int32_t>>();
      plan->tokens.punctuation = json_.at("punctuation").get<std::vector<int32_t>>();
    }
    const auto sequence = engine->NewSequence({.plan = plan,
                                               .prompt_tokens = static_cast<int64_t>(prompt_tokens),
                                               .max_tokens = static_cast<int64_t>(ids.size())});
    ASSERT_TRUE(sequence.ok()) << sequence.status().message();
    std::vector<float> hidden =
        Read(*engine, *sequence, std::span(ids).first(prompt_tokens), json_.at("chunk_tokens").get<int64_t>());
    std::vector<std::vector<int32_t>> kept = KeptOf(**sequence);
    std::vector<std::vector<int32_t>> at_end;
    for (const Json& layer : golden.at("kept")) {
      for (const Json& head : layer) at_end.push_back(head.get<std::vector<int32_t>>());
    }
    ASSERT_EQ(kept, at_end) << choice.name();
    if (!has_later) continue;
    for (size_t pos = prompt_tokens; pos < ids.size(); ++pos) {
      const std::vector<float> row = Read(*engine, *sequence, std::span(ids).subspan(pos, 1), 1);
      hidden.insert(hidden.end(), row.begin(), row.end());
      for (size_t head = 0; head < kept.size(); ++head) {
        kept[head].push_back(static_cast<int32_t>(pos));
        // -1: none goes.
        std::erase(kept[head], golden.at("dropped").at(pos - prompt_tokens).at(head).get<int32_t>());
      }
      ASSERT_EQ(KeptOf(**sequence), kept) << choice.name() << " behind token " << pos;
    }
    const auto width = static_cast<int64_t>(expected.size() / rows.size());
    std::vector<float> sampled;
    for (const int32_t row : rows) {
      sampled.insert(sampled.end(), hidden.begin() + row * width, hidden.begin() + (row + 1) * width);
    }
    EXPECT_LE(MaxDifference(sampled, expected), kTinyLogitsF32) << choice.name();
  }
}

// Heads that keep every token: which blocks they read shows in what they answer.
TEST_F(SelectionGolden, TheSameBlocksAreRead) {
  if (IsTestDevice("cuda")) GTEST_SKIP() << "the cuda backend does not select";
  const std::vector<int32_t> ids = tensors_.Ids("ids");
  const std::vector<int32_t> rows = tensors_.Ids("rows");
  const std::vector<float> expected = tensors_.F32("hidden_quest");
  const auto prompt_tokens = json_.at("prompt_tokens").get<int64_t>();
  for (const BackendChoice& choice : BackendChoices()) {
    for (const int64_t chunk_tokens : {1, 7}) {
      EngineOptions options =
          ExactOptions(SourcePath("tests/golden/tiny/" + json_.at("model").get<std::string>()), choice);
      options.page_tokens = 32;
      const auto engine = MustCreate(options);
      ASSERT_NE(engine, nullptr);
      auto plan = std::make_shared<HeadPlan>(HeadPlan::Dense(engine->shape()));
      auto rules = ParseRuleTable(json_.at("cases").at("quest").at("plan"), plan->shape, "quest");
      ASSERT_TRUE(rules.ok()) << rules.status().message();
      plan->rules = *std::move(rules);
      const auto sequence = engine->NewSequence(
          {.plan = plan, .prompt_tokens = prompt_tokens, .max_tokens = static_cast<int64_t>(ids.size())});
      ASSERT_TRUE(sequence.ok()) << sequence.status().message();
      const std::vector<float> hidden = Read(*engine, *sequence, ids, chunk_tokens);
      const auto width = static_cast<int64_t>(expected.size() / rows.size());
      std::vector<float> sampled;
      for (const int32_t row : rows) {
        sampled.insert(sampled.end(), hidden.begin() + row * width, hidden.begin() + (row + 1) * width);
      }
      EXPECT_LE(MaxDifference(sampled, expected), kTinyLogitsF32) << choice.name() << ", steps of " << chunk_tokens;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, SelectionPolicies,
                         testing::Values("h2o", "h2o_sinks", "fastgen", "tova", "snapkv", "pyramidkv", "knorm",
                                         "knorm_after", "keydiff", "expected"),
                         [](const auto& policy) { return std::string(policy.param); });

}  // namespace
}  // namespace headwise
