// Requests that are wrong, meet each other, or end in other ways than by their last token.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "backend/all_backends.h"
#include "engine/engine_impl.h"
#include "kv/kv_bytes.h"
#include "support/engines.h"
#include "support/golden.h"
#include "support/requests.h"

namespace headwise {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

EngineOptions TinyOptions() {
  EngineOptions options = ExactOptions(SourcePath("tests/golden/tiny/llama-gqa"), {"cpu"});
  options.page_tokens = 16;
  return options;
}

std::shared_ptr<Sequence> MustMake(Engine& engine, int64_t max_tokens) {
  auto sequence = engine.NewSequence({.plan = nullptr, .prompt_tokens = 0, .max_tokens = max_tokens});
  EXPECT_TRUE(sequence.ok()) << sequence.status().message();
  return sequence.ok() ? *std::move(sequence) : nullptr;
}

RequestResult RunToEnd(Engine& engine, RequestId id) {
  while (*engine.Step()) {
  }
  auto result = engine.Take(id);
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result.ok() ? *std::move(result) : RequestResult{};
}

Status ReadIds(Engine& engine, std::shared_ptr<Sequence> sequence, std::span<const int32_t> ids,
               std::vector<float>* rows = nullptr) {
  ForcedRun run;
  run.sequence = std::move(sequence);
  run.ids = ids;
  if (rows != nullptr) {
    run.rows = ForcedRun::Rows::kEvery;
    run.on_row = [rows](int64_t, std::span<const float> logits, std::span<const float>) {
      rows->insert(rows->end(), logits.begin(), logits.end());
      return true;
    };
  }
  return engine.RunForced(run);
}

TEST(Bounds, TokenCountsAreNamedWhereTheyCannotBe) {
  EngineOptions options = TinyOptions();
  options.kv_limit_bytes = 1 << 20;
  const auto engine = MustCreate(options);
  for (const int64_t num : {kHuge, kHuge / 2, kMaxSequenceTokens, int64_t{-1}}) {
    const auto refused = engine->Submit(RequestOf({1, 2}, num));
    ASSERT_FALSE(refused.ok()) << num;
    EXPECT_THAT(refused.status().message(), HasSubstr("max_new_tokens"));
    EXPECT_THAT(refused.status().message(), HasSubstr(std::to_string(num)));
    EXPECT_THAT(refused.status().message(), HasSubstr(std::to_string(kMaxSequenceTokens - 2)));
  }
  for (const int64_t num : {kHuge, kMaxSequenceTokens + 1, int64_t{-1}}) {
    EXPECT_THAT(engine->NewSequence({.plan = nullptr, .prompt_tokens = 1, .max_tokens = num}).status().message(),
                HasSubstr("max_tokens"));
    EXPECT_THAT(engine->NewSequence({.plan = nullptr, .prompt_tokens = num, .max_tokens = 1}).status().message(),
                HasSubstr("prompt_tokens"));
  }
  // On a sequence, too: the sum with what it holds must not wrap.
  const auto sequence = MustMake(*engine, 100);
  ASSERT_TRUE(ReadIds(*engine, sequence, IdsOf(1, 10)).ok());
  EXPECT_FALSE(engine->Submit(RequestOf({1}, kHuge - 10, sequence)).ok());
  ForcedRun run;
  const std::vector<int32_t> ids = {1, 2};
  run.ids = ids;
  run.chunk_tokens = kMaxChunkTokens + 1;
  EXPECT_THAT(engine->RunForced(run).message(), HasSubstr("chunk_tokens"));
}

// A model that has learned a vector for each position has none for those beyond.
TEST(Bounds, LearnedPositionsEndATextAndHaveNoOtherPlace) {
  const auto engine = MustCreate(ExactOptions(SourcePath("tests/golden/tiny/gpt2"), {.backend = "cpu", .isa = "auto"}));
  ASSERT_NE(engine, nullptr);
  const int64_t num_positions = engine->config().num_positions;
  ASSERT_EQ(num_positions, 128);
  const std::vector<int32_t> ids(100, 5);
  EXPECT_EQ(engine->Run(RequestOf(ids, num_positions - 100))->tokens.size(), 28u);
  const auto refused = engine->Submit(RequestOf(ids, num_positions - 99));
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidInput);
  EXPECT_THAT(refused.status().message(), HasSubstr("129 tokens, but the model has learned 128 positions"));

