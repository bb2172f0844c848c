// FastGen's profile against attention summed one probability at a time, and what its policies make of a plan.
#include "planner/fastgen.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "backend/all_backends.h"
#include "base/rng.h"
#include "kv/plan_bytes.h"
#include "kv/token_marks.h"
#include "planner/planner.h"
#include "support/golden.h"

namespace headwise {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;

// Marks of every kind, in no order.
std::vector<TokenMark> RandomMarks(Rng& rng, size_t num_tokens) {
  std::vector<TokenMark> marks(num_tokens);
  for (TokenMark& mark : marks) {
    const uint64_t drawn = rng.Below(10);
    mark = drawn == 0 ? TokenMark::kSpecial : drawn < 3 ? TokenMark::kPunctuation : TokenMark::kOther;
  }
  return marks;
}

// The share of attention that keys of a set get: policy by policy, straight from the definition.
FastGenRecovery ByDefinition(const AttentionView<float>& view, int64_t kv_head, const std::vector<TokenMark>& marks,
                             const FastGenOptions& options) {
  const auto num_tokens = static_cast<int64_t>(marks.size());
  const int64_t group = view.shape.num_q_heads / view.shape.num_kv_heads;
  std::vector<double> columns(marks.size());
  double total = 0;
  const auto sum = [&](auto&& is_counted) {
    double mass = 0;
    for (int64_t g = 0; g < group; ++g) {
      for (int64_t query = 0; query < num_tokens; ++query) {
        for (int64_t key = 0; key <= query; ++key) {
          const double p = view.Probability(kv_head * group + g, query, key);
          if (is_counted(query, key)) mass += p;
        }
      }
    }
    return mass;
  };
  for (int64_t key = 0; key < num_tokens; ++key) {
    columns[static_cast<size_t>(key)] = sum([&](int64_t, int64_t other) { return other == key; });
    total += columns[static_cast<size_t>(key)];
  }
  const auto mark_of = [&](int64_t key) { return marks[static_cast<size_t>(key)]; };
  std::vector<int64_t> frequent;
  for (int64_t key = 0; key < num_tokens; ++key) {
    if (mark_of(key) == TokenMark::kOther) frequent.push_back(key);
  }
  std::ranges::stable_sort(frequent, std::greater(), [&](int64_t key) { return columns[static_cast<size_t>(key)]; });
  frequent.resize(std::min(frequent.size(), static_cast<size_t>(std::ceil(options.frequent_share * 60))));
  const auto is_frequent = [&](int64_t key) { return std::ranges::count(frequent, key) > 0; };
  const auto num_local = static_cast<int64_t>(std::ceil(options.local_share * 60));
  const auto is_special = [&](int64_t, int64_t key) { return mark_of(key) == TokenMark::kSpecial; };
  const auto is_marked = [&](int64_t, int64_t key) { return mark_of(key) != TokenMark::kOther; };
  const auto is_either = [&](int64_t query, int64_t key) { return is_marked(query, key) || is_frequent(key); };
  const auto is_any = [&](int64_t query, int64_t key) { return is_either(query, key) || query - key < num_local; };
  return {sum(is_special) / total, sum(is_marked) / total, sum(is_either) / total, sum(is_any) / total};
}

// Groups of query heads, sinks in the denominator, ALiBi, a cap: whatever a model's attention has.
TEST(FastGen, ProfilesWhatPoliciesKeep) {
  for (const char* name : {"llama-gqa", "gemma2", "mpt", "llama-zero-sink"}) {
    const auto backend = *MakeBackend({.name = "ref"});
    const auto model = LoadModel(SourcePath(std::string("tests/golden/tiny/") + name), *backend);
    ASSERT_TRUE(model.ok()) << model.status().message();
    Rng rng(5);
    std::vector<int32_t> ids;
    while (ids.size() < 60) ids.push_back(static_cast<int32_t>(rng.Below(60)));
    const std::vector<TokenMark> marks = RandomMarks(rng, ids.size());
    const FastGenOptions options{.frequent_share = 0.2, .local_share = 0.1};
    ThreadPool pool(1);
    GradDecoder<float> decoder(**model, pool);
    std::vector<float> hidden;
    int64_t num_heads = 0;
    decoder.Forward({.ids = ids,
                     .wanted = {},
                     .on_attention =
                         [&](const AttentionView<float>& view) {
                           for (int64_t kv_head = 0; kv_head < view.shape.num_kv_heads; ++kv_head) {
                             const FastGenRecovery found = RecoveryOf(view, kv_head, marks, options);
                             const FastGenRecovery expected = ByDefinition(view, kv_head, marks, options);
                             for (size_t policy = 0; policy < kNumFastGenCuts; ++policy) {
                               EXPECT_NEAR(found[policy], expected[policy], 1e-5) << name << " policy " << policy;
                             }
                             EXPECT_TRUE(std::ranges::is_sorted(found));
                             ++num_heads;
                           }
                         }},
                    hidden);
    EXPECT_EQ(num_heads, (*model)->config.num_layers * (*model)->config.num_kv_heads);
  }
}

TEST(FastGen, TheFirstPolicyThatKeepsEnoughIsTaken) {
  const FastGenRecovery recovery = {0.2, 0.5, 0.9, 0.95};
  EXPECT_EQ(CheapestPolicy(recovery, 0.0), FastGenPolicy::kSpecial);
  EXPECT_EQ(CheapestPolicy(recovery, 0.5), FastGenPolicy::kPunctuation);
  EXPECT_EQ(CheapestPolicy(recovery, 0.51), FastGenPolicy::kFrequent);
  EXPECT_EQ(CheapestPolicy(recovery, 0.95), FastGenPolicy::kLocal);
  EXPECT_EQ(CheapestPolicy(recovery, 0.96), FastGenPolicy::kFull);
}

TEST(FastGen, RulesHaveTheSizesOfWhatTheyKeep) {
  const FastGenSizes sizes{.special = 3, .punctuation = 0.1};
  const FastGenOptions options{.frequent_share = 0.2, .local_share = 0.3};
  const HeadRule special = FastGenRule(FastGenPolicy::kSpecial, sizes, options);
  EXPECT_EQ(special.alpha, 3);
  EXPECT_EQ(special.sink, 1);
  EXPECT_EQ(special.beta, 0);
  EXPECT_FALSE(special.select.punctuation);
  EXPECT_EQ(special.select.recent_share, 0);
  const HeadRule local = FastGenRule(FastGenPolicy::kLocal, sizes, options);
  EXPECT_DOUBLE_EQ(local.beta, 0.6);
  EXPECT_TRUE(local.select.punctuation);
  EXPECT_DOUBLE_EQ(local.select.recent_share, 0.5);
  EXPECT_DOUBLE_EQ(FastGenRule(FastGenPolicy::kFrequent, sizes, options).beta, 0.3);
  EXPECT_EQ(FastGenRule(FastGenPolicy::kFrequent, sizes, options).select.recent_share, 0);
  EXPECT_EQ(FastGenRule(FastGenPolicy::kFull, sizes, options), HeadRule::Full());
  for (const FastGenPolicy policy : {FastGenPolicy::kSpecial, FastGenPolicy::kPunctuation, FastGenPolicy::kFrequent,
                                     FastGenPolicy::kLocal, FastGenPolicy::kFull}) {
    EXPECT_TRUE(ValidateRule(FastGenRule(policy, sizes, options)).ok());
  }
}

TEST(FastGen, ListsWhatTokensAre) {
  const auto tokenizer = OpenTokenizer(SourcePath("models/headwise-17m"));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  const TokenLists lists = ListTokens(**tokenizer);
  const auto mark_of = [&](std::string_view text) {
    const std::vector<int32_t> ids = *(*tokenizer)->Encode(text);
    EXPECT_EQ(ids.size(), 1u) << text;
    return MarkOf(ids.front(), lists);
  };
  ASSERT_TRUE((*tokenizer)->bos_id().has_value());
  EXPECT_EQ(MarkOf(*(*tokenizer)->bos_id(), lists), TokenMark::kSpecial);
  for (const char* text : {".", ",", "?", ":"}) EXPECT_EQ(mark_of(text), TokenMark::kPunctuation) << text;
  for (const char* text : {"a", "7", " "}) EXPECT_EQ(mark_of(text), TokenMark::kOther) << text;
  EXPECT_TRUE(std::ranges::is_sorted(lists.special));
  EXPECT_TRUE(std::ranges::is_sorted(lists.punctuation));
}

PlannerInput InputFor(const std::map<std::string, std::string>& options) {
  PlannerInput input;
  input.model = SourcePath("models/headwise-17m");
  input.shape = {.architecture = "llama", .num_layers = 8, .num_q_heads = 8, .num_kv_heads = 4, .head_dim = 64};
  input.num_threads = 1;
  for (const auto& [name, value] : options) input.options = input.options.With(name, value);
  return input;
}

// The whole way on the bundled model: a plan that keeps within its budget, and the same profile at another.
TEST(FastGen, PlansKeepWithinTheirBudget) {
  const PlannerInput input = InputFor(
      {{"samples", "1"}, {"min-tokens", "1200"}, {"max-tokens", "1200"}, {"kv-ratio", "0.25"}, {"at", "4000"}});
  const auto plan = MakePlan("fastgen", input);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const auto bytes_of = [](const HeadPlan& each) { return PlanBytesAt(each, 4000, {}); };
  const int64_t dense = bytes_of(HeadPlan::Dense(plan->shape));
  EXPECT_LE(bytes_of(*plan), dense / 4);
  EXPECT_GE(bytes_of(*plan), dense / 10);
  EXPECT_FALSE(plan->tokens.special.empty());
  EXPECT_THAT(plan->scores, Each(Ge(-1e-6)));
  const auto wider = RefitPlan(*plan, InputFor({{"kv-ratio", "0.5"}, {"at", "4000"}}), "plan");
  ASSERT_TRUE(wider.ok()) << wider.status().message();
  EXPECT_GT(bytes_of(*wider), bytes_of(*plan));
  EXPECT_LE(bytes_of(*wider), dense / 2);
  EXPECT_EQ(wider->tokens, plan->tokens);
  const auto none = RefitPlan(*plan, InputFor({{"kv-bytes-at", "1000:4000"}}), "plan");
  EXPECT_THAT(none.status().message(), HasSubstr("needs at least"));
}

}  // namespace
}  // namespace headwise
