// The engine behind its own thread: many clients, slow ones, ones that leave, and the end of it all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headwise/service.h>
#include <headwise/tokenizer.h>

#include <atomic>
#include <chrono>
#include <future>
#include <stdexcept>
#include <thread>

#include "support/engines.h"
#include "support/golden.h"
#include "support/requests.h"

namespace headwise {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

EngineOptions TinyOptions() {
  EngineOptions options = ExactOptions(SourcePath("tests/golden/tiny/llama-gqa"), {"cpu"});
  options.page_tokens = 16;
  options.num_threads = 2;
  return options;
}

std::unique_ptr<Service> MustServe(const ServiceOptions& options = {}, int64_t kv_limit_bytes = 0) {
  EngineOptions engine = TinyOptions();
  engine.kv_limit_bytes = kv_limit_bytes;
  auto service = Service::Create(MustCreate(engine), options);
  EXPECT_TRUE(service.ok()) << service.status().message();
  return service.ok() ? *std::move(service) : nullptr;
}

std::unique_ptr<RequestStream> MustSubmit(Service& service, Request request) {
  auto stream = service.Submit(std::move(request));
  EXPECT_TRUE(stream.ok()) << stream.status().message();
  return stream.ok() ? *std::move(stream) : nullptr;
}

// All events of one request.
struct Heard {
  std::vector<int32_t> tokens;
  std::string text;
  std::optional<RequestResult> result;

  void Add(const RequestEvent& event) {
    EXPECT_FALSE(result) << "nothing comes after the final event";
    if (event.token) tokens.push_back(*event.token);
    text += event.text;
    result = event.result;
  }
};

Heard Listen(RequestStream& stream) {
  Heard heard;
  while (const auto event = stream.Next()) heard.Add(*event);
  EXPECT_TRUE(stream.is_over());
  return heard;
}

std::vector<int32_t> TokensAlone(uint64_t seed, size_t num, int64_t max_new_tokens) {
  return MustCreate(TinyOptions())->Run(RequestOf(IdsOf(seed, num), max_new_tokens))->tokens;
}

// Until the service has seen as much.
template <typename Condition>
bool WaitUntil(const Condition& condition) {
  const auto deadline = RequestStream::Clock::now() + std::chrono::minutes(1);
  while (RequestStream::Clock::now() < deadline) {
    if (condition()) return true;
    std::this_thread::yield();
  }
  return false;
}
bool IsIdle(const Service& service) {
  const ServiceStats stats = service.stats();
  return stats.num_running + stats.num_waiting == 0;
}

TEST(Service, SaysWhatTheEngineSays) {
  const std::string model = SourcePath("models/headwise-17m");
  EngineOptions options;
  options.model = model;
  const auto engine = MustCreate(options);
  auto service = Service::Create(MustCreate(options));
  ASSERT_TRUE(service.ok()) << service.status().message();
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    Request request = RequestOf(IdsOf(seed, 30), 40);
    request.sampling = {.temperature = 1, .seed = seed};
    request.stop = {"the", "e "};
    const auto expected = engine->Run(request);
    ASSERT_TRUE(expected.ok());
    const auto stream = MustSubmit(**service, request);
    const Heard heard = Listen(*stream);
    ASSERT_TRUE(heard.result);
    // Of a stop string too: nobody knows of one before it is complete. Results leave out what is behind its beginning.
    EXPECT_EQ(static_cast<int64_t>(heard.tokens.size()), expected->metrics.new_tokens);
    ASSERT_GE(heard.tokens.size(), expected->tokens.size());
    std::vector<int32_t> of_text = heard.tokens;
    of_text.resize(expected->tokens.size());
    EXPECT_EQ(of_text, expected->tokens);
    EXPECT_EQ(engine->tokenizer().Decode(of_text).substr(0, expected->text.size()), expected->text);
    EXPECT_EQ(heard.text, expected->text);
    EXPECT_EQ(heard.result->text, expected->text);
    EXPECT_EQ(heard.result->finish, expected->finish);
    EXPECT_EQ((*service)->Run(request)->text, expected->text);
  }
}