  auto plan = std::make_shared<HeadPlan>(HeadPlan::Dense(engine->shape()));
  plan->At(1, 2) = HeadRule::Stream(2, 8);
  EXPECT_TRUE(engine->NewSequence({.plan = plan, .prompt_tokens = 10, .max_tokens = 20}).ok());
  plan->At(1, 2).positions = Positions::kCache;
  EXPECT_THAT(engine->NewSequence({.plan = plan, .prompt_tokens = 10, .max_tokens = 20}).status().message(),
              HasSubstr("layer 1, KV head 2: positions in the cache"));
}

TEST(Bounds, TheLongestTextIsCounted) {
  EngineOptions options = TinyOptions();
  options.kv_limit_bytes = 1 << 20;
  const auto refused = MustCreate(options)->Submit(RequestOf({1, 2}, kMaxSequenceTokens - 2));
  EXPECT_EQ(refused.status().code(), StatusCode::kOutOfMemory) << refused.status().message();
  EXPECT_TRUE(MustCreate(TinyOptions())->Submit(RequestOf({1, 2}, kMaxSequenceTokens - 2)).ok());
  // In a large model it is more bytes than fit into 64 bits.
  const HeadPlan plan = HeadPlan::Dense(
      {.architecture = "llama", .num_layers = 128, .num_q_heads = 128, .num_kv_heads = 128, .head_dim = 256});
  const int64_t page_bytes = 2 * 32 * 256 * 4;
  EXPECT_EQ(PeakKvBytes({.plan = &plan,
                         .limits = {.prompt_tokens = 1, .max_tokens = kMaxSequenceTokens},
                         .full_pages = {.newest = page_bytes},
                         .bounded_pages = {.newest = page_bytes}}),
            kHuge);
}

TEST(ForcedRuns, KeepToTheSequencesLimit) {
  const auto engine = MustCreate(TinyOptions());
  const auto sequence = MustMake(*engine, 10);
  EXPECT_TRUE(ReadIds(*engine, sequence, IdsOf(1, 6)).ok());
  const Status status = ReadIds(*engine, sequence, IdsOf(2, 5));
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr("11 tokens"));
  EXPECT_EQ(Engine::NumTokens(*sequence), 6);
  EXPECT_TRUE(ReadIds(*engine, sequence, IdsOf(2, 4)).ok());
}

TEST(ForcedRuns, DoNotRunOnASequenceThatARequestHas) {
  const auto engine = MustCreate(TinyOptions());
  const auto sequence = MustMake(*engine, 100);
  const RequestId id = *engine->Submit(RequestOf(IdsOf(1, 5), 20, sequence));
  ASSERT_TRUE(*engine->Step());
  EXPECT_THAT(ReadIds(*engine, sequence, IdsOf(2, 5)).message(), HasSubstr("another request"));
  EXPECT_EQ(RunToEnd(*engine, id).tokens.size(), 20u);
  EXPECT_TRUE(ReadIds(*engine, sequence, IdsOf(2, 5)).ok());
}

