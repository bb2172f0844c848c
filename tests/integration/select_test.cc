// Plans whose heads select tokens by attention score, through the engine on tiny models: bytes, batches, threads,
// forks, and what is refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "kv/kv_bytes.h"
#include "support/engines.h"
#include "support/golden.h"
#include "support/requests.h"
#include "support/tolerance.h"

namespace headwise {
namespace {

using ::testing::HasSubstr;
using Kind = TokenSelector::Kind;

EngineOptions TinyOptions(const std::string& model = "llama-gqa") {
  EngineOptions options = ExactOptions(SourcePath("tests/golden/tiny/" + model), {"cpu"});
  options.page_tokens = 32;
  options.chunk_tokens = 40;
  return options;
}

HeadRule Selecting(Kind kind, int64_t budget, RuleStart start = RuleStart::kFirstToken) {
  HeadRule rule = HeadRule::Stream(0, budget);
  rule.select.kind = kind;
  if (kind == Kind::kInfLlm) rule.select.block = 32;
  rule.start = rule.select.CutsOnce() || rule.ReadsBlocks() ? RuleStart::kEndOfPrompt : start;
  return rule;
}

// As a plan lists them: of an eighth of all tokens what they are counts.
TokenLists TokensOf(int32_t first) {
  TokenLists tokens;
  for (int32_t id = first; id < 300; id += 16) {
    tokens.special.push_back(id);
    tokens.punctuation.push_back(id + 8);
  }
  return tokens;
}

// Heads of all kinds beside each other.
std::shared_ptr<const HeadPlan> RandomPlan(std::mt19937_64& rng, const ModelShape& shape) {
  constexpr Kind kKinds[] = {Kind::kH2o,   Kind::kTova,     Kind::kSnapKv,  Kind::kKeyDiff, Kind::kAdaKv,
                             Kind::kQuest, Kind::kExpected, Kind::kFastGen, Kind::kInfLlm};
  auto plan = std::make_shared<HeadPlan>(HeadPlan::Dense(shape));
  for (HeadRule& rule : plan->rules) {
    if (rng() % 5 == 0) continue;
    if (rng() % 5 == 0) {
      rule = HeadRule::Stream(4, 20);
      continue;
    }
    rule = Selecting(kKinds[rng() % 9], 1 + static_cast<int64_t>(rng() % 60),
                     rng() % 2 == 0 ? RuleStart::kEndOfPrompt : RuleStart::kFirstToken);
    rule.sink = static_cast<int64_t>(rng() % 2) * 3;
    if (rule.select.kind == Kind::kFastGen) {
      rule.select.punctuation = rng() % 2 == 0;
      plan->tokens = TokensOf(3);
    }
  }
  // Heads of a layer that share have one rule.
  for (size_t i = 0; i < plan->rules.size(); ++i) {
    const size_t first = i / static_cast<size_t>(shape.num_kv_heads) * static_cast<size_t>(shape.num_kv_heads);
    for (size_t other = first; other < i && plan->rules[i].select.kind == Kind::kAdaKv; ++other) {
      if (plan->rules[other].select.kind == Kind::kAdaKv) plan->rules[i] = plan->rules[other];
    }
  }
  return plan;
}

Request RequestFor(std::vector<int32_t> prompt, std::shared_ptr<const HeadPlan> plan, int64_t max_new_tokens) {
  Request request = RequestOf(std::move(prompt), max_new_tokens);
  request.plan = std::move(plan);
  return request;
}

std::vector<float> Read(Engine& engine, const std::shared_ptr<Sequence>& sequence, std::span<const int32_t> ids) {
  std::vector<float> rows;
  ForcedRun run;
  run.sequence = sequence;
  run.ids = ids;
  run.rows = ForcedRun::Rows::kEvery;
  run.on_row = [&](int64_t, std::span<const float> logits, std::span<const float>) {
    rows.insert(rows.end(), logits.begin(), logits.end());
    return true;
  };
  const Status status = engine.RunForced(run);
  EXPECT_TRUE(status.ok()) << status.message();
  return rows;
}

class SelectEngine : public testing::Test {
 protected:
  void SetUp() override {
    if (IsTestDevice("cuda")) GTEST_SKIP() << "cuda does not select by score";
  }
};

TEST_F(SelectEngine, ABudgetThatKeepsAllIsDenseBitForBit) {
  const auto engine = MustCreate(TinyOptions());
  const std::vector<int32_t> ids = IdsOf(1, 200);
  const ForcedRows dense = MustRunForced(*engine, ids, nullptr, 150);
  for (const Kind kind : {Kind::kH2o, Kind::kTova, Kind::kSnapKv, Kind::kExpected, Kind::kQuest, Kind::kInfLlm}) {
    auto plan = std::make_shared<HeadPlan>(HeadPlan::Dense(engine->shape()));
    for (HeadRule& rule : plan->rules) rule = Selecting(kind, 200);
    EXPECT_EQ(MustRunForced(*engine, ids, plan, 150).logits, dense.logits);
    for (HeadRule& rule : plan->rules) rule = Selecting(kind, 50);
    EXPECT_NE(MustRunForced(*engine, ids, plan, 150).logits, dense.logits);
  }
}

// ref is the definition; the kernels have sums of their own.
TEST_F(SelectEngine, TheCpuAnswersAsTheReference) {
  std::mt19937_64 rng(3);
  EngineOptions options = TinyOptions();
  const auto cpu = MustCreate(options);
  options.backend = "ref";
  const auto ref = MustCreate(options);
  for (int round = 0; round < 6; ++round) {
    const auto plan = RandomPlan(rng, cpu->shape());
    const std::vector<int32_t> ids = IdsOf(rng(), 160);
    const ForcedRows expected = MustRunForced(*ref, ids, plan, 120);
    EXPECT_LE(MaxDifference(MustRunForced(*cpu, ids, plan, 120).logits, expected.logits), kTinyLogitsF32)
        << "round " << round;
  }
}

TEST_F(SelectEngine, BytesAreWhatThePlanSays) {
  std::mt19937_64 rng(6);
  const EngineOptions options = TinyOptions();
  const auto engine = MustCreate(options);
  const PageSizes f32{.newest = 2 * options.page_tokens * engine->shape().head_dim * 4};
  for (int round = 0; round < 12; ++round) {
    const auto plan = RandomPlan(rng, engine->shape());
    const auto prompt_tokens = static_cast<int64_t>(1 + rng() % 300);
    engine->ResetKvPeak();
    const auto result = engine->Run(RequestFor(IdsOf(rng(), static_cast<size_t>(prompt_tokens)), plan, 30));
    ASSERT_TRUE(result.ok()) << result.status().message();
    const KvBytesArgs args{.plan = plan.get(),
                           .limits = {.prompt_tokens = prompt_tokens, .max_tokens = prompt_tokens + 30},
                           .chunk_tokens = options.chunk_tokens,
                           .page_tokens = options.page_tokens,
                           .full_pages = f32,
                           .bounded_pages = f32};
    // The last token was sampled but not read.
    const KvBytes expected = PlanKvBytes(args, prompt_tokens + 29);
    EXPECT_EQ(result->metrics.kv_bytes_full, expected.full);
    EXPECT_EQ(result->metrics.kv_bytes_bounded, expected.bounded);
    EXPECT_LE(engine->kv_peak_bytes(), PeakKvBytes(args)) << "round " << round;
    EXPECT_GE(engine->kv_peak_bytes(), expected.full + expected.bounded);
  }
  EXPECT_EQ(engine->kv_bytes(), 0);
}

TEST_F(SelectEngine, ABatchIsEachAlone) {
  std::mt19937_64 rng(2);
  const auto engine = MustCreate(TinyOptions());
  std::vector<std::vector<int32_t>> alone;
  std::vector<Request> requests;
  for (int i = 0; i < 5; ++i) {
    // Prompts of one chunk: how a longer one is cut depends on who shares its steps, and so does what it keeps.
    requests.push_back(RequestFor(IdsOf(rng(), 1 + rng() % 8), RandomPlan(rng, engine->shape()), 60));
    const auto result = engine->Run(requests.back());
    ASSERT_TRUE(result.ok()) << result.status().message();
    alone.push_back(result->tokens);
  }
  std::vector<RequestId> ids;
  for (Request& request : requests) ids.push_back(*engine->Submit(std::move(request)));
  for (bool more = true; more;) more = *engine->Step();
  for (size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(engine->Take(ids[i])->tokens, alone[i]) << i;
  EXPECT_EQ(engine->kv_bytes(), 0);
}

TEST_F(SelectEngine, AnyNumberOfThreadsGivesTheSameBits) {
  std::vector<std::vector<float>> logits;
  for (const int num_threads : {1, 3}) {
    EngineOptions options = TinyOptions();
    options.num_threads = num_threads;
    const auto engine = MustCreate(options);
    std::mt19937_64 rng(4);
    logits.push_back(MustRunForced(*engine, IdsOf(7, 300), RandomPlan(rng, engine->shape()), 250).logits);
  }
  EXPECT_EQ(logits[0], logits[1]);
}

TEST_F(SelectEngine, AForkContinuesAsTheOriginalWouldBitForBit) {
  std::mt19937_64 rng(5);
  const auto engine = MustCreate(TinyOptions());
  for (int round = 0; round < 8; ++round) {
    const auto plan = RandomPlan(rng, engine->shape());
    const std::vector<int32_t> prefix = IdsOf(rng(), 1 + rng() % 120);
    const std::vector<int32_t> rest = IdsOf(rng(), 1 + rng() % 60);
    const std::vector<int32_t> other = IdsOf(rng(), 1 + rng() % 60);
    const SequenceOptions options{
        .plan = plan, .prompt_tokens = static_cast<int64_t>(1 + rng() % (2 * prefix.size())), .max_tokens = 1000};
    const auto alone = *engine->NewSequence(options);
    Read(*engine, alone, prefix);
    const std::vector<float> expected = Read(*engine, alone, rest);
    const auto original = *engine->NewSequence(options);
    Read(*engine, original, prefix);
    const auto fork = *engine->Fork(*original);
    const auto second_fork = *engine->Fork(*fork);
    Read(*engine, fork, other);  // must not disturb the others
    EXPECT_EQ(Read(*engine, original, rest), expected) << "round " << round;
    EXPECT_EQ(Read(*engine, second_fork, rest), expected) << "round " << round;
  }
  EXPECT_EQ(engine->kv_bytes(), 0);
}

// On a model whose heads look at more or fewer tokens: each layer keeps what was worked out before, every head the
// tokens that it says, and a fork goes on as its original, also under rules made anew of the plan.
TEST_F(SelectEngine, EveryLayerSharesWhatWasPlanned) {
  EngineOptions options = ExactOptions(SourcePath("models/headwise-17m"), {"cpu"});
  options.page_tokens = 16;
  options.chunk_tokens = 100;
  const auto engine = MustCreate(options);
  auto plan = std::make_shared<HeadPlan>(HeadPlan::Dense(engine->shape()));
  for (HeadRule& rule : plan->rules) rule = Selecting(Kind::kAdaKv, 90);
  plan->rules[5] = HeadRule::Full();
  const SequenceOptions of_text{.plan = plan, .prompt_tokens = 350, .max_tokens = 1000};
  const auto sequence = *engine->NewSequence(of_text);
  Read(*engine, sequence, IdsOf(1, 350));
  const std::vector<int32_t> rest = IdsOf(2, 40);
  const auto fork = *engine->Fork(*sequence);
  const auto fork_of_plan = *engine->Fork(*sequence, of_text);
  const std::vector<float> expected = Read(*engine, sequence, rest);
  EXPECT_EQ(Read(*engine, fork, rest), expected);
  EXPECT_EQ(Read(*engine, fork_of_plan, rest), expected);
  const KvCache& cache = *sequence->cache;
  int num_uneven = 0;
  for (int64_t layer_idx = 0; layer_idx < cache.num_layers(); ++layer_idx) {
    int64_t num_kept = 0, num_planned = 0;
    for (int64_t kv_head = 0; kv_head < cache.num_kv_heads(); ++kv_head) {
      ResolvedRule rule = cache.rule(layer_idx, kv_head);
      if (!rule.SelectsByScore()) continue;
      std::vector<int32_t> kept = cache.KeptPositions(layer_idx, kv_head).value();
      std::sort(kept.begin(), kept.end());
      EXPECT_EQ(std::adjacent_find(kept.begin(), kept.end()), kept.end());
      EXPECT_EQ(kept.size(), NumKeptTokens(rule, 390));
      // The observed tokens and what came behind the prompt.
      EXPECT_EQ(kept[kept.size() - 72], 390 - 72);
      num_uneven += rule.shared != 0 ? 1 : 0;
      num_kept += static_cast<int64_t>(kept.size());
      rule.shared = 0;
      num_planned += NumKeptTokens(rule, 390);
    }
    EXPECT_EQ(num_kept, num_planned) << "layer " << layer_idx;
  }
  EXPECT_GE(num_uneven, 4);
}

// A prompt that other requests share goes on under rules with other budgets, as long as no query has chosen.
TEST_F(SelectEngine, HeadsThatReadBlocksForkWithinThePrompt) {
  const auto engine = MustCreate(TinyOptions());
  const auto plan_of = [&](int64_t budget) {
    auto plan = std::make_shared<HeadPlan>(HeadPlan::Dense(engine->shape()));
    for (HeadRule& rule : plan->rules) rule = Selecting(Kind::kQuest, budget);
    return plan;
  };
  const std::vector<int32_t> prompt = IdsOf(1, 120), rest = IdsOf(2, 20);
  const SequenceOptions wanted{.plan = plan_of(32), .prompt_tokens = 120, .max_tokens = 200};
  const auto alone = *engine->NewSequence(wanted);
  Read(*engine, alone, prompt);
  const std::vector<float> expected = Read(*engine, alone, rest);
  const auto other = *engine->NewSequence({.plan = plan_of(64), .prompt_tokens = 150, .max_tokens = 200});
  Read(*engine, other, prompt);
  const auto fork = engine->Fork(*other, wanted);
  ASSERT_TRUE(fork.ok()) << fork.status().message();
  EXPECT_EQ(Read(*engine, *fork, rest), expected);
  EXPECT_FALSE(engine->Fork(**fork, {.plan = plan_of(64), .prompt_tokens = 120, .max_tokens = 200}).ok());
  EXPECT_NE(Read(*engine, other, rest), expected);
}

// What stands for blocks lies in pages that forks share until they are written to.
TEST_F(SelectEngine, BlocksHaveRepresentativesHoweverATextIsRead) {
  EngineOptions options = TinyOptions();
  options.page_tokens = 64;
  options.batch_invariant = true;
  const auto engine = MustCreate(options);
  auto plan = std::make_shared<HeadPlan>(HeadPlan::Dense(engine->shape()));
  for (HeadRule& rule : plan->rules) rule = Selecting(Kind::kInfLlm, 128);
  const std::vector<int32_t> prompt = IdsOf(3, 250), rest = IdsOf(4, 150), other = IdsOf(5, 90);
  const SequenceOptions wanted{.plan = plan, .prompt_tokens = 250, .max_tokens = 500};
  const auto alone = *engine->NewSequence(wanted);
  Read(*engine, alone, prompt);
  const std::vector<float> expected = Read(*engine, alone, rest);
  const auto original = *engine->NewSequence(wanted);
  for (size_t at = 0; at < prompt.size(); at += 50) Read(*engine, original, std::span(prompt).subspan(at, 50));
  const auto fork = *engine->Fork(*original);
  Read(*engine, fork, other);  // must not disturb the others
  const auto second_fork = *engine->Fork(*original);
  std::vector<float> one_by_one;
  for (size_t at = 0; at < rest.size(); ++at) {
    const std::vector<float> row = Read(*engine, original, std::span(rest).subspan(at, 1));
    one_by_one.insert(one_by_one.end(), row.begin(), row.end());
  }
  EXPECT_EQ(one_by_one, expected);
  EXPECT_EQ(Read(*engine, second_fork, rest), expected);
  const auto dense = *engine->NewSequence({.plan = nullptr, .prompt_tokens = 250, .max_tokens = 500});
  Read(*engine, dense, prompt);
  EXPECT_NE(Read(*engine, dense, rest), expected);
}

TEST_F(SelectEngine, ABlockDividesAPage) {
  EngineOptions options = TinyOptions();
  options.page_tokens = 48;
  const auto engine = MustCreate(options);
  auto plan = std::make_shared<HeadPlan>(HeadPlan::Dense(engine->shape()));
  plan->rules[0] = Selecting(Kind::kQuest, 20);
  EXPECT_TRUE(engine->Run(RequestFor(IdsOf(1, 30), plan, 5)).ok());
  plan->rules[0].select.block = 32;
  EXPECT_THAT(engine->Run(RequestFor(IdsOf(1, 30), plan, 5)).status().message(), HasSubstr("pages have 48"));
}

// What tokens are was noted when they came, by the lists of that plan.
TEST_F(SelectEngine, AForkUnderOtherTokenListsIsRefused) {
  const auto engine = MustCreate(TinyOptions());
  auto plan = std::make_shared<HeadPlan>(HeadPlan::Dense(engine->shape()));
  plan->rules[0] = Selecting(Kind::kFastGen, 20);
  plan->tokens = TokensOf(3);
  const SequenceOptions options{.plan = plan, .prompt_tokens = 60, .max_tokens = 100};
  const auto sequence = *engine->NewSequence(options);
  Read(*engine, sequence, IdsOf(1, 15));
  EXPECT_TRUE(engine->Fork(*sequence, options).ok());
  auto other = std::make_shared<HeadPlan>(*plan);
  other->tokens = TokensOf(4);
  const auto fork = engine->Fork(*sequence, {.plan = other, .prompt_tokens = 60, .max_tokens = 100});
  ASSERT_FALSE(fork.ok());
  EXPECT_THAT(fork.status().message(), HasSubstr("15 tokens so far were marked by the lists of their own plan"));
}

// In a batch each text is marked by its own plan's lists, and one whose plan lists none is not.
TEST_F(SelectEngine, TokensAreMarkedByTheirOwnPlan) {
  const auto engine = MustCreate(TinyOptions());
  std::vector<Request> requests;
  std::vector<std::vector<int32_t>> alone;
  for (int i = 0; i < 4; ++i) {
    auto plan = std::make_shared<HeadPlan>(HeadPlan::Dense(engine->shape()));
    for (HeadRule& rule : plan->rules) rule = Selecting(i == 1 ? Kind::kH2o : Kind::kFastGen, 12);
    for (HeadRule& rule : plan->rules) rule.select.punctuation = rule.select.kind == Kind::kFastGen;
    if (i != 1) plan->tokens = TokensOf(i);
    requests.push_back(RequestFor(IdsOf(9, 10), plan, 60));  // all the same text, in one chunk
    const auto result = engine->Run(requests.back());
    ASSERT_TRUE(result.ok()) << result.status().message();
    alone.push_back(result->tokens);
  }
  EXPECT_NE(alone[0], alone[1]);
  EXPECT_NE(alone[0], alone[2]);
  std::vector<RequestId> ids;
  for (Request& request : requests) ids.push_back(*engine->Submit(std::move(request)));
  for (bool more = true; more;) more = *engine->Step();
  for (size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(engine->Take(ids[i])->tokens, alone[i]) << i;
}

// A dense prefix has no notes of what was seen.
TEST_F(SelectEngine, AForkOfADenseTextIsRefused) {
  const auto engine = MustCreate(TinyOptions());
  const auto shared = *engine->NewSequence({.plan = nullptr, .prompt_tokens = 0, .max_tokens = 1000});
  Read(*engine, shared, IdsOf(1, 50));
  auto plan = std::make_shared<HeadPlan>(HeadPlan::Dense(engine->shape()));
  plan->rules[0] = Selecting(Kind::kSnapKv, 20);
  EXPECT_FALSE(engine->CanBeginFull(*plan));
  const auto fork = engine->Fork(*shared, {.plan = plan, .prompt_tokens = 60, .max_tokens = 1000});
  ASSERT_FALSE(fork.ok());
  EXPECT_THAT(fork.status().message(), HasSubstr("50 tokens"));
}

TEST_F(SelectEngine, WhatCannotBeCombinedIsRefusedByName) {
  struct Case {
    std::string model;
    std::string kv_dtype;
    bool batch_invariant;
    Kind kind;
    std::string message;  // empty: accepted
  };
  const Case cases[] = {
      {"llama-gqa", "q4", false, Kind::kH2o, "q4"},
      {"llama-gqa", "f16,q4", false, Kind::kSnapKv, "q4"},
      {"llama-gqa", "q8", false, Kind::kTova, ""},
      {"mistral-window", "f16", false, Kind::kH2o, "sliding window"},
      {"mpt", "f16", false, Kind::kTova, "ALiBi"},
      {"llama-gqa", "f16", true, Kind::kH2o, "batch_invariant"},
      {"llama-gqa", "f16", true, Kind::kSnapKv, ""},
      {"llama-gqa", "f16", true, Kind::kExpected, "batch_invariant"},
      {"llama-sink-logits", "f16", false, Kind::kH2o, ""},
      {"gpt2", "f16", false, Kind::kTova, ""},
      {"llama-gqa", "q4", false, Kind::kQuest, "q4"},
      {"llama-gqa", "f16,q4", false, Kind::kQuest, ""},
      {"llama-gqa", "q8", true, Kind::kQuest, ""},
      {"mistral-window", "f16", false, Kind::kQuest, "sliding window"},
      {"mpt", "f16", false, Kind::kQuest, "ALiBi"},
      {"llama-gqa", "q8", true, Kind::kInfLlm, ""},
      {"mpt", "f16", false, Kind::kInfLlm, "ALiBi"},
  };
  for (const Case& each : cases) {
    EngineOptions options = TinyOptions(each.model);
    options.kv_dtype = each.kv_dtype;
    options.page_tokens = 0;
    options.batch_invariant = each.batch_invariant;
    const auto engine = MustCreate(options);
    auto plan = std::make_shared<HeadPlan>(HeadPlan::Dense(engine->shape()));
    plan->rules[1] = Selecting(each.kind, 20);
    std::vector<int32_t> ids = IdsOf(1, 30);
    for (int32_t& id : ids) id %= 60;  // the smallest vocabulary
    const auto result = engine->Run(RequestFor(ids, plan, 5));
    EXPECT_EQ(result.ok(), each.message.empty()) << each.model << " " << result.status().message();
    if (result.ok()) continue;
    EXPECT_THAT(result.status().message(), HasSubstr("KV head 1: heads that "));
    EXPECT_THAT(result.status().message(), HasSubstr(each.message));
  }
}

}  // namespace
}  // namespace headwise
