// On a device a step is put on the queue while the one before it runs (EngineImpl::LaunchAhead). Nobody may
// notice: what comes out, and what is left to go on with, is what a host's engine gives.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headwise/tokenizer.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/sequence.h"
#include "support/engines.h"
#include "support/golden.h"
#include "support/requests.h"

namespace headwise {
namespace {

using testing::ElementsAreArray;

// One engine whose memory the host reads, and one that goes ahead.
class StepsAhead : public testing::Test {
 protected:
  void SetUp() override {
    EngineOptions options = ExactOptions(BundledModel(), {"cpu"});
    options.num_threads = 1;
    Result<std::unique_ptr<Engine>> host = Engine::Create(options);
    ASSERT_TRUE(host.ok()) << host.status().message();
    host_ = *std::move(host);
    if (IsTestDevice("cuda")) {
      far_ = MustCreate(options);
      return;
    }
    auto near = MakeBackend({.name = "cpu", .num_threads = 1});
    ASSERT_TRUE(near.ok());
    auto far = std::make_unique<FarBackend>(*std::move(near));
    backend_ = far.get();
    Result<std::unique_ptr<Engine>> engine = CreateEngine(options, std::move(far));
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    far_ = *std::move(engine);
  }

  std::vector<int32_t> Ids(const std::string& text) const {
    const auto ids = host_->tokenizer().Encode(text);
    EXPECT_TRUE(ids.ok());
    return *ids;
  }
  // Steps that followed unseen tokens; nothing where the device does not count them.
  std::optional<int64_t> NumFollowed() const {
    if (backend_ == nullptr) return std::nullopt;
    return backend_->num_followed();
  }
  static RequestResult Run(Engine& engine, Request request) {
    Result<RequestResult> result = engine.Run(std::move(request));
    EXPECT_TRUE(result.ok()) << result.status().message();
    return result.ok() ? *std::move(result) : RequestResult{};
  }
  // What an engine says to all of them at once.
  static std::vector<RequestResult> RunAll(Engine& engine, const std::vector<Request>& requests) {
    std::vector<RequestId> ids;
    for (const Request& request : requests) {
      const auto id = engine.Submit(request);
      EXPECT_TRUE(id.ok()) << id.status().message();
      ids.push_back(*id);
    }
    for (bool goes_on = true; goes_on;) goes_on = *engine.Step();
    std::vector<RequestResult> results;
    for (const RequestId id : ids) results.push_back(*engine.Take(id));
    return results;
  }
  static std::shared_ptr<Sequence> NewSequence(Engine& engine, int64_t max_tokens) {
    const auto sequence = engine.NewSequence({.plan = nullptr, .prompt_tokens = 0, .max_tokens = max_tokens});
    EXPECT_TRUE(sequence.ok());
    return *sequence;
  }