// The token sampled last is part of the text that the run continues.
TEST(ForcedRuns, ReadThePendingTokenFirst) {
  const auto engine = MustCreate(TinyOptions());
  const std::vector<int32_t> prompt = IdsOf(1, 12);
  const std::vector<int32_t> rest = IdsOf(2, 9);
  const auto sequence = MustMake(*engine, 100);
  const auto answer = engine->Run(RequestOf(prompt, 4, sequence));
  ASSERT_TRUE(answer.ok());
  std::vector<float> rows;
  ASSERT_TRUE(ReadIds(*engine, sequence, rest, &rows).ok());

  std::vector<int32_t> whole = prompt;
  whole.insert(whole.end(), answer->tokens.begin(), answer->tokens.end());
  const auto other = MustMake(*engine, 100);
  ASSERT_TRUE(ReadIds(*engine, other, whole).ok());
  std::vector<float> expected;
  ASSERT_TRUE(ReadIds(*engine, other, rest, &expected).ok());
  ASSERT_EQ(rows.size(), expected.size());
  EXPECT_LE(MaxDifference(rows, expected), 1e-3);
  EXPECT_EQ(Engine::NumTokens(*sequence), Engine::NumTokens(*other));
}

// Worst cases are reserved for the engine's steps; a longer one needs more, which must be there.
TEST(ForcedRuns, LongerStepsAreReservedFor) {
  EngineOptions options = TinyOptions();
  options.chunk_tokens = 16;
  auto plan = std::make_shared<HeadPlan>(HeadPlan::Dense(MustCreate(options)->shape()));
  for (HeadRule& rule : plan->rules) rule = HeadRule::Stream(0, 16);
  const std::vector<int32_t> ids = IdsOf(1, 2000);
  const auto peak = [&](int64_t chunk_tokens) {
    const auto engine = MustCreate(options);
    const auto sequence = *engine->NewSequence({.plan = plan, .prompt_tokens = 2000, .max_tokens = 2000});
    ForcedRun run;
    run.sequence = sequence;
    run.ids = ids;
    run.chunk_tokens = chunk_tokens;
    const Status status = engine->RunForced(run);
    return std::pair(engine->kv_peak_bytes(), status);
  };
  const int64_t small_peak = peak(0).first;
  const int64_t large_peak = peak(2000).first;
  ASSERT_GT(large_peak, 4 * small_peak);
  options.kv_limit_bytes = 4 * small_peak;
  EXPECT_TRUE(peak(0).second.ok());
  const auto [bytes, status] = peak(2000);
  EXPECT_LE(bytes, options.kv_limit_bytes);
  EXPECT_EQ(status.code(), StatusCode::kOutOfMemory) << status.message();
}

TEST(ForcedRuns, WhatIsWrongWithOneIsNamed) {
  const auto engine = MustCreate(TinyOptions());
  const std::vector<int32_t> ids = IdsOf(1, 10);
  ForcedRun run;
  run.ids = ids;
  run.rows = ForcedRun::Rows::kEvery;
  EXPECT_THAT(engine->RunForced(run).message(), HasSubstr("on_row"));
  run.rows = ForcedRun::Rows::kListed;
  std::vector<int64_t> positions = {3};
  run.positions = positions;
  EXPECT_THAT(engine->RunForced(run).message(), HasSubstr("on_row"));
  int64_t num_rows = 0;
  run.on_row = [&](int64_t, std::span<const float>, std::span<const float>) { return ++num_rows < 2; };
  positions = {5, 4};
  run.positions = positions;
  EXPECT_THAT(engine->RunForced(run).message(), HasSubstr("ascending"));
  positions = {5, 10};
  run.positions = positions;
  EXPECT_THAT(engine->RunForced(run).message(), HasSubstr("beyond the 10 ids"));
  EXPECT_EQ(num_rows, 0) << "nothing runs of a run that is wrong";
  positions = {2, 3, 4};
  run.positions = positions;
  EXPECT_EQ(engine->RunForced(run).code(), StatusCode::kCancelled);
  EXPECT_EQ(num_rows, 2);
  EXPECT_EQ(engine->kv_bytes(), 0);
}

