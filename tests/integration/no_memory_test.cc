// Memory that the system refuses, at every place where it is asked for: the requests under way end with a message, KV
// bytes come back, and the engine serves the next request as if nothing had been. A program of its own, because it
// replaces operator new.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headwise/grammar.h>
#include <headwise/service.h>

#include <algorithm>
#include <functional>

#include "engine/engine_impl.h"
#include "kv/cache_step.h"
#include "server/prefix_store.h"
#include "support/engines.h"
#include "support/far_backend.h"
#include "support/golden.h"
#include "support/refusing_heap.h"
#include "support/requests.h"
#include "text/test_tokenizers.h"

namespace headwise {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr int64_t kNewTokens = 4;

// Every kind of head: full, streams with and without positions in the cache, compensation, a cut at the prompt's end.
std::shared_ptr<const HeadPlan> MixedPlan(const ModelShape& shape) {
  HeadPlan plan = HeadPlan::Dense(shape);
  HeadRule cached = HeadRule::Stream(20, 8);
  cached.positions = Positions::kCache;
  HeadRule compensated = HeadRule::Stream(2, 9);
  compensated.compensate = true;
  HeadRule cut = compensated;
  cut.start = RuleStart::kEndOfPrompt;
  const std::vector<HeadRule> rules = {cached, HeadRule::Full(), compensated, cut, HeadRule::Stream(0, 5)};
  for (size_t i = 0; i < plan.rules.size(); ++i) plan.rules[i] = rules[i % rules.size()];
  return std::make_shared<const HeadPlan>(std::move(plan));
}

EngineOptions Options(const char* kv_dtype) {
  EngineOptions options = ExactOptions(SourcePath("tests/golden/tiny/llama-gqa"), {"cpu"});
  options.kv_dtype = kv_dtype;
  options.page_tokens = 16;
  options.chunk_tokens = 24;
  options.num_threads = 2;
  return options;
}

Request MixedRequest(const Engine& engine, uint64_t seed) {
  Request request = RequestOf(IdsOf(seed, 40), kNewTokens);
  request.plan = MixedPlan(engine.shape());
  return request;
}

std::vector<int32_t> TokensOf(Result<RequestResult> result) {
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result.ok() ? result->tokens : std::vector<int32_t>();
}

void ExpectSaysSo(const Status& status) {
  EXPECT_EQ(status.code(), StatusCode::kOutOfMemory) << status.message();
  EXPECT_THAT(status.message(), AnyOf(HasSubstr("could not allocate"), HasSubstr("out of memory")));
}

// For 0, 1, 2... granted allocations until `attempt` gets along with them.
void ForEveryRefusal(int64_t num_refused, const std::function<void(int64_t num_granted)>& prepare,
                     const std::function<void()>& attempt, const std::function<void()>& check) {
  // Sanitizers look at fewer of them, at a distance that is no multiple of what a layer or a step takes.
  const int64_t distance = kIsSanitized ? 7 : 1;
  for (int64_t num_granted = 0;; num_granted += distance) {
    SCOPED_TRACE(num_granted);
    prepare(num_granted);
    bool has_refused = false;
    {
      const RefusingHeap heap(num_granted, num_refused);
      attempt();
      has_refused = heap.has_refused();
    }
    check();
    if (!has_refused || ::testing::Test::HasFailure()) return;
  }
}

class NoMemoryOf : public ::testing::TestWithParam<const char*> {};

// A fresh engine each time: tables and scratch have to grow.
TEST_P(NoMemoryOf, TheHeapEndsARequestAndNoMore) {
  const std::vector<int32_t> expected = TokensOf([&] {
    const auto engine = MustCreate(Options(GetParam()));
    return engine->Run(MixedRequest(*engine, 1));
  }());
  for (const int64_t num_refused : {int64_t{1}, RefusingHeap::kAll}) {
    std::unique_ptr<Engine> engine;
    Request request;
    std::optional<Result<RequestResult>> result;
    const auto prepare = [&](int64_t) {
      engine = MustCreate(Options(GetParam()));
      request = MixedRequest(*engine, 1);
    };
    const auto attempt = [&] { result.emplace(engine->Run(std::move(request))); };
    int64_t num_failed = 0;
    const auto check = [&] {
      if (!result->ok()) {
        ++num_failed;
        ExpectSaysSo(result->status());
      } else {
        EXPECT_EQ((*result)->tokens, expected);
      }
      EXPECT_EQ(engine->kv_bytes(), 0);
      EXPECT_EQ(TokensOf(engine->Run(MixedRequest(*engine, 1))), expected);
      EXPECT_EQ(engine->kv_bytes(), 0);
    };
    ForEveryRefusal(num_refused, prepare, attempt, check);
    EXPECT_GT(num_failed, 20);
  }
}

// One reads a prompt while the other decodes; a third waits, and comes in when they are over.
TEST_P(NoMemoryOf, TheHeapLeavesOthersRightOrOver) {
  std::vector<std::vector<int32_t>> expected;
  {
    const auto engine = MustCreate(Options(GetParam()));
    for (uint64_t seed = 1; seed <= 3; ++seed) expected.push_back(TokensOf(engine->Run(MixedRequest(*engine, seed))));
  }
  std::unique_ptr<Engine> engine;
  std::vector<RequestId> ids;
  const auto prepare = [&](int64_t) {
    engine = MustCreate(Options(GetParam()));
    ids = {*engine->Submit(MixedRequest(*engine, 1))};
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(engine->Step().ok());
    for (uint64_t seed = 2; seed <= 3; ++seed) ids.push_back(*engine->Submit(MixedRequest(*engine, seed)));
  };
  const auto attempt = [&] { EXPECT_TRUE(engine->Step().ok()); };
  const auto check = [&] {
    while (*engine->Step()) {
    }
    for (size_t i = 0; i < ids.size(); ++i) {
      const Result<RequestResult> result = engine->Take(ids[i]);
      ASSERT_TRUE(result.ok());
      if (result->finish == FinishReason::kError) {
        ExpectSaysSo(result->status);
      } else {
        EXPECT_EQ(result->tokens, expected[i]) << i;
      }
    }
    EXPECT_EQ(engine->kv_bytes(), 0);
  };
  ForEveryRefusal(1, prepare, attempt, check);
}

TEST_P(NoMemoryOf, TheHeapLeavesAForkedTextAsItWas) {
  const auto make = [&](Engine& engine) {
    return engine.NewSequence({.plan = MixedPlan(engine.shape()), .prompt_tokens = 40, .max_tokens = 100});
  };
  std::unique_ptr<Engine> engine;
  std::shared_ptr<Sequence> sequence;
  std::optional<Result<std::shared_ptr<Sequence>>> fork;
  const auto prepare = [&](int64_t) {
    sequence.reset();
    fork.reset();
    engine = MustCreate(Options(GetParam()));
    sequence = *make(*engine);
    TokensOf(engine->Run(RequestOf(IdsOf(1, 40), 1, sequence)));
  };
  const auto attempt = [&] { fork.emplace(engine->Fork(*sequence)); };
  std::vector<int32_t> expected;
  const auto check = [&] {
    if (!fork->ok()) {
      ExpectSaysSo(fork->status());
      EXPECT_EQ(engine->kv_bytes(), Engine::KvBytes(*sequence));
      fork.emplace(engine->Fork(*sequence));
    }
    const std::vector<int32_t> of_fork = TokensOf(engine->Run(RequestOf({7}, 8, **fork)));
    if (expected.empty()) expected = of_fork;
    EXPECT_EQ(of_fork, expected);
    EXPECT_EQ(TokensOf(engine->Run(RequestOf({7}, 8, sequence))), expected);
  };
  ForEveryRefusal(1, prepare, attempt, check);
}

INSTANTIATE_TEST_SUITE_P(KvDtypes, NoMemoryOf, ::testing::Values("f32", "q4"),
                         [](const auto& each) { return std::string(each.param); });

// Two texts that outgrow the limit together: the second gives way, to host memory or to be read again, and comes back.
class TwoThatOutgrow {
 public:
  explicit TwoThatOutgrow(int64_t host_kv_bytes) {
    EngineOptions options = Options("f32");
    options.kv_admission = EngineOptions::KvAdmission::kLikely;
    options.kv_limit_bytes = 230 << 10;
    options.host_kv_bytes = host_kv_bytes;
    engine_ = MustCreate(options);
    // From here on answers are taken to be short.
    EXPECT_TRUE(engine_->Run(RequestOf({1}, 1)).ok());
    for (uint64_t seed = 1; seed <= 2; ++seed) ids_.push_back(*engine_->Submit(RequestOf(IdsOf(seed, 40), 100)));
  }
  Engine& engine() { return *engine_; }
  bool HasGivenWay() const { return engine_->Peek(ids_[1])->metrics.num_preemptions > 0; }
  bool HasComeBack() const { return HasGivenWay() && engine_->Peek(ids_[1])->metrics.kv_bytes > 0; }
  std::vector<RequestResult> Finish() {
    while (*engine_->Step()) EXPECT_LE(engine_->kv_bytes(), 230 << 10);
    EXPECT_EQ(engine_->kv_bytes(), 0);
    return {*engine_->Take(ids_[0]), *engine_->Take(ids_[1])};
  }

