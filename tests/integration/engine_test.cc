// The engine as a whole, over random plans on a tiny model: chunks, batches, threads, forks, limits, cancellation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "backend/all_backends.h"
#include "kv/kv_bytes.h"
#include "support/engines.h"
#include "support/golden.h"
#include "support/tolerance.h"

namespace headwise {
namespace {

using ::testing::HasSubstr;

constexpr const char* kModel = "tests/golden/tiny/llama-gqa";

EngineOptions TinyOptions() {
  EngineOptions options = ExactOptions(SourcePath(kModel), {"cpu"});
  options.page_tokens = 16;
  return options;
}

EngineOptions Q4Options(const std::string& backend) {
  EngineOptions options = TinyOptions();
  options.backend = backend;
  options.kv_dtype = "q4";
  return options;
}

std::vector<int32_t> RandomIds(std::mt19937_64& rng, size_t num) {
  std::vector<int32_t> ids(num);
  for (int32_t& id : ids) id = static_cast<int32_t>(rng() % 384);
  return ids;
}

// Every kind of rule, with windows far smaller than the texts of these tests.
std::shared_ptr<const HeadPlan> RandomPlan(std::mt19937_64& rng, const ModelShape& shape) {
  auto plan = std::make_shared<HeadPlan>(HeadPlan::Dense(shape));
  for (HeadRule& rule : plan->rules) {
    if (rng() % 4 == 0) continue;
    rule = HeadRule::Stream(static_cast<int64_t>(rng() % 20), 1 + static_cast<int64_t>(rng() % 40));
    switch (rng() % 4) {
      case 0:
        rule.positions = Positions::kCache;
        break;
      case 1:
        rule.compensate = true;
        rule.start = rng() % 2 == 0 ? RuleStart::kEndOfPrompt : RuleStart::kFirstToken;
        break;
      case 2:
        rule.kind = HeadRule::Kind::kElasticRazor;
        rule.recent = 0;
        rule.min_recent = 8;
        rule.divisor = 4;
        break;
      default:
        break;
    }
  }
  return plan;
}

Request RequestFor(std::vector<int32_t> prompt, std::shared_ptr<const HeadPlan> plan, int64_t max_new_tokens) {
  Request request;
  request.prompt = std::move(prompt);
  request.plan = std::move(plan);
  request.max_new_tokens = max_new_tokens;
  request.eos = EosMode::kIgnore;
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

TEST(EngineProperties, ChunksOneShotAndTokenByTokenAgree) {
  std::mt19937_64 rng(1);
  const auto engine = MustCreate(TinyOptions());
  for (int round = 0; round < 12; ++round) {
    const auto plan = RandomPlan(rng, engine->shape());
    const std::vector<int32_t> ids = RandomIds(rng, 20 + rng() % 180);
    const auto prompt_tokens = static_cast<int64_t>(1 + rng() % ids.size());
    const ForcedRows one_shot = MustRunForced(*engine, ids, plan, prompt_tokens, 4096);
    for (const int64_t chunk : {int64_t{1}, static_cast<int64_t>(2 + rng() % 50)}) {
      const ForcedRows chunked = MustRunForced(*engine, ids, plan, prompt_tokens, chunk);
      ASSERT_LE(MaxDifference(chunked.logits, one_shot.logits), kTinyLogitsF32) << "round " << round;
    }
    for (const int64_t decode_tokens : {int64_t{0}, static_cast<int64_t>(2 + rng() % 30)}) {
      const ForcedRows behind = MustRunForced(*engine, ids, plan, prompt_tokens, 0, decode_tokens);
      ASSERT_LE(MaxDifference(behind.logits, one_shot.logits), kTinyLogitsF32)
          << "round " << round << ", " << decode_tokens << " tokens behind the prompt at once";
    }
  }
}

TEST(EngineProperties, ABatchIsEachAlone) {
  std::mt19937_64 rng(2);
  const auto engine = MustCreate(TinyOptions());
  std::vector<std::vector<int32_t>> alone;
  std::vector<RequestId> ids;
  std::vector<Request> requests;
  for (int i = 0; i < 6; ++i) {
    requests.push_back(RequestFor(RandomIds(rng, 1 + rng() % 100), RandomPlan(rng, engine->shape()), 20));
    const auto result = engine->Run(requests.back());
    ASSERT_TRUE(result.ok()) << result.status().message();
    alone.push_back(result->tokens);
  }
  for (Request& request : requests) ids.push_back(*engine->Submit(std::move(request)));
  for (bool more = true; more;) more = *engine->Step();
  for (size_t i = 0; i < ids.size(); ++i) {
    const RequestResult result = *engine->Take(ids[i]);
    EXPECT_EQ(result.finish, FinishReason::kLength);
    EXPECT_EQ(result.tokens, alone[i]) << i;
  }
  EXPECT_EQ(engine->kv_bytes(), 0);
}

TEST(EngineProperties, AnyNumberOfThreadsGivesTheSameBits) {
  std::mt19937_64 rng(3);
  std::vector<int32_t> ids = RandomIds(rng, 300);
  std::vector<std::vector<float>> logits;
  for (const int num_threads : {1, 2, 5}) {
    EngineOptions options = TinyOptions();
    options.num_threads = num_threads;
    const auto engine = MustCreate(options);
    std::mt19937_64 plan_rng(4);
    logits.push_back(MustRunForced(*engine, ids, RandomPlan(plan_rng, engine->shape()), 200, 64).logits);
  }
  EXPECT_EQ(logits[0], logits[1]);
  EXPECT_EQ(logits[0], logits[2]);
}

void ExpectForksToContinue(const EngineOptions& engine_options) {
  std::mt19937_64 rng(5);
  const auto engine = MustCreate(engine_options);
  for (int round = 0; round < 10; ++round) {
    const auto plan = RandomPlan(rng, engine->shape());
    const std::vector<int32_t> prefix = RandomIds(rng, 1 + rng() % 120);
    const std::vector<int32_t> rest = RandomIds(rng, 1 + rng() % 60);
    const std::vector<int32_t> other = RandomIds(rng, 1 + rng() % 60);
    const SequenceOptions options{
        .plan = plan, .prompt_tokens = static_cast<int64_t>(1 + rng() % prefix.size()), .max_tokens = 1000};
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

TEST(EngineProperties, AForkContinuesAsTheOriginalWouldBitForBit) {
  ExpectForksToContinue(TinyOptions());
}

// Either side ages the pages they share.
TEST(EngineProperties, AForkOfAQ4CacheContinuesToo) {
  for (const char* backend : {"ref", "cpu"}) ExpectForksToContinue(Q4Options(backend));
}

// A dense prefix is what every plan "from the end of the prompt" would have read: forks of it, each under its own plan
// and prompt, continue as sequences of their own, bit for bit.
void ExpectPlansToShareADensePrefix(const EngineOptions& engine_options) {
  std::mt19937_64 rng(11);
  const auto engine = MustCreate(engine_options);
  for (int round = 0; round < 10; ++round) {
    const std::vector<int32_t> prefix = RandomIds(rng, 1 + rng() % 120);
    const auto shared = *engine->NewSequence({.plan = nullptr, .prompt_tokens = 0, .max_tokens = 1000});
    Read(*engine, shared, prefix);
    for (int question = 0; question < 3; ++question) {
      auto plan = std::make_shared<HeadPlan>(*RandomPlan(rng, engine->shape()));
      for (HeadRule& rule : plan->rules) {
        if (rule.kind != HeadRule::Kind::kFull) rule.start = RuleStart::kEndOfPrompt;
        // Pages of sinks are those that no format treats otherwise than a full head's first.
        rule.sink = std::min(rule.sink, engine_options.page_tokens);
      }
      EXPECT_TRUE(engine->CanBeginFull(*plan));
      const std::vector<int32_t> rest = RandomIds(rng, 1 + rng() % 60);
      const auto prompt_tokens = static_cast<int64_t>(prefix.size() + 1 + rng() % rest.size());
      const SequenceOptions options{.plan = plan, .prompt_tokens = prompt_tokens, .max_tokens = 1000};
      const auto alone = *engine->NewSequence(options);
      Read(*engine, alone, prefix);
      const std::vector<float> expected = Read(*engine, alone, rest);
      const auto fork = engine->Fork(*shared, options);
      ASSERT_TRUE(fork.ok()) << fork.status().message();
      EXPECT_EQ(Read(*engine, *fork, rest), expected) << "round " << round;
      EXPECT_EQ(Engine::KvBytes(**fork), Engine::KvBytes(*alone));
    }
  }
  EXPECT_EQ(engine->kv_bytes(), 0);
}

TEST(EngineProperties, PlansFromTheEndOfThePromptShareADensePrefix) {
  ExpectPlansToShareADensePrefix(TinyOptions());
}

TEST(EngineProperties, PlansShareADensePrefixInQ4) {
  for (const char* backend : {"ref", "cpu"}) ExpectPlansToShareADensePrefix(Q4Options(backend));
}

TEST(EngineProperties, AForkUnderRulesThatReadThePastOtherwiseIsRefused) {
  const auto engine = MustCreate(TinyOptions());
  std::mt19937_64 rng(12);
  const auto shared = *engine->NewSequence({.plan = nullptr, .prompt_tokens = 0, .max_tokens = 1000});
  Read(*engine, shared, RandomIds(rng, 50));
  auto plan = std::make_shared<HeadPlan>(HeadPlan::Dense(engine->shape()));
  plan->rules[0] = HeadRule::Stream(4, 16);
  auto fork = engine->Fork(*shared, {.plan = plan, .prompt_tokens = 60, .max_tokens = 1000});
  ASSERT_FALSE(fork.ok());
  EXPECT_NE(fork.status().message().find("50 tokens"), std::string::npos) << fork.status().message();
  // From the end of a prompt that is already over, too.
  plan->rules[0].start = RuleStart::kEndOfPrompt;
  EXPECT_FALSE(engine->Fork(*shared, {.plan = plan, .prompt_tokens = 50, .max_tokens = 1000}).ok());
  EXPECT_TRUE(engine->Fork(*shared, {.plan = plan, .prompt_tokens = 51, .max_tokens = 1000}).ok());
}

TEST(EngineProperties, AForkThatMovesHeadsToAnotherFormatIsRefused) {
  std::mt19937_64 rng(9);
  EngineOptions options = TinyOptions();
  options.kv_dtype = "q8,f16";
  const auto engine = MustCreate(options);
  const auto shared = engine->NewSequence({.plan = nullptr, .prompt_tokens = 60, .max_tokens = 1000}).value();
  const auto bounded = std::make_shared<HeadPlan>(HeadPlan::Dense(engine->shape()));
  bounded->rules[0] = HeadRule::Stream(4, 8);
  const auto fork = engine->Fork(*shared, {.plan = bounded, .prompt_tokens = 60, .max_tokens = 1000});
  ASSERT_FALSE(fork.ok());
  EXPECT_THAT(fork.status().message(), HasSubstr("two KV formats"));
  EXPECT_TRUE(engine->Fork(*shared).ok());
  EXPECT_FALSE(engine->CanBeginFull(*bounded));
}

// Pages of sinks stay in q8, those of a full head age.
TEST(EngineProperties, AForkWithMoreSinkPagesIsRefusedInQ4) {
  for (const char* backend : {"ref", "cpu"}) {
    std::mt19937_64 rng(9);
    const auto engine = MustCreate(Q4Options(backend));
    const auto shared = engine->NewSequence({.plan = nullptr, .prompt_tokens = 0, .max_tokens = 1000}).value();
    Read(*engine, shared, RandomIds(rng, 80));
    for (const int64_t sink : {16, 17}) {
      const auto plan = std::make_shared<HeadPlan>(HeadPlan::Dense(engine->shape()));
      plan->rules[0] = HeadRule::Stream(sink, 8);
      plan->rules[0].start = RuleStart::kEndOfPrompt;
      const auto fork = engine->Fork(*shared, {.plan = plan, .prompt_tokens = 100, .max_tokens = 1000});
      EXPECT_EQ(fork.ok(), sink == 16);
      EXPECT_EQ(engine->CanBeginFull(*plan), sink == 16);
      if (fork.ok()) continue;
      EXPECT_THAT(fork.status().message(), HasSubstr("sinks that fill as many pages"));
    }
  }
}

// `full` and `bounded` are what pages of the two kinds take.
void ExpectPlansBytes(const EngineOptions& options, const PageSizes& full, const PageSizes& bounded) {
  std::mt19937_64 rng(6);
  const auto engine = MustCreate(options);
  for (int round = 0; round < 10; ++round) {
    const auto plan = RandomPlan(rng, engine->shape());
    const auto prompt_tokens = static_cast<int64_t>(1 + rng() % 300);
    engine->ResetKvPeak();
    const auto result = engine->Run(RequestFor(RandomIds(rng, static_cast<size_t>(prompt_tokens)), plan, 30));
    ASSERT_TRUE(result.ok()) << result.status().message();
    const KvBytesArgs args{.plan = plan.get(),
                           .limits = {.prompt_tokens = prompt_tokens, .max_tokens = prompt_tokens + 30},
                           .chunk_tokens = options.chunk_tokens,
                           .page_tokens = options.page_tokens,
                           .full_pages = full,
                           .bounded_pages = bounded};
    // The last token was sampled but not read.
    const KvBytes expected = PlanKvBytes(args, prompt_tokens + 29);
    EXPECT_EQ(result->metrics.kv_bytes_full, expected.full) << options.kv_dtype;
    EXPECT_EQ(result->metrics.kv_bytes_bounded, expected.bounded) << options.kv_dtype;
    EXPECT_LE(result->metrics.kv_peak_bytes, PeakKvBytes(args));
    EXPECT_LE(engine->kv_peak_bytes(), PeakKvBytes(args));
    EXPECT_GE(engine->kv_peak_bytes(), expected.full);
  }
  EXPECT_EQ(engine->kv_bytes(), 0);
}

TEST(EngineProperties, BytesAreWhatThePlanSays) {
  EngineOptions options = TinyOptions();
  const auto shape = MustCreate(options)->shape();
  const PageSizes f32{.newest = 2 * options.page_tokens * shape.head_dim * 4};
  ExpectPlansBytes(options, f32, f32);
  options.kv_dtype = "f32,bf16";
  ExpectPlansBytes(options, f32, {.newest = f32.newest / 2});
}

TEST(EngineProperties, BytesAreWhatThePlanSaysInQ4) {
  for (const char* backend : {"ref", "cpu"}) {
    EngineOptions options = Q4Options(backend);
    const auto maker = *MakeBackend({.name = backend});
    const auto engine = MustCreate(options);
    const auto sizes = [&](KvFormat format) {
      return PageSizesOf(*maker, {.head_dim = engine->shape().head_dim, .page_tokens = 16, .format = format});
    };
    const PageSizes q4 = sizes(KvFormat::kQ4), q8 = sizes(KvFormat::kQ8), f16 = sizes(KvFormat::kF16);
    ASSERT_LT(q4.aged, q4.newest);
    options.chunk_tokens = 50;
    ExpectPlansBytes(options, q4, q4);
    options.kv_dtype = "q8,q4";
    ExpectPlansBytes(options, q8, q4);
    options.kv_dtype = "q4,f16";
    ExpectPlansBytes(options, q4, f16);
  }
}

TEST(EngineProperties, PagesAreAsLargeAsTheFormatOfFullHeadsWants) {
  for (const auto& [kv_dtype, page_tokens] : {std::pair{"f16", 32}, std::pair{"q8", 32}, std::pair{"f16,q4", 32},
                                              std::pair{"q4", 64}, std::pair{"q4,f16", 64}}) {
    EngineOptions options = TinyOptions();
    options.page_tokens = 0;
    options.kv_dtype = kv_dtype;
    EXPECT_EQ(MustCreate(options)->page_tokens(), page_tokens) << kv_dtype;
  }
}

TEST(EngineLimits, ARequestThatCannotFitIsRefusedWithTheBytes) {
  std::mt19937_64 rng(7);
  EngineOptions options = TinyOptions();
  options.kv_limit_bytes = 64 << 10;
  const auto engine = MustCreate(options);
  const auto refused = engine->Submit(RequestFor(RandomIds(rng, 400), nullptr, 10));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kOutOfMemory);
  EXPECT_THAT(refused.status().message(), HasSubstr("65536"));
  EXPECT_EQ(engine->kv_bytes(), 0);
  // Two that fit one after the other both finish.
  const RequestId first = *engine->Submit(RequestFor(RandomIds(rng, 30), nullptr, 10));
  const RequestId second = *engine->Submit(RequestFor(RandomIds(rng, 30), nullptr, 10));
  for (bool more = true; more;) more = *engine->Step();
  EXPECT_EQ(engine->Take(first)->finish, FinishReason::kLength);
  EXPECT_EQ(engine->Take(second)->finish, FinishReason::kLength);
}

// The first one's turn comes while a sequence has the memory, of a request that waits behind it and needs no more.
TEST(EngineLimits, WhoWaitsForOneThatWaitsIsNotRefused) {
  std::mt19937_64 rng(11);
  EngineOptions options = TinyOptions();
  options.kv_limit_bytes = 768 << 10;
  const auto engine = MustCreate(options);
  Request small = RequestFor(RandomIds(rng, 10), nullptr, 1);
  small.sequence = *engine->NewSequence({.plan = nullptr, .prompt_tokens = 0, .max_tokens = 400});
  const RequestId large_id = *engine->Submit(RequestFor(RandomIds(rng, 600), nullptr, 10));
  const RequestId small_id = *engine->Submit(std::move(small));
  while (engine->Peek(small_id)->finish == FinishReason::kRunning) ASSERT_TRUE(engine->Step().ok());
  EXPECT_EQ(engine->Take(small_id)->finish, FinishReason::kLength);
  for (bool more = true; more;) more = *engine->Step();
  const Result<RequestResult> large = engine->Take(large_id);
  EXPECT_EQ(large->finish, FinishReason::kLength) << large->status.message();
}

TEST(EngineRequests, CancellingGivesThePagesBack) {
  std::mt19937_64 rng(8);
  const auto engine = MustCreate(TinyOptions());
  const RequestId id = *engine->Submit(RequestFor(RandomIds(rng, 50), nullptr, 1000));
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(*engine->Step());
  EXPECT_GT(engine->kv_bytes(), 0);
  engine->Cancel(id);
  EXPECT_FALSE(*engine->Step());
  EXPECT_EQ(engine->Take(id)->finish, FinishReason::kCancelled);
  EXPECT_EQ(engine->kv_bytes(), 0);
}

// Two turns on one sequence are one text: the token sampled last joins the cache with the second turn.
TEST(EngineRequests, TurnsOnOneSequenceAreOneText) {
  std::mt19937_64 rng(9);
  const auto engine = MustCreate(TinyOptions());
  const std::vector<int32_t> first = RandomIds(rng, 40);
  const std::vector<int32_t> second = RandomIds(rng, 15);
  const auto sequence = *engine->NewSequence({.plan = nullptr, .prompt_tokens = 40, .max_tokens = 200});
  Request request = RequestFor(first, nullptr, 8);
  request.sequence = sequence;
  const auto one = engine->Run(request);
  ASSERT_TRUE(one.ok()) << one.status().message();
  request.prompt = second;
  const auto two = engine->Run(request);
  ASSERT_TRUE(two.ok()) << two.status().message();

  std::vector<int32_t> whole = first;
  whole.insert(whole.end(), one->tokens.begin(), one->tokens.end());
  whole.insert(whole.end(), second.begin(), second.end());
  EXPECT_EQ(engine->Run(RequestFor(whole, nullptr, 8))->tokens, two->tokens);
}

TEST(EngineRequests, BadRequestsAreNamed) {
  const auto engine = MustCreate(TinyOptions());
  EXPECT_THAT(engine->Submit(RequestFor({}, nullptr, 5)).status().message(), HasSubstr("empty"));
  EXPECT_THAT(engine->Submit(RequestFor({5, 384}, nullptr, 5)).status().message(), HasSubstr("id 384"));
  auto plan = std::make_shared<HeadPlan>(HeadPlan::Dense(engine->shape()));
  plan->rules[0] = HeadRule::Stream(0, 0);
  EXPECT_FALSE(engine->Submit(RequestFor({5}, plan, 5)).ok());
  ModelShape other = engine->shape();
  other.num_layers += 1;
  plan = std::make_shared<HeadPlan>(HeadPlan::Dense(other));
  EXPECT_FALSE(engine->Submit(RequestFor({5}, plan, 5)).ok());
}

}  // namespace
}  // namespace headwise