// Other requests go on in the same steps.
TEST(ForcedRuns, RunBesideOtherRequests) {
  const auto engine = MustCreate(TinyOptions());
  const auto alone = engine->Run(RequestOf(IdsOf(1, 50), 30));
  const ForcedRows expected = MustRunForced(*engine, IdsOf(2, 40), {}, 20, 7);
  const RequestId id = *engine->Submit(RequestOf(IdsOf(1, 50), 30));
  EXPECT_LE(MaxDifference(MustRunForced(*engine, IdsOf(2, 40), {}, 20, 7).logits, expected.logits), 1e-3);
  EXPECT_GT(engine->Peek(id)->metrics.new_tokens, 15);
  EXPECT_EQ(RunToEnd(*engine, id).tokens, alone->tokens);
}

// Continuing a fork taken in the middle of an answer gives the rest of the answer.
TEST(Forks, OfASequenceInUseHaveItsNewestToken) {
  const auto engine = MustCreate(TinyOptions());
  const auto sequence = MustMake(*engine, 200);
  const RequestId id = *engine->Submit(RequestOf(IdsOf(1, 30), 20, sequence));
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(*engine->Step());
  const std::vector<int32_t> so_far = engine->Peek(id)->tokens;
  ASSERT_EQ(so_far.size(), 8u);
  const auto fork = *engine->Fork(*sequence);
  const std::vector<int32_t> next = IdsOf(2, 5);
  const auto forked = engine->Run(RequestOf(next, 6, fork));
  ASSERT_TRUE(forked.ok()) << forked.status().message();

  std::vector<int32_t> whole = IdsOf(1, 30);
  whole.insert(whole.end(), so_far.begin(), so_far.end());
  whole.insert(whole.end(), next.begin(), next.end());
  EXPECT_EQ(forked->tokens, engine->Run(RequestOf(whole, 6))->tokens);
  RunToEnd(*engine, id);
}

TEST(Turns, ACancelledOneLeavesTheTextAsItWas) {
  const auto engine = MustCreate(TinyOptions());
  const auto sequence = MustMake(*engine, 200);
  const auto first = engine->Run(RequestOf(IdsOf(1, 20), 5, sequence));
  ASSERT_TRUE(first.ok());
  const auto long_turn = MustMake(*engine, 6000);
  const auto answer = engine->Run(RequestOf(IdsOf(4, 10), 5, long_turn));
  ASSERT_TRUE(answer.ok());
  // Two long prompts share the steps, so that a longer one is admitted and reads nothing.
  const RequestId book = *engine->Submit(RequestOf(IdsOf(3, 4000), 0));
  ASSERT_TRUE(engine->Submit(RequestOf(IdsOf(2, 4000), 0)).ok());
  // Cancelled in the queue, and after admission before its first step.
  const RequestId queued = *engine->Submit(RequestOf(IdsOf(5, 600), 5, sequence));
  engine->Cancel(queued);
  ASSERT_TRUE(*engine->Step());
  const RequestId admitted = *engine->Submit(RequestOf(IdsOf(5, 5000), 5, long_turn));
  ASSERT_TRUE(*engine->Step());
  engine->Cancel(admitted);
  static_cast<void>(*engine->Step());
  EXPECT_EQ(engine->Take(admitted)->finish, FinishReason::kCancelled);
  EXPECT_EQ(RunToEnd(*engine, book).finish, FinishReason::kLength);

  const auto expect_whole = [&](std::vector<int32_t> whole, const std::vector<int32_t>& tokens,
                                const std::shared_ptr<Sequence>& kept) {
    whole.insert(whole.end(), tokens.begin(), tokens.end());
    const std::vector<int32_t> next = IdsOf(6, 4);
    whole.insert(whole.end(), next.begin(), next.end());
    EXPECT_EQ(engine->Run(RequestOf(next, 8, kept))->tokens, engine->Run(RequestOf(whole, 8))->tokens);
  };
  expect_whole(IdsOf(1, 20), first->tokens, sequence);
  expect_whole(IdsOf(4, 10), answer->tokens, long_turn);
}