TEST(Service, GivesLogprobsWithTheirTokens) {
  const auto service = MustServe();
  Request request = RequestOf(IdsOf(1, 30), 12);
  request.logprobs = 2;
  const auto expected = MustCreate(TinyOptions())->Run(request);
  ASSERT_TRUE(expected.ok());
  // Events have them also where no result collects them.
  request.output = Request::Output::kStreamOnly;
  const auto stream = MustSubmit(*service, request);
  size_t num_tokens = 0;
  while (const auto event = stream->Next()) {
    if (!event->token) continue;
    ASSERT_TRUE(event->logprobs);
    EXPECT_EQ(event->logprobs->chosen.id, *event->token);
    EXPECT_EQ(event->logprobs->chosen.logprob, expected->logprobs.at(num_tokens).chosen.logprob);
    EXPECT_EQ(event->logprobs->top.size(), 2u);
    ++num_tokens;
  }
  EXPECT_EQ(num_tokens, 12u);
}

TEST(Service, RefusesAtOnceWhatIsWrong) {
  const auto service = MustServe({}, 64 << 10);
  EXPECT_THAT(service->Submit(RequestOf({}, 5)).status().message(), HasSubstr("empty"));
  EXPECT_EQ(service->Submit(RequestOf(IdsOf(1, 4000), 5)).status().code(), StatusCode::kOutOfMemory);
  Request request = RequestOf({1}, 1);
  request.on_token = [](int32_t) { return true; };
  EXPECT_THAT(service->Submit(request).status().message(), HasSubstr("on_token"));
  EXPECT_THAT(service->Submit(RequestOf({1}, 1), nullptr).status().message(), HasSubstr("on_event"));
  const auto other = MustServe();
  const auto sequence = other->NewSequence({.plan = nullptr, .prompt_tokens = 1, .max_tokens = 100});
  ASSERT_TRUE(sequence.ok());
  EXPECT_THAT(service->Submit(RequestOf({1}, 1, *sequence)).status().message(), HasSubstr("another engine"));
  EXPECT_THAT(service->Fork(**sequence).status().message(), HasSubstr("another engine"));
  EXPECT_FALSE(Service::Create(TinyOptions(), {.max_queued_events = 0}).ok());
  EXPECT_FALSE(Service::Create(std::unique_ptr<Engine>()).ok());
}