 private:
  std::unique_ptr<Engine> engine_;
  std::vector<RequestId> ids_;
};

// Nothing is lost but what the step itself loses, where it is the step that finds no memory.
TEST(NoMemoryToGiveWay, LosesNobody) {
  for (const int64_t host_kv_bytes : {int64_t{0}, int64_t{1} << 20}) {
    int64_t num_until_away = 0;
    int64_t num_until_back = 0;
    TwoThatOutgrow untroubled(host_kv_bytes);
    for (; !untroubled.HasGivenWay(); ++num_until_away) ASSERT_TRUE(*untroubled.engine().Step());
    for (num_until_back = num_until_away; !untroubled.HasComeBack(); ++num_until_back) {
      ASSERT_TRUE(*untroubled.engine().Step());
    }
    const std::vector<RequestResult> expected = untroubled.Finish();
    EXPECT_EQ(expected[1].tokens.size(), 100u);
    for (const int64_t num_steps : {num_until_away, num_until_back}) {
      std::optional<TwoThatOutgrow> two;
      int64_t num_right = 0;
      const auto prepare = [&](int64_t) {
        two.emplace(host_kv_bytes);
        for (int64_t i = 1; i < num_steps; ++i) ASSERT_TRUE(*two->engine().Step());
      };
      const auto attempt = [&] { EXPECT_TRUE(two->engine().Step().ok()); };
      const auto check = [&] {
        const std::vector<RequestResult> results = two->Finish();
        for (size_t i = 0; i < results.size(); ++i) {
          if (results[i].finish == FinishReason::kError) {
            ExpectSaysSo(results[i].status);
          } else {
            ++num_right;
            EXPECT_EQ(results[i].tokens, expected[i].tokens) << i;
          }
        }
      };
      ForEveryRefusal(1, prepare, attempt, check);
      EXPECT_GT(num_right, kIsSanitized ? 0 : 10);
    }
  }
}

// Memory that a device hands out: KV pages and activations. The message says how much, and what for.
TEST(NoMemoryOfADevice, EndsARequestAndNoMore) {
  const EngineOptions options = Options("f32");
  std::vector<int32_t> expected;
  std::vector<std::string> messages;
  for (int64_t num_granted = 0;; ++num_granted) {
    SCOPED_TRACE(num_granted);
    auto backend = std::make_unique<FarBackend>(*MakeBackend({.name = "cpu", .isa = "auto", .num_threads = 1}));
    FarDevice& device = backend->device();
    const auto engine = *CreateEngine(options, std::move(backend));
    device.RefuseAfter(num_granted);
    const Result<RequestResult> result = engine->Run(MixedRequest(*engine, 1));
    const bool has_refused = device.is_exhausted();
    device.RefuseAfter(-1);
    EXPECT_EQ(engine->kv_bytes(), 0);
    const std::vector<int32_t> next = TokensOf(engine->Run(MixedRequest(*engine, 1)));
    if (expected.empty()) expected = next;
    EXPECT_EQ(next, expected);
    if (result.ok()) {
      EXPECT_EQ(result->tokens, expected);
      if (!has_refused) break;
      continue;
    }
    EXPECT_EQ(result.status().code(), StatusCode::kOutOfMemory);
    messages.push_back(result.status().message());
  }
  const auto says_pages = AllOf(HasSubstr("could not allocate"), HasSubstr("B for KV pages"), HasSubstr("cache holds"));
  const auto says_step = AllOf(HasSubstr("could not allocate"),
                               ::testing::ContainsRegex("B for the activations of a step of (24|16) tokens"));
  EXPECT_THAT(messages, ::testing::Each(AnyOf(says_pages, says_step)));
  EXPECT_THAT(messages, ::testing::Contains(says_pages));
  EXPECT_THAT(messages, ::testing::Contains(says_step));
}

// On a service the engine has a thread that nobody can catch for: an exception there would end the process.
TEST(NoMemoryOfAService, EndsARequestAndNoMore) {
  const EngineOptions options = Options("f32");
  std::unique_ptr<Service> service;
  Request request;
  std::optional<Result<RequestResult>> result;
  std::vector<int32_t> expected;
  const auto prepare = [&](int64_t) {
    service.reset();
    service = *Service::Create(MustCreate(options), {});
    request = MixedRequest(service->engine(), 1);
  };
  const auto attempt = [&] { result.emplace(service->Run(std::move(request))); };
  const auto check = [&] {
    if (!result->ok()) ExpectSaysSo(result->status());
    const std::vector<int32_t> next = TokensOf(service->Run(MixedRequest(service->engine(), 1)));
    if (expected.empty()) expected = next;
    EXPECT_EQ(next, expected);
    if (result->ok()) {
      EXPECT_EQ((*result)->tokens, expected);
    }
    service->Shutdown(std::chrono::milliseconds(0));
    EXPECT_EQ(service->stats().kv_bytes, 0);
  };
  ForEveryRefusal(1, prepare, attempt, check);
}

// Whoever has no memory can still let go of what holds it.
TEST(NoMemoryToCancel, IsNeeded) {
  const auto engine = MustCreate(Options("f32"));
  Request request = MixedRequest(*engine, 1);
  request.max_new_tokens = 60;
  const RequestId id = *engine->Submit(std::move(request));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(engine->Step().ok());
  {
    const RefusingHeap heap(0, RefusingHeap::kAll);
    engine->Cancel(id);
    engine->Cancel(id + 1000);
    EXPECT_FALSE(heap.has_refused());
  }
  ASSERT_TRUE(engine->Step().ok());
  EXPECT_EQ(engine->Peek(id)->finish, FinishReason::kCancelled);
  EXPECT_EQ(engine->kv_bytes(), 0);
}

// Its engine's thread, which wakes for it, has none either.
TEST(NoMemoryToCancel, IsNeededOfAStream) {
  const auto service = *Service::Create(MustCreate(Options("f32")), {.max_queued_events = 1});
  for (const bool is_let_go : {false, true}) {
    Request request = MixedRequest(service->engine(), 1);
    request.max_new_tokens = 60;
    auto stream = *service->Submit(std::move(request));
    ASSERT_TRUE(stream->Next().has_value());
    {
      const RefusingHeap heap(0, RefusingHeap::kAll);
      stream->Cancel();
      if (is_let_go) stream.reset();
    }
    if (is_let_go) continue;
    const Result<RequestResult> result = stream->Wait();
    ASSERT_TRUE(result.ok());
    if (result->finish != FinishReason::kCancelled) ExpectSaysSo(result->status);
  }
  EXPECT_TRUE(service->Run(MixedRequest(service->engine(), 1)).ok());
  service->Shutdown(std::chrono::milliseconds(0));
  EXPECT_EQ(service->stats().kv_bytes, 0);
}

// What a cache holds and says of itself.
struct Look {
  explicit Look(const KvCache& cache) : num_tokens(cache.num_tokens()), bytes(cache.Bytes().total()) {
    for (int64_t head = 0; head < cache.num_kv_heads(); ++head) pages.push_back(cache.NumPages(0, head).newest);
  }
  int64_t num_tokens;
  int64_t bytes;
  std::vector<int64_t> pages;
  friend bool operator==(const Look&, const Look&) = default;
};

TEST(NoMemoryOfATable, ChangesNothingOfACache) {
  constexpr int64_t kDim = 16;
  const SequenceLimits limits{.prompt_tokens = 40, .max_tokens = 200};
  const HeadPlan plan =
      *MixedPlan({.architecture = "", .num_layers = 1, .num_q_heads = 5, .num_kv_heads = 5, .head_dim = kDim});
  std::vector<ResolvedRule> rules;
  for (const HeadRule& rule : plan.rules) rules.push_back(ResolveRule(rule, limits));
  const auto backend = *MakeBackend({.name = "ref"});
  for (const KvFormat format : {KvFormat::kF32, KvFormat::kQ4}) {
    KvPoolSet pools(*backend, {.head_dim = kDim, .page_tokens = 16, .formats = {format, format}});
    const std::vector<float> zeros(static_cast<size_t>(24 * 5 * kDim));
    CacheStep step(*backend, pools.pools());
    const auto read = [&](KvCache& cache, int64_t num_new) {
      step.Add(cache);
      step.Begin();
      CacheLayerArgs args;
      args.k = args.v = ConstTensorView(zeros.data(), DType::kF32, {num_new, 5 * kDim});
      step.RunLayer(0, args);
      step.Finish();
    };
    auto cache = std::make_unique<KvCache>(pools.pools(), 5, rules);
    std::unique_ptr<KvCache> fork;
    int64_t num_failed = 0;
    for (const int64_t num_new : {24, 16, 1, 1, 7, 16, 1, 16, 1}) {
      const Look before(*cache);
      const int64_t extent_bytes = pools.pools().full.newest->extent_bytes();
      for (int64_t num_granted = 0;; ++num_granted) {
        Status planned;
        {
          const RefusingHeap heap(num_granted, RefusingHeap::kAll);
          planned = cache->PlanStep(num_new);
        }
        if (planned.ok()) break;
        ++num_failed;
        EXPECT_EQ(Look(*cache), before);
        EXPECT_LE(pools.pools().full.newest->extent_bytes(), extent_bytes);
      }
      read(*cache, num_new);
      fork = cache->Fork();  // pages that the next step has to copy
    }
    EXPECT_EQ(cache->num_tokens(), 83);
    EXPECT_GT(num_failed, 50);
    cache.reset();
    fork.reset();
    EXPECT_EQ(pools.usage().bytes, 0);
  }
}

// What is kept is there whole, or not at all; one that has to give way and one that is cut in two are among it.
TEST(NoMemoryOfAPrefixStore, LeavesItWhole) {
  const auto plan = std::make_shared<const HeadPlan>();
  const std::vector<int32_t> ids{1, 2, 3, 9};
  const std::vector<int32_t> longer{1, 2, 3, 9, 9};
  std::optional<PrefixStore> store;
  const auto keep = [&] { store->Keep(plan, ids, nullptr, 40); };
  const auto prepare = [&](int64_t) {
    store.emplace(100);
    store->Keep(plan, std::vector<int32_t>{1, 2, 5}, nullptr, 40);
    store->Keep(plan, std::vector<int32_t>{1, 2, 3, 4}, nullptr, 40);
  };
  const auto attempt = [&] {
    try {
      keep();
    } catch (const std::bad_alloc&) {
      return;
    }
  };
  const auto check = [&] {
    EXPECT_EQ(store->stats().bytes, 40 * store->stats().num_entries);
    EXPECT_GE(store->stats().num_entries, 1);
    EXPECT_EQ(store->Find(*plan, std::vector<int32_t>{1, 2, 3, 4, 5}).kept.size(), 1u);
    if (store->Wants(*plan, ids, 40)) keep();
    const auto found = store->Find(*plan, longer);
    ASSERT_EQ(found.kept.size(), 1u);
    EXPECT_EQ(found.kept.front().num_tokens, 4);
    EXPECT_EQ(store->stats().num_entries, 2);
    store->Clear();
    EXPECT_EQ(store->stats().bytes, 0);
    EXPECT_EQ(store->Find(*plan, longer).common_tokens, 0);
  };
  ForEveryRefusal(1, prepare, attempt, check);
}

// Every byte is a token.
std::unique_ptr<Tokenizer> ByteTokenizer() {
  return MustParse(ByteTokenizerJson({}));
}

constexpr const char* kSchema = R"({"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]})";