// Every turn counts for the penalty of a later one, whether it used one itself or was forced.
TEST(Turns, ThePenaltyKnowsTheWholeText) {
  const auto engine = MustCreate(TinyOptions());
  const auto sequence = MustMake(*engine, 300);
  const auto first = engine->Run(RequestOf(IdsOf(1, 40), 30, sequence));
  ASSERT_TRUE(first.ok());
  ASSERT_TRUE(ReadIds(*engine, sequence, IdsOf(2, 30)).ok());
  Request request = RequestOf(IdsOf(3, 10), 30, sequence);
  request.sampling.repetition_penalty = 1.8F;
  const auto second = engine->Run(request);
  ASSERT_TRUE(second.ok());

  std::vector<int32_t> whole = IdsOf(1, 40);
  whole.insert(whole.end(), first->tokens.begin(), first->tokens.end());
  for (const auto& more : {IdsOf(2, 30), IdsOf(3, 10)}) whole.insert(whole.end(), more.begin(), more.end());
  request.prompt = whole;
  request.sequence = nullptr;
  EXPECT_EQ(engine->Run(request)->tokens, second->tokens);
  request.sampling.repetition_penalty = 1;
  EXPECT_NE(engine->Run(request)->tokens, second->tokens) << "the penalty must matter here";
}

// Of the model's own distribution, whatever the sampler makes of it: what a forced run over the same text gives.
TEST(Logprobs, AreThoseOfTheRawLogits) {
  const auto engine = MustCreate(TinyOptions());
  const std::vector<int32_t> prompt = IdsOf(1, 20);
  Request request = RequestOf(prompt, 10);
  request.sampling = {.temperature = 2, .repetition_penalty = 1.5F, .presence_penalty = 1, .seed = 3};
  request.sampling.logit_bias = {{5, -std::numeric_limits<float>::infinity()}, {7, 3}};
  const auto plain = engine->Run(request);
  request.logprobs = 3;
  const auto result = engine->Run(request);
  ASSERT_TRUE(plain.ok() && result.ok()) << result.status().message();
  EXPECT_EQ(result->tokens, plain->tokens) << "asking changes nothing";
  EXPECT_TRUE(plain->logprobs.empty());
  ASSERT_EQ(result->logprobs.size(), result->tokens.size());

  std::vector<int32_t> whole = prompt;
  whole.insert(whole.end(), result->tokens.begin(), result->tokens.end());
  const std::vector<float> rows = MustRunForced(*engine, whole).logits;
  const size_t vocab_size = rows.size() / whole.size();
  for (size_t i = 0; i < result->tokens.size(); ++i) {
    const std::span<const float> row = std::span(rows).subspan((prompt.size() - 1 + i) * vocab_size, vocab_size);
    double sum = 0;
    for (const float logit : row) sum += std::exp(static_cast<double>(logit));
    const TokenLogprobs& found = result->logprobs[i];
    EXPECT_EQ(found.chosen.id, result->tokens[i]);
    EXPECT_NEAR(found.chosen.logprob, row[static_cast<size_t>(found.chosen.id)] - std::log(sum), 1e-3);
    ASSERT_EQ(found.top.size(), 3u);
    EXPECT_NEAR(found.top[0].logprob, *std::ranges::max_element(row) - std::log(sum), 1e-3);
    EXPECT_GE(found.top[0].logprob, found.top[1].logprob);
    EXPECT_GE(found.top[1].logprob, found.top[2].logprob);
  }
}

TEST(Logprobs, WhatCannotBeGivenIsRefused) {
  const auto engine = MustCreate(TinyOptions());
  Request request = RequestOf({1, 2}, 1);
  for (const int64_t num : {int64_t{-1}, kMaxLogprobs + 1, kHuge}) {
    request.logprobs = num;
    EXPECT_THAT(engine->Submit(request).status().message(), HasSubstr("logprobs is " + std::to_string(num)));
  }
  request.logprobs = 0;
  EXPECT_TRUE(engine->Run(request)->logprobs.at(0).top.empty());
  request.output = Request::Output::kStreamOnly;
  EXPECT_THAT(engine->Submit(request).status().message(), HasSubstr("kStreamOnly"));
}