// Conversations on many threads: turns, forks in the middle of answers, cancellations, sequences dropped anywhere.
TEST(Service, ManyThreadsConverseForkAndCancel) {
  constexpr int kThreads = 6;
  const int num_rounds = kIsSanitized ? 2 : 6;
  const auto service = MustServe();
  std::vector<std::vector<int32_t>> expected;
  for (int i = 0; i < kThreads; ++i) expected.push_back(TokensAlone(static_cast<uint64_t>(i), 40, 25));
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      const auto seed = static_cast<uint64_t>(i);
      for (int round = 0; round < num_rounds; ++round) {
        auto sequence = service->NewSequence({.plan = nullptr, .prompt_tokens = 40, .max_tokens = 300});
        ASSERT_TRUE(sequence.ok()) << sequence.status().message();
        const auto answer = MustSubmit(*service, RequestOf(IdsOf(seed, 40), 25, *sequence));
        const auto endless = MustSubmit(*service, RequestOf(IdsOf(seed, 10), 1000000));
        auto fork = service->Fork(**sequence);
        ASSERT_TRUE(fork.ok()) << fork.status().message();
        const auto beside = MustSubmit(*service, RequestOf({3}, 5, *fork));
        fork->reset();
        EXPECT_EQ(Listen(*answer).tokens, expected[static_cast<size_t>(i)]);
        endless->Cancel();
        EXPECT_EQ(endless->Wait()->finish, FinishReason::kCancelled);
        EXPECT_EQ(endless->Wait().status().code(), StatusCode::kNotFound);
        // The next turn at once: the final event comes when the sequence is free.
        const auto turn = service->Run(RequestOf({5, 6}, 3, *sequence));
        EXPECT_TRUE(turn.ok()) << turn.status().message();
        EXPECT_EQ(Listen(*beside).tokens.size(), 5u);
        static_cast<void>(MustSubmit(*service, RequestOf(IdsOf(seed, 10), 1000000)));  // its client is gone at once
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(WaitUntil([&] { return IsIdle(*service); }));
  EXPECT_EQ(service->stats().num_finished, kThreads * num_rounds * 5);
  EXPECT_TRUE(service->Run(RequestOf({1}, 1)).ok());
  EXPECT_TRUE(WaitUntil([&] { return service->stats().kv_bytes == 0; }));
}

TEST(Service, OneRequestAtATimeRunsOnASequence) {
  const auto service = MustServe();
  const auto sequence = service->NewSequence({.plan = nullptr, .prompt_tokens = 0, .max_tokens = 2000000});
  ASSERT_TRUE(sequence.ok());
  const auto endless = MustSubmit(*service, RequestOf({1}, 1000000, *sequence));
  EXPECT_THAT(service->Submit(RequestOf({1}, 1, *sequence)).status().message(), HasSubstr("another request"));
  endless->Cancel();
  ASSERT_TRUE(endless->Wait().ok());
  EXPECT_TRUE(service->Run(RequestOf({1}, 1, *sequence)).ok());
}

// From Submit to the final event: running, waiting or finished, whatever the engine's thread is doing.
TEST(Service, CountsEveryRequest) {
  const auto service = MustServe();
  std::vector<std::unique_ptr<RequestStream>> streams;
  for (int64_t num_submitted = 1; num_submitted <= 50; ++num_submitted) {
    streams.push_back(MustSubmit(*service, RequestOf({1, 2}, 3)));
    const ServiceStats stats = service->stats();
    EXPECT_EQ(stats.num_running + stats.num_waiting + stats.num_finished, num_submitted);
  }
  for (const auto& stream : streams) EXPECT_TRUE(stream->Wait().ok());
}

// Its request pauses, nobody else's does, and nothing is lost.
TEST(Service, ASlowClientHoldsUpNobody) {
  const auto service = MustServe({.max_queued_events = 4});
  const auto slow = MustSubmit(*service, RequestOf(IdsOf(1, 20), 60));
  ASSERT_TRUE(slow->Next());
  EXPECT_EQ(service->Run(RequestOf(IdsOf(2, 20), 200))->tokens.size(), 200u);
  EXPECT_TRUE(WaitUntil([&] { return service->stats().num_running == 1; }));
  Heard heard;
  while (const auto event = slow->Next()) {
    heard.Add(*event);
    // Others answer meanwhile.
    if (heard.tokens.size() % 7 != 0) continue;
    EXPECT_TRUE(service->Run(RequestOf({1, 2}, 3)).ok());
  }
  std::vector<int32_t> expected = TokensAlone(1, 20, 60);
  expected.erase(expected.begin());
  EXPECT_EQ(heard.tokens, expected);
}

TEST(Service, NextKeepsToItsDeadline) {
  const auto service = MustServe({.max_queued_events = 2});
  const auto stream = MustSubmit(*service, RequestOf(IdsOf(1, 10), 3));
  Heard heard;
  while (!stream->is_over()) {
    auto event = stream->Poll();
    if (!event) event = stream->Next(RequestStream::Clock::now() + milliseconds(1));
    if (event) heard.Add(*event);
  }
  EXPECT_EQ(heard.tokens.size(), 3u);
  EXPECT_FALSE(stream->Next(RequestStream::Clock::now() + std::chrono::hours(1)));
  EXPECT_FALSE(stream->Poll());
}

TEST(Service, CallbacksRunElsewhereAndMayCancel) {
  struct Client {
    Heard heard;
    std::thread::id thread;
    std::promise<void> over;
  };
  Client whole, cancels, throws;  // outlive the service
  const auto service = MustServe({.max_queued_events = 3});
  const auto follow = [&](uint64_t seed, int64_t max_new, int go_on_for, Client& client) {
    return service->Submit(RequestOf(IdsOf(seed, 20), max_new), [&client, go_on_for](const RequestEvent& event) {
      client.thread = std::this_thread::get_id();
      client.heard.Add(event);
      if (event.result) client.over.set_value();
      if (client.heard.tokens.size() == 9 && go_on_for < 0) throw std::runtime_error("no more paper");
      return go_on_for < 0 || static_cast<int>(client.heard.tokens.size()) < go_on_for;
    });
  };
  ASSERT_TRUE(follow(1, 30, 1000, whole).ok());
  ASSERT_TRUE(follow(2, 1000000, 5, cancels).ok());
  ASSERT_TRUE(follow(3, 1000000, -1, throws).ok());
  for (Client* client : {&whole, &cancels, &throws}) client->over.get_future().wait();
  EXPECT_EQ(whole.heard.tokens, TokensAlone(1, 20, 30));
  EXPECT_EQ(cancels.heard.result->finish, FinishReason::kCancelled);
  EXPECT_GE(cancels.heard.tokens.size(), 5u);
  EXPECT_EQ(throws.heard.result->finish, FinishReason::kCancelled);
  EXPECT_EQ(whole.thread, throws.thread);
  EXPECT_NE(whole.thread, std::this_thread::get_id());
}

TEST(Service, SaysWhenThereIsSomethingToPoll) {
  const auto service = MustServe();
  const std::vector<int32_t> expected = TokensAlone(1, 20, 30);
  std::atomic<int64_t> num_ready = 0;
  auto submitted = service->SubmitPolled(RequestOf(IdsOf(1, 20), 30), [&] {
    ++num_ready;
    num_ready.notify_one();
  });
  ASSERT_TRUE(submitted.ok()) << submitted.status().message();
  Heard heard;
  for (int64_t num_polled = 0; !(*submitted)->is_over(); ++num_polled) {
    num_ready.wait(num_polled);
    const auto event = (*submitted)->Poll();
    ASSERT_TRUE(event) << "announced and not there";
    heard.Add(*event);
  }
  EXPECT_EQ(heard.tokens, expected);
  EXPECT_EQ(num_ready, static_cast<int64_t>(expected.size()) + 1);
}

TEST(Service, KnowsTheSizeOfASequenceThatARequestRunsOn) {
  const auto service = MustServe();
  const auto sequence = service->NewSequence({.plan = nullptr, .prompt_tokens = 0, .max_tokens = 100});
  ASSERT_TRUE(sequence.ok());
  EXPECT_EQ(service->SizeOf(**sequence)->num_tokens, 0);
  Request request = RequestOf(IdsOf(1, 20), 30);
  request.sequence = *sequence;
  const auto stream = MustSubmit(*service, std::move(request));
  ASSERT_TRUE(stream->Next());
  const auto while_running = service->SizeOf(**sequence);
  ASSERT_TRUE(while_running.ok()) << while_running.status().message();
  EXPECT_GE(while_running->num_tokens, 20);
  EXPECT_GT(while_running->kv_bytes, 0);
  ASSERT_TRUE(stream->Wait().ok());
  // The last token that was drawn is not read yet.
  EXPECT_EQ(service->SizeOf(**sequence)->num_tokens, 49);
  service->Shutdown();
  EXPECT_EQ(service->SizeOf(**sequence).status().code(), StatusCode::kCancelled);
}

TEST(Service, ForcedRunsShareTheStepsAndCallBackHere) {
  const auto service = MustServe();
  const auto engine = MustCreate(TinyOptions());
  const std::vector<int32_t> ids = IdsOf(1, 40);
  const ForcedRows expected = MustRunForced(*engine, ids, {}, 30, 8);
  const auto beside = MustSubmit(*service, RequestOf(IdsOf(2, 20), 50));
  const std::thread::id here = std::this_thread::get_id();
  std::vector<float> logits;
  int64_t num_read = 0;
  ForcedRun run;
  run.ids = ids;
  run.prompt_tokens = 30;
  run.chunk_tokens = 8;
  run.rows = ForcedRun::Rows::kEvery;
  run.on_row = [&](int64_t, std::span<const float> row, std::span<const float>) {
    EXPECT_EQ(std::this_thread::get_id(), here);
    logits.insert(logits.end(), row.begin(), row.end());
    return true;
  };
  run.on_progress = [&](int64_t num) { num_read = num; };
  const Status status = service->RunForced(run);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(num_read, 40);
  ASSERT_EQ(logits.size(), expected.logits.size());
  EXPECT_LE(MaxDifference(logits, expected.logits), 1e-3);
  run.on_row = [&](int64_t position, std::span<const float>, std::span<const float>) { return position < 3; };
  EXPECT_EQ(service->RunForced(run).code(), StatusCode::kCancelled);
  run.on_row = [](int64_t, std::span<const float>, std::span<const float>) -> bool { throw std::runtime_error("ink"); };
  EXPECT_THAT(service->RunForced(run).message(), HasSubstr("ink"));
  run.on_row = nullptr;
  EXPECT_THAT(service->RunForced(run).message(), HasSubstr("on_row"));
  EXPECT_EQ(Listen(*beside).tokens.size(), 50u);
}

TEST(Service, AFailureEndsItsRequestAlone) {
  const auto service = MustServe({}, 768 << 10);
  const auto kept = service->NewSequence({.plan = nullptr, .prompt_tokens = 0, .max_tokens = 400});
  ASSERT_TRUE(kept.ok()) << kept.status().message();
  const auto culprit = service->Run(RequestOf(IdsOf(1, 600), 10));
  EXPECT_EQ(culprit.status().code(), StatusCode::kOutOfMemory);
  EXPECT_GT(service->stats().kv_reserved_bytes, 0);
  EXPECT_EQ(service->stats().kv_limit_bytes, 768 << 10);
  EXPECT_TRUE(service->Run(RequestOf(IdsOf(1, 10), 10)).ok());
}

// Where a program says that it lets go of what it keeps. The small one ends after the large one was looked at.
TEST(Service, WaitsForKeptSequencesWhereItIsTold) {
  const auto service = MustServe({}, 768 << 10);
  service->WaitForKeptSequences();
  auto kept = service->NewSequence({.plan = nullptr, .prompt_tokens = 0, .max_tokens = 400});
  ASSERT_TRUE(kept.ok()) << kept.status().message();
  const auto waits = MustSubmit(*service, RequestOf(IdsOf(1, 600), 10));
  EXPECT_TRUE(service->Run(RequestOf(IdsOf(1, 10), 1, *kept)).ok());
  // Nothing runs: it is the end of the sequence that wakes the engine.
  ASSERT_TRUE(WaitUntil([&] { return service->stats().num_finished == 1 && service->stats().num_running == 0; }));
  EXPECT_FALSE(waits->Poll());
  *kept = nullptr;
  const auto heard = Listen(*waits);
  EXPECT_EQ(heard.result->finish, FinishReason::kLength) << heard.result->status.message();
  EXPECT_EQ(heard.tokens, TokensAlone(1, 600, 10));
}

// Two that have memory and want more each wait for the other: nobody would ever move.
TEST(Service, NobodyWaitsForThoseThatWait) {
  EngineOptions options = TinyOptions();
  options.chunk_tokens = 16;
  options.kv_limit_bytes = 256 << 10;
  const auto service = *Service::Create(MustCreate(options));
  service->WaitForKeptSequences();
  auto plan = std::make_shared<HeadPlan>(HeadPlan::Dense(service->engine().shape()));
  for (HeadRule& rule : plan->rules) rule = HeadRule::Stream(0, 16);
  std::vector<std::shared_ptr<Sequence>> sequences;
  while (true) {
    auto sequence = service->NewSequence({.plan = plan, .prompt_tokens = 0, .max_tokens = 220});
    if (!sequence.ok()) break;
    sequences.push_back(*std::move(sequence));
  }
  ASSERT_GE(sequences.size(), 2u);
  const std::vector<int32_t> ids = IdsOf(1, 200);
  std::vector<std::thread> threads;
  std::atomic<int> num_refused = 0;
  for (auto& sequence : sequences) {
    threads.emplace_back([&service, &num_refused, &ids, own = std::move(sequence)]() mutable {
      ForcedRun run;
      run.sequence = std::move(own);
      run.ids = ids;
      run.chunk_tokens = 200;
      const Status status = service->RunForced(run);
      num_refused += status.code() == StatusCode::kOutOfMemory ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(num_refused, 1);
}

TEST(Service, ShutdownCancelsAndTellsEverybody) {
  const auto service = MustServe({.max_queued_events = 5});
  const auto waited = MustSubmit(*service, RequestOf(IdsOf(1, 10), 1000000));
  const auto unread = MustSubmit(*service, RequestOf(IdsOf(2, 10), 1000000));
  std::atomic<bool> is_told = false;
  ASSERT_TRUE(service
                  ->Submit(RequestOf(IdsOf(3, 10), 1000000),
                           [&](const RequestEvent& event) {
                             if (event.result) is_told = event.result->finish == FinishReason::kCancelled;
                             return true;
                           })
                  .ok());
  std::thread reader([&] { EXPECT_EQ(waited->Wait()->finish, FinishReason::kCancelled); });
  std::thread forced([&] {
    const std::vector<int32_t> ids = IdsOf(4, 3000);
    ForcedRun run;
    run.ids = ids;
    run.prompt_tokens = 0;
    EXPECT_FALSE(service->RunForced(run).ok());
  });
  ASSERT_TRUE(WaitUntil([&] { return service->stats().num_running >= 3; }));
  service->Shutdown();
  reader.join();
  forced.join();
  EXPECT_TRUE(is_told);
  EXPECT_EQ(Listen(*unread).result->finish, FinishReason::kCancelled);
  EXPECT_EQ(service->Submit(RequestOf({1}, 1)).status().code(), StatusCode::kCancelled);
  EXPECT_EQ(service->NewSequence({.plan = nullptr, .prompt_tokens = 0, .max_tokens = 9}).status().code(),
            StatusCode::kCancelled);
  service->Cancel(1);
  service->Shutdown();
}

TEST(Service, ShutdownLetsThemFinishWithinItsGrace) {
  auto service = MustServe({.max_queued_events = 2});
  const auto unread = MustSubmit(*service, RequestOf(IdsOf(1, 10), 40));
  auto sequence = service->NewSequence({.plan = nullptr, .prompt_tokens = 0, .max_tokens = 100});
  ASSERT_TRUE(sequence.ok());
  service->Shutdown(milliseconds::max());
  EXPECT_EQ(Listen(*unread).tokens, TokensAlone(1, 10, 40));
  service.reset();
  sequence->reset();
}

TEST(Service, ShutdownMayComeFromACallback) {
  std::promise<void> over;
  const auto service = MustServe();
  ASSERT_TRUE(service
                  ->Submit(RequestOf(IdsOf(1, 10), 1000000),
                           [&](const RequestEvent& event) {
                             if (event.result) {
                               over.set_value();
                             } else {
                               service->Shutdown();
                             }
                             return true;
                           })
                  .ok());
  over.get_future().wait();
}

}  // namespace
}  // namespace headwise