// Compiling takes thousands of allocations: some of them, at a distance that is no multiple of anything.
TEST(NoMemoryOfAGrammar, IsSaid) {
  if (!GrammarCompiler::IsBuilt()) GTEST_SKIP() << "built without xgrammar";
  const auto tokenizer = ByteTokenizer();
  // No schema: the JSON library takes memory to give memory back.
  const GrammarSource source = {.kind = GrammarKind::kGbnf,
                                .text = "root ::= [a-f]+ (\":\" x){2,3}\nx ::= \"y\" | root"};
  int64_t num_failed = 0;
  for (const int64_t num_refused : {int64_t{1}, RefusingHeap::kAll}) {
    for (int64_t num_granted = 0;; num_granted += kIsSanitized ? 211 : 17) {
      SCOPED_TRACE(num_granted);
      const auto compiler = GrammarCompiler::Create(*tokenizer, 384);
      ASSERT_TRUE(compiler.ok());
      std::optional<Result<std::shared_ptr<const TokenConstraint>>> made;
      bool has_refused = false;
      {
        const RefusingHeap heap(num_granted, num_refused);
        made.emplace((*compiler)->Compile(source));
        has_refused = heap.has_refused();
      }
      if (!made->ok()) {
        ++num_failed;
        ExpectSaysSo(made->status());
      }
      EXPECT_TRUE((*compiler)->Compile(source).ok());
      if (!has_refused || HasFailure()) break;
    }
  }
  EXPECT_GT(num_failed, kIsSanitized ? 5 : 50);
}