// Its ids are the model's, whose vocabulary only the engine knows.
// A character that has not all of its bytes when the text ends is shown as U+FFFD, and may be what stops it.
TEST(Stops, ByHalfACharacterAtTheEnd) {
  const auto engine = MustCreate(ExactOptions(SourcePath("models/headwise-17m"), {"cpu"}));
  int32_t half = -1;
  for (int32_t id = 0; id < engine->config().vocab_size && half < 0; ++id) {
    StreamDecoder decoder(engine->tokenizer(), SpecialDisplay::kSkip);
    if (decoder.Push(id).empty() && decoder.Flush() == "\uFFFD") half = id;
  }
  ASSERT_GE(half, 0);
  for (const bool stops : {false, true}) {
    Request request = RequestOf({half}, 1);
    request.sampling.logit_bias = {{.id = half, .bias = std::numeric_limits<float>::infinity()}};
    request.logprobs = 1;
    if (stops) request.stop = {"\uFFFD"};
    const auto result = engine->Run(std::move(request));
    ASSERT_TRUE(result.ok()) << result.status().message();
    EXPECT_EQ(result->finish, stops ? FinishReason::kStopString : FinishReason::kLength);
    EXPECT_EQ(result->text, stops ? "" : "\uFFFD");
    EXPECT_EQ(result->tokens.size(), stops ? 0u : 1u);
    EXPECT_EQ(result->logprobs.size(), result->tokens.size());
  }
}

TEST(Sampling, BiasesAreOfTheModelsIds) {
  const auto engine = MustCreate(TinyOptions());
  const auto vocab_size = static_cast<int32_t>(MustRunForced(*engine, IdsOf(1, 1)).logits.size());
  Request request = RequestOf(IdsOf(1, 20), 3);
  request.sampling.logit_bias = {{vocab_size, 1}};
  EXPECT_THAT(engine->Submit(request).status().message(), HasSubstr("logit_bias: token id"));
  request.sampling.logit_bias = {{vocab_size - 1, std::numeric_limits<float>::infinity()}};
  EXPECT_EQ(engine->Run(request)->tokens, std::vector<int32_t>(3, vocab_size - 1));
  const int32_t best = engine->Run(RequestOf(IdsOf(1, 20), 1))->tokens.at(0);
  request.sampling.logit_bias = {{best, -std::numeric_limits<float>::infinity()}};
  EXPECT_NE(engine->Run(request)->tokens.at(0), best);
}

// What a request was promised can be gone when its turn comes: kept sequences have it. That is its own misfortune.
TEST(Admission, AnErrorBelongsToTheRequestThatHasIt) {
  EngineOptions options = TinyOptions();
  options.kv_limit_bytes = 768 << 10;  // 768 tokens
  const auto engine = MustCreate(options);
  const auto kept = engine->NewSequence({.plan = nullptr, .prompt_tokens = 0, .max_tokens = 400});
  ASSERT_TRUE(kept.ok()) << kept.status().message();
  const RequestId culprit = *engine->Submit(RequestOf(IdsOf(1, 600), 10));
  const auto run = engine->Run(RequestOf(IdsOf(2, 20), 5));
  ASSERT_TRUE(run.ok()) << run.status().message();
  EXPECT_EQ(run->tokens.size(), 5u);
  const auto result = engine->Take(culprit);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->finish, FinishReason::kError);
  EXPECT_EQ(result->status.code(), StatusCode::kOutOfMemory);
  EXPECT_THAT(result->status.message(), HasSubstr("are available"));
  EXPECT_EQ(engine->Run(RequestOf(IdsOf(1, 600), 10)).status().code(), StatusCode::kOutOfMemory);
}