  std::unique_ptr<Engine> host_, far_;
  FarBackend* backend_ = nullptr;  // null on a GPU
};

void ExpectSame(const RequestResult& far, const RequestResult& host) {
  EXPECT_THAT(far.tokens, ElementsAreArray(host.tokens));
  EXPECT_EQ(far.text, host.text);
  EXPECT_EQ(far.finish, host.finish);
  EXPECT_EQ(far.metrics.new_tokens, host.metrics.new_tokens);
}

TEST_F(StepsAhead, AllStepsButTheFirstFollowUnseenTokens) {
  const Request request = RequestOf(Ids("The capital of"), 20);
  ExpectSame(Run(*far_, request), Run(*host_, request));
  EXPECT_EQ(NumFollowed().value_or(19), 19);
}

TEST_F(StepsAhead, WhatIsDrawnIsFollowed) {
  Request request = RequestOf(Ids("The capital of"), 20);
  request.sampling = {.temperature = 1.0f, .top_k = 40, .top_p = 0.9f, .logit_bias = {{17, 2.0f}}, .seed = 7};
  ExpectSame(Run(*far_, request), Run(*host_, request));
  EXPECT_EQ(NumFollowed().value_or(19), 19);
}

// The next draw depends on what came of this one.
TEST_F(StepsAhead, NobodyWhoCountsTokensIsFollowed) {
  for (const SamplingOptions& sampling :
       {SamplingOptions{.temperature = 1.0f, .repetition_penalty = 1.3f, .seed = 7},
        SamplingOptions{.frequency_penalty = 0.5f}, SamplingOptions{.temperature = 0.8f, .presence_penalty = 1.0f}}) {
    Request request = RequestOf(Ids("The capital of"), 20);
    request.sampling = sampling;
    ExpectSame(Run(*far_, request), Run(*host_, request));
    EXPECT_EQ(NumFollowed().value_or(0), 0);
  }
}

// Drawn, greedy and read by a host in the same steps, with log-probabilities of some.
TEST_F(StepsAhead, LogprobsOfDrawnTokens) {
  std::vector<Request> requests;
  for (int64_t i = 0; i < 6; ++i) {
    requests.push_back(RequestOf(IdsOf(static_cast<uint64_t>(i), static_cast<size_t>(5 + 3 * i)), 8));
    if (i % 2 == 0) requests.back().sampling = {.temperature = 0.7f, .min_p = 0.01f, .seed = static_cast<uint64_t>(i)};
    if (i != 3) requests.back().logprobs = 2 * i;
    if (i == 4) requests.back().sampling.repetition_penalty = 1.2f;
  }
  const auto far = RunAll(*far_, requests);
  const auto host = RunAll(*host_, requests);
  for (size_t i = 0; i < far.size(); ++i) {
    SCOPED_TRACE(i);
    ExpectSame(far[i], host[i]);
    ASSERT_EQ(far[i].logprobs.size(), i == 3 ? 0U : 8U);
    for (size_t token = 0; token < far[i].logprobs.size(); ++token) {
      const TokenLogprobs& ours = far[i].logprobs[token];
      const TokenLogprobs& expected = host[i].logprobs[token];
      EXPECT_EQ(ours.chosen.id, expected.chosen.id);
      EXPECT_NEAR(ours.chosen.logprob, expected.chosen.logprob, 1e-4);
      ASSERT_EQ(ours.top.size(), 2 * i);
      for (size_t rank = 0; rank < ours.top.size(); ++rank) {
        EXPECT_NEAR(ours.top[rank].logprob, expected.top[rank].logprob, 1e-4);
      }
    }
  }
}

TEST_F(StepsAhead, RequestsOfManyLengths) {
  std::vector<Request> requests;
  for (int64_t i = 0; i < 7; ++i) {
    requests.push_back(RequestOf(IdsOf(static_cast<uint64_t>(i), static_cast<size_t>(3 + 5 * i)), 4 + 3 * i));
  }
  const auto far = RunAll(*far_, requests);
  const auto host = RunAll(*host_, requests);
  for (size_t i = 0; i < requests.size(); ++i) ExpectSame(far[i], host[i]);
  EXPECT_GT(NumFollowed().value_or(11), 10);
}

TEST_F(StepsAhead, StopStringsAndStopTokensEndAText) {
  const RequestResult whole = Run(*host_, RequestOf(Ids("Once upon a time"), 24));
  Request stopped = RequestOf(Ids("Once upon a time"), 24);
  stopped.eos = EosMode::kStop;
  stopped.stop_tokens = {whole.tokens[10]};
  Request cut = RequestOf(Ids("Once upon a time"), 24);
  cut.stop = {whole.text.substr(whole.text.size() / 2, 6)};
  const std::vector<Request> requests{stopped, cut, RequestOf(Ids("Once upon a time"), 24)};
  const auto far = RunAll(*far_, requests);
  const auto host = RunAll(*host_, requests);
  EXPECT_EQ(host[0].finish, FinishReason::kEos);
  EXPECT_EQ(host[1].finish, FinishReason::kStopString);
  for (size_t i = 0; i < requests.size(); ++i) ExpectSame(far[i], host[i]);
}

// The token that ended the first turn was read ahead; the second turn must not read it again.
TEST_F(StepsAhead, AKeptSequenceGoesOnAfterAnEarlyEnd) {
  const RequestResult whole = Run(*host_, RequestOf(Ids("Once upon a time"), 24));
  const int32_t last = whole.tokens[10];
  const auto num_tokens = std::ranges::find(whole.tokens, last) - whole.tokens.begin() + 1;
  std::vector<std::vector<int32_t>> answers;
  for (Engine* engine : {far_.get(), host_.get()}) {
    const auto sequence = NewSequence(*engine, 128);
    Request first = RequestOf(Ids("Once upon a time"), 24, sequence);
    first.eos = EosMode::kStop;
    first.stop_tokens = {last};
    EXPECT_EQ(Run(*engine, first).finish, FinishReason::kEos);
    const auto fork = engine->Fork(*sequence);
    ASSERT_TRUE(fork.ok());
    EXPECT_EQ(sequence->NumTextTokens(), static_cast<int64_t>(first.prompt.size()) + num_tokens);
    EXPECT_EQ((*fork)->NumTextTokens(), sequence->NumTextTokens());
    answers.push_back(Run(*engine, RequestOf(Ids(" and then"), 12, sequence)).tokens);
    answers.push_back(Run(*engine, RequestOf(Ids(" and then"), 12, *fork)).tokens);
  }
  EXPECT_THAT(answers[0], ElementsAreArray(answers[2]));
  EXPECT_THAT(answers[1], ElementsAreArray(answers[3]));
  EXPECT_THAT(answers[1], ElementsAreArray(answers[0]));
}

TEST_F(StepsAhead, AForkFromInsideACallbackHasTheTextSoFar) {
  std::vector<std::vector<int32_t>> answers;
  for (Engine* engine : {far_.get(), host_.get()}) {
    const auto sequence = NewSequence(*engine, 128);
    std::shared_ptr<Sequence> fork;
    Request request = RequestOf(Ids("Once upon a time"), 16, sequence);
    int num_tokens = 0;
    request.on_token = [&](int32_t) {
      if (++num_tokens != 8) return true;
      const auto forked = engine->Fork(*sequence);
      EXPECT_TRUE(forked.ok());
      fork = *forked;
      EXPECT_EQ(fork->NumTextTokens(), static_cast<int64_t>(Ids("Once upon a time").size()) + 8);
      return true;
    };
    Run(*engine, request);
    answers.push_back(Run(*engine, RequestOf(Ids(" and then"), 12, fork)).tokens);
  }
  EXPECT_THAT(answers[0], ElementsAreArray(answers[1]));
}

TEST_F(StepsAhead, CancellingAndDroppingWhileAStepIsUnderWay) {
  const Request request = RequestOf(Ids("The capital of"), 1000);
  const auto cancelled = far_->Submit(request);
  const auto taken = far_->Submit(request);
  const auto stays = far_->Submit(RequestOf(Ids("The capital of"), 40));
  ASSERT_TRUE(cancelled.ok() && taken.ok() && stays.ok());
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(*far_->Step());
  far_->Cancel(*cancelled);
  EXPECT_TRUE(far_->Take(*taken).ok());
  for (bool goes_on = true; goes_on;) goes_on = *far_->Step();
  EXPECT_EQ(far_->Take(*cancelled)->finish, FinishReason::kCancelled);
  EXPECT_THAT(far_->Take(*stays)->tokens, ElementsAreArray(Run(*host_, RequestOf(Ids("The capital of"), 40)).tokens));
  EXPECT_EQ(far_->kv_bytes(), 0);
}

// Its step is still on the queue; whoever comes next has a clean one.
TEST_F(StepsAhead, WhoComesWhileAnOldStepIsUnderWay) {
  Request endless = RequestOf(Ids("The capital of"), 1000);
  int num_tokens = 0;
  endless.on_token = [&](int32_t) { return ++num_tokens < 5; };
  for (int i = 0; i < 3; ++i) {
    num_tokens = 0;
    EXPECT_EQ(Run(*far_, endless).finish, FinishReason::kCancelled);
    const Request request = RequestOf(Ids("In the year"), 10);
    ExpectSame(Run(*far_, request), Run(*host_, request));
  }
}

TEST_F(StepsAhead, AnEngineMayEndWithAStepUnderWay) {
  ASSERT_TRUE(far_->Submit(RequestOf(Ids("The capital of"), 1000)).ok());
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(*far_->Step());
  far_.reset();
}

TEST_F(StepsAhead, MemoryThatEndsIsAnAnswerThere) {
  if (backend_ == nullptr) GTEST_SKIP() << "its memory is refused by the far device alone";
  const auto id = far_->Submit(RequestOf(Ids("The capital of"), 4000));
  ASSERT_TRUE(id.ok());
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(*far_->Step());
  backend_->device().RefuseAfter(0);
  for (bool goes_on = true; goes_on;) goes_on = *far_->Step();
  const auto result = far_->Take(*id);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->finish, FinishReason::kError);
  EXPECT_EQ(result->status.code(), StatusCode::kOutOfMemory);
  // All that it said before is what it would have said.
  const auto whole = Run(*host_, RequestOf(Ids("The capital of"), static_cast<int64_t>(result->tokens.size())));
  EXPECT_THAT(result->tokens, ElementsAreArray(whole.tokens));
  EXPECT_GT(result->tokens.size(), 100);
  backend_->device().RefuseAfter(-1);
  const Request again = RequestOf(Ids("The capital of"), 10);
  ExpectSame(Run(*far_, again), Run(*host_, again));
}

}  // namespace
}  // namespace headwise