TEST(NoMemoryOfAGrammar, EndsARequestAndNoMore) {
  if (!GrammarCompiler::IsBuilt()) GTEST_SKIP() << "built without xgrammar";
  const auto tokenizer = ByteTokenizer();
  const auto engine = MustCreate(Options("f32"));
  const auto compiler = GrammarCompiler::Create(*tokenizer, engine->config().vocab_size);
  ASSERT_TRUE(compiler.ok()) << compiler.status().message();
  const auto constraint = (*compiler)->Compile({.kind = GrammarKind::kJsonSchema, .text = kSchema});
  ASSERT_TRUE(constraint.ok()) << constraint.status().message();
  const auto make = [&] {
    Request request = RequestOf(IdsOf(1, 20), 12);
    request.eos = EosMode::kStop;
    request.constraint = *constraint;
    return request;
  };
  const std::vector<int32_t> expected = TokensOf(engine->Run(make()));
  EXPECT_GT(expected.size(), 4u);
  Request request;
  std::optional<Result<RequestResult>> result;
  const auto prepare = [&](int64_t) { request = make(); };
  const auto attempt = [&] { result.emplace(engine->Run(std::move(request))); };
  int64_t num_failed = 0;
  const auto check = [&] {
    if (!result->ok()) {
      ++num_failed;
      ExpectSaysSo(result->status());
    } else {
      EXPECT_EQ((*result)->tokens, expected);
    }
    EXPECT_EQ(engine->kv_bytes(), 0);
    EXPECT_EQ(TokensOf(engine->Run(make())), expected);
  };
  ForEveryRefusal(1, prepare, attempt, check);
  EXPECT_GT(num_failed, 20);
}

}  // namespace
}  // namespace headwise