// Who needs no memory does not wait behind somebody who does.
TEST(Admission, AKeptSequenceGoesOnWhileOthersWait) {
  EngineOptions options = TinyOptions();
  options.kv_limit_bytes = 768 << 10;  // 768 tokens
  const auto engine = MustCreate(options);
  const auto kept = *engine->NewSequence({.plan = nullptr, .prompt_tokens = 0, .max_tokens = 100});
  const RequestId first = *engine->Submit(RequestOf(IdsOf(1, 500), 50));
  const RequestId waits = *engine->Submit(RequestOf(IdsOf(2, 500), 5));
  const RequestId turn = *engine->Submit(RequestOf(IdsOf(3, 10), 5, kept));
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(*engine->Step());
  EXPECT_EQ(engine->Peek(first)->finish, FinishReason::kRunning);
  EXPECT_EQ(engine->Peek(waits)->metrics.new_tokens, 0);
  EXPECT_EQ(engine->Peek(turn)->finish, FinishReason::kLength);
  EXPECT_EQ(RunToEnd(*engine, waits).finish, FinishReason::kLength);
}

// However that came about: pages are the pool's to refuse.
TEST(Steps, ARequestWhoseCacheGetsNoPagesEndsAlone) {
  EngineImpl::Parts parts;
  parts.options = TinyOptions();
  const auto memory = parts.memory = std::make_shared<KvMemory>();
  memory->backend = *MakeBackend({});
  parts.model = *LoadModel(parts.options.model, *memory->backend);
  const auto engine = *MakeEngine(std::move(parts));
  const auto kept = MustMake(*engine, 100);
  const auto expected = engine->Run(RequestOf(IdsOf(1, 10), 15));
  const RequestId goes_on = *engine->Submit(RequestOf(IdsOf(1, 10), 15));
  const RequestId ends = *engine->Submit(RequestOf(IdsOf(2, 14), 50, kept));
  ASSERT_TRUE(*engine->Step());
  memory->usage().limit_bytes = engine->kv_bytes() + 1;  // a page of 16 tokens for each head of both, and no more
  while (engine->Peek(ends)->finish == FinishReason::kRunning) ASSERT_TRUE(*engine->Step());
  EXPECT_EQ(engine->Peek(ends)->finish, FinishReason::kError);
  EXPECT_EQ(engine->Peek(ends)->status.code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(engine->Peek(ends)->tokens.size(), 3u);
  // Nothing had changed: with room again the text goes on.
  memory->usage().limit_bytes = 0;
  std::vector<int32_t> whole = IdsOf(2, 14);
  whole.insert(whole.end(), engine->Peek(ends)->tokens.begin(), engine->Peek(ends)->tokens.end());
  whole.push_back(7);
  EXPECT_EQ(RunToEnd(*engine, goes_on).tokens, expected->tokens);
  EXPECT_EQ(engine->Run(RequestOf({7}, 5, kept))->tokens, engine->Run(RequestOf(whole, 5))->tokens);
}

TEST(Results, OfUnknownRequestsThereAreNone) {
  const auto engine = MustCreate(TinyOptions());
  EXPECT_EQ(engine->Peek(7), nullptr);
  EXPECT_EQ(engine->Take(7).status().code(), StatusCode::kNotFound);
  const RequestId id = *engine->Submit(RequestOf({1}, 1));
  EXPECT_EQ(RunToEnd(*engine, id).finish, FinishReason::kLength);
  EXPECT_EQ(engine->Peek(id), nullptr);
  EXPECT_THAT(engine->Take(id).status().message(), HasSubstr(std::to_string(id)));
}

TEST(Callbacks, MayTakeTheirOwnRequest) {
  const auto engine = MustCreate(TinyOptions());
  RequestId id = 0;
  std::optional<RequestResult> taken;
  Request request = RequestOf(IdsOf(1, 10), 50);
  request.on_token = [&](int32_t) {
    if (engine->Peek(id) != nullptr && engine->Peek(id)->metrics.new_tokens == 3) taken = *engine->Take(id);
    return true;
  };
  id = *engine->Submit(request);
  const RequestId other = *engine->Submit(RequestOf(IdsOf(2, 10), 10));
  EXPECT_EQ(RunToEnd(*engine, other).finish, FinishReason::kLength);
  ASSERT_TRUE(taken.has_value());
  EXPECT_EQ(taken->finish, FinishReason::kCancelled);
  EXPECT_EQ(taken->tokens.size(), 3u);
  EXPECT_EQ(engine->Peek(id), nullptr);
  EXPECT_EQ(engine->kv_bytes(), 0);
}

TEST(Callbacks, ThatThrowEndTheirRequestAlone) {
  const auto engine = MustCreate(TinyOptions());
  Request request = RequestOf(IdsOf(1, 10), 50);
  request.on_token = [count = 0](int32_t) mutable -> bool {
    if (++count == 3) throw std::runtime_error("no more paper");
    return true;
  };
  const RequestId id = *engine->Submit(request);
  const RequestId other = *engine->Submit(RequestOf(IdsOf(2, 10), 10));
  EXPECT_NO_THROW(EXPECT_EQ(RunToEnd(*engine, other).finish, FinishReason::kLength));
  const auto result = engine->Take(id);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->finish, FinishReason::kError);
  EXPECT_THAT(result->status.message(), HasSubstr("no more paper"));
  EXPECT_EQ(result->tokens.size(), 3u);
  EXPECT_EQ(engine->kv_bytes(), 0);

  ForcedRun run;
  const std::vector<int32_t> ids = IdsOf(1, 5);
  run.ids = ids;
  run.on_progress = [](int64_t) { throw 5; };
  EXPECT_THAT(engine->RunForced(run).message(), HasSubstr("threw"));
}

TEST(Callbacks, DoNotStep) {
  const auto engine = MustCreate(TinyOptions());
  std::vector<std::string> messages;
  Request request = RequestOf(IdsOf(1, 10), 1);
  request.on_token = [&](int32_t) {
    messages.push_back(engine->Step().status().message());
    messages.push_back(engine->Run(RequestOf({1}, 1)).status().message());
    messages.push_back(ReadIds(*engine, nullptr, IdsOf(1, 2)).message());
    EXPECT_TRUE(engine->Submit(RequestOf({1}, 1)).ok());
    return true;
  };
  ASSERT_TRUE(engine->Run(request).ok());
  EXPECT_THAT(messages, testing::ElementsAre(HasSubstr("Step: called by a callback"), HasSubstr("Run: called"),
                                             HasSubstr("RunForced: called")));
  EXPECT_FALSE(*engine->Step());
}

TEST(Sequences, OfAnotherEngineAreRefused) {
  const auto engine = MustCreate(TinyOptions());
  const auto other = MustCreate(TinyOptions());
  const auto sequence = MustMake(*other, 100);
  EXPECT_THAT(engine->Submit(RequestOf({1}, 1, sequence)).status().message(), HasSubstr("another engine"));
  EXPECT_THAT(ReadIds(*engine, sequence, IdsOf(1, 2)).message(), HasSubstr("another engine"));
  EXPECT_THAT(engine->Fork(*sequence).status().message(), HasSubstr("another engine"));
  EXPECT_THAT(engine->Fork(*sequence, {.plan = nullptr, .prompt_tokens = 1, .max_tokens = 100}).status().message(),
              HasSubstr("another engine"));
  EXPECT_TRUE(other->Run(RequestOf({1}, 1, sequence)).ok());
  auto plan = std::make_shared<HeadPlan>(HeadPlan::Dense(other->shape()));
  Request request = RequestOf({1}, 1, sequence);
  request.plan = plan;
  EXPECT_THAT(other->Submit(request).status().message(), HasSubstr("one of the two"));
}

TEST(Sequences, MayOutliveTheirEngine) {
  auto engine = MustCreate(TinyOptions());
  auto sequence = MustMake(*engine, 100);
  ASSERT_TRUE(ReadIds(*engine, sequence, IdsOf(1, 40)).ok());
  engine.reset();
  sequence.reset();
}

}  // namespace
}  // namespace headwise
