// Requests that are let in by what they are likely to need, and give way to older ones where memory ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "backend/all_backends.h"
#include "engine/engine_impl.h"
#include "support/engines.h"
#include "support/golden.h"
#include "support/requests.h"

namespace headwise {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kTokenBytes = 1024;  // of the tiny model, every head full, f32

EngineOptions LikelyOptions(int64_t limit_tokens, int64_t host_tokens) {
  EngineOptions options = ExactOptions(SourcePath("tests/golden/tiny/llama-gqa"), {"cpu"});
  options.page_tokens = 16;
  options.num_threads = 1;
  options.kv_admission = EngineOptions::KvAdmission::kLikely;
  options.kv_limit_bytes = limit_tokens * kTokenBytes;
  options.host_kv_bytes = host_tokens * kTokenBytes;
  return options;
}

EngineOptions WithoutLimit(EngineOptions options) {
  options.kv_limit_bytes = options.host_kv_bytes = 0;
  return options;
}

std::shared_ptr<const HeadPlan> PlanOf(const Engine& engine, const std::vector<HeadRule>& rules) {
  HeadPlan plan = HeadPlan::Dense(engine.shape());
  for (size_t i = 0; i < plan.rules.size(); ++i) plan.rules[i] = rules[i % rules.size()];
  return std::make_shared<const HeadPlan>(std::move(plan));
}

std::vector<HeadRule> MixedRules() {
  HeadRule cached = HeadRule::Stream(20, 40);
  cached.positions = Positions::kCache;
  HeadRule compensated = HeadRule::Stream(2, 50);
  compensated.compensate = true;
  return {HeadRule::Full(), cached, compensated, HeadRule::Stream(0, 30)};
}

std::vector<HeadRule> CutRules() {
  HeadRule cut = HeadRule::Stream(4, 30);
  cut.start = RuleStart::kEndOfPrompt;
  cut.compensate = true;
  return {HeadRule::Full(), cut};
}

Request LongRequest(uint64_t seed, int64_t max_new_tokens, std::shared_ptr<const HeadPlan> plan = nullptr) {
  Request request = RequestOf(IdsOf(seed, 40), max_new_tokens);
  request.plan = std::move(plan);
  request.logprobs = 0;
  return request;
}

// Steps until all are over, within the limit.
std::vector<RequestResult> RunAll(Engine& engine, int64_t limit_bytes, const std::vector<Request>& requests) {
  std::vector<RequestId> ids;
  for (const Request& request : requests) {
    const auto id = engine.Submit(request);
    EXPECT_TRUE(id.ok()) << id.status().message();
    ids.push_back(*id);
  }
  for (bool goes_on = true; goes_on;) {
    goes_on = *engine.Step();
    EXPECT_LE(engine.kv_bytes(), limit_bytes);
  }
  EXPECT_LE(engine.kv_peak_bytes(), limit_bytes);
  EXPECT_EQ(engine.kv_bytes(), 0);
  std::vector<RequestResult> results;
  for (const RequestId id : ids) results.push_back(*engine.Take(id));
  return results;
}

int64_t NumPreemptions(const std::vector<RequestResult>& results) {
  int64_t num = 0;
  for (const RequestResult& result : results) num += result.metrics.num_preemptions;
  return num;
}

void ExpectSame(const RequestResult& result, const RequestResult& alone) {
  EXPECT_EQ(result.finish, FinishReason::kLength) << result.status.message();
  EXPECT_EQ(result.tokens, alone.tokens);
  ASSERT_EQ(result.logprobs.size(), alone.logprobs.size());
  for (size_t i = 0; i < alone.logprobs.size(); ++i) {
    ASSERT_EQ(result.logprobs[i].chosen.logprob, alone.logprobs[i].chosen.logprob) << i;
  }
}

struct SwapCase {
  const char* name;
  const char* kv_dtype;
  std::vector<HeadRule> rules;
};

// Three LongRequests of 440 tokens come in, by 256 that are expected of an answer, and do not find room in the end.
int64_t LimitFor(EngineOptions options, std::shared_ptr<const HeadPlan> plan) {
  options.kv_limit_bytes = int64_t{1} << 30;
  EngineImpl::Parts parts;
  parts.options = options;
  const auto memory = parts.memory = std::make_shared<KvMemory>();
  memory->backend = *MakeBackend({.name = options.backend, .batch_invariant = options.batch_invariant});
  parts.model = *LoadModel(options.model, *memory->backend);
  const auto engine = *MakeEngine(std::move(parts));
  const auto bytes_of = [&](int64_t max_tokens) {
    const auto sequence = engine->NewSequence({.plan = plan, .prompt_tokens = 40, .max_tokens = max_tokens});
    EXPECT_TRUE(sequence.ok());
    return memory->reserved_bytes;
  };
  return (3 * bytes_of(296) + 3 * bytes_of(480)) / 2;
}

class Preempted : public ::testing::TestWithParam<SwapCase> {};

// Three requests that do not find room together give what each gives alone, bit for bit.
void ExpectTheBitsOfEachAlone(EngineOptions options, const std::vector<HeadRule>& rules) {
  const auto free = MustCreate(WithoutLimit(options));
  const auto plan = PlanOf(*free, rules);
  std::vector<Request> requests;
  std::vector<RequestResult> alone;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    requests.push_back(LongRequest(seed, 440, plan));
    alone.push_back(*free->Run(requests.back()));
  }
  options.kv_limit_bytes = LimitFor(options, requests[0].plan);
  const auto engine = MustCreate(options);
  const std::vector<RequestResult> results = RunAll(*engine, options.kv_limit_bytes, requests);
  for (size_t i = 0; i < results.size(); ++i) {
    SCOPED_TRACE(i);
    ExpectSame(results[i], alone[i]);
  }
  EXPECT_GE(NumPreemptions(results), 1);
  EXPECT_EQ(results[0].metrics.num_preemptions, 0) << "the oldest always goes on";
}

// To host memory and back.
TEST_P(Preempted, ComesBackBitForBit) {
  EngineOptions options = LikelyOptions(1, 4000);
  options.num_threads = 2;
  options.backend = "ref";  // whose rows do not depend on what else shares a step
  options.kv_dtype = GetParam().kv_dtype;
  if (NewestFormat(KvFormatsByName(options.kv_dtype)->full) == KvFormat::kQ8) options.page_tokens = 32;
  ExpectTheBitsOfEachAlone(options, GetParam().rules);
}

INSTANTIATE_TEST_SUITE_P(Rules, Preempted,
                         ::testing::Values(SwapCase{"Full", "f32", {HeadRule::Full()}},
                                           SwapCase{"Mixed", "f32", MixedRules()},
                                           SwapCase{"FromTheEndOfThePrompt", "f32", CutRules()},
                                           SwapCase{"Ageing", "q4", {HeadRule::Full()}},
                                           SwapCase{"MixedFormats", "q4,f16", MixedRules()}),
                         [](const auto& param_info) { return param_info.param.name; });

// Batch-invariant, both ways on the SIMD backend: by host memory, and by reading a text again, which chunks what was
// decoded.
TEST(Preemption, BatchInvariantTextsComeBackBitForBit) {
  if (IsTestDevice("cuda")) GTEST_SKIP() << "cuda is not batch-invariant";
  for (const int64_t host_tokens : {4000, 0}) {
    for (const char* kv_dtype : {"f32", "q8"}) {
      SCOPED_TRACE(kv_dtype);
      EngineOptions options = LikelyOptions(1, host_tokens);
      options.kv_dtype = kv_dtype;
      options.page_tokens = 32;
      options.batch_invariant = true;
      ExpectTheBitsOfEachAlone(options, MixedRules());
    }
  }
}

// Without host memory a text is read again. Where that is not what it was, requests have their worst case and wait.
TEST(Preemption, WithoutHostMemoryATextIsReadAgain) {
  for (const auto& rules : {std::vector<HeadRule>{HeadRule::Full()}, MixedRules()}) {
    EngineOptions options = LikelyOptions(1, 0);
    const auto free = MustCreate(WithoutLimit(options));
    std::vector<Request> requests;
    std::vector<RequestResult> alone;
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      requests.push_back(LongRequest(seed, 440, PlanOf(*free, rules)));
      alone.push_back(*free->Run(requests.back()));
    }
    options.kv_limit_bytes = LimitFor(options, requests[0].plan);
    const auto engine = MustCreate(options);
    const std::vector<RequestResult> results = RunAll(*engine, options.kv_limit_bytes, requests);
    for (size_t i = 0; i < results.size(); ++i) {
      EXPECT_EQ(results[i].tokens, alone[i].tokens) << i;
      EXPECT_EQ(results[i].metrics.new_tokens, 440);
      EXPECT_EQ(results[i].metrics.prompt_tokens, 40);
    }
    EXPECT_GE(NumPreemptions(results), 1);
  }
  const EngineOptions options = LikelyOptions(760, 0);
  const auto engine = MustCreate(options);
  std::vector<Request> requests;
  for (uint64_t seed = 1; seed <= 4; ++seed) requests.push_back(LongRequest(seed, 440, PlanOf(*engine, CutRules())));
  EXPECT_EQ(NumPreemptions(RunAll(*engine, options.kv_limit_bytes, requests)), 0);
}

// A budget that one fits into: others are read again.
TEST(Preemption, HostMemoryIsABudget) {
  const EngineOptions options = LikelyOptions(1100, 200);
  const auto engine = MustCreate(options);
  const auto free = MustCreate(WithoutLimit(options));
  std::vector<Request> requests;
  std::vector<RequestId> ids;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    requests.push_back(LongRequest(seed, 440));
    ids.push_back(*engine->Submit(requests.back()));
  }
  while (*engine->Step()) {
  }
  for (size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(engine->Take(ids[i])->tokens, free->Run(requests[i])->tokens) << i;
}

// More of them at once than by their worst case.
TEST(Preemption, MoreRunAtOnce) {
  EngineOptions options = LikelyOptions(1100, 0);
  const auto num_running = [&] {
    const auto engine = MustCreate(options);
    for (uint64_t seed = 1; seed <= 6; ++seed) EXPECT_TRUE(engine->Submit(LongRequest(seed, 900)).ok());
    for (int i = 0; i < 10; ++i) EXPECT_TRUE(*engine->Step());
    return engine->kv_bytes() / kTokenBytes;
  };
  EXPECT_GE(num_running(), 3 * 48);
  options.kv_admission = EngineOptions::KvAdmission::kWorstCase;
  EXPECT_EQ(num_running(), 64);
}

TEST(Preemption, CancelledWhileItWaits) {
  const EngineOptions options = LikelyOptions(700, 4000);
  const auto engine = MustCreate(options);
  const RequestId first = *engine->Submit(LongRequest(1, 600));
  const RequestId second = *engine->Submit(LongRequest(2, 600));
  while (engine->Peek(second)->metrics.num_preemptions == 0) ASSERT_TRUE(*engine->Step());
  EXPECT_EQ(engine->Peek(second)->metrics.kv_bytes, 0);
  EXPECT_GT(engine->Peek(second)->metrics.kv_peak_bytes, 0);
  engine->Cancel(second);
  while (*engine->Step()) {
  }
  const auto cancelled = engine->Take(second);
  EXPECT_EQ(cancelled->finish, FinishReason::kCancelled);
  EXPECT_GT(cancelled->tokens.size(), 50u);
  EXPECT_EQ(engine->Take(first)->tokens.size(), 600u);
  EXPECT_EQ(engine->kv_bytes(), 0);
}

// Kept sequences are their owner's: nobody takes them, and who cannot do without their memory says so.
TEST(Preemption, KeptSequencesStay) {
  const EngineOptions options = LikelyOptions(700, 4000);
  const auto engine = MustCreate(options);
  auto kept = *engine->NewSequence({.plan = nullptr, .prompt_tokens = 0, .max_tokens = 300});
  const RequestId turn = *engine->Submit(RequestOf(IdsOf(1, 200), 50, kept));
  const RequestId grows = *engine->Submit(LongRequest(2, 600));
  while (engine->Peek(grows)->finish == FinishReason::kRunning) ASSERT_TRUE(engine->Step().ok());
  EXPECT_EQ(engine->Peek(turn)->finish, FinishReason::kLength);
  EXPECT_EQ(engine->Peek(turn)->metrics.num_preemptions, 0);
  const auto result = engine->Take(grows);
  EXPECT_EQ(result->finish, FinishReason::kError);
  EXPECT_EQ(result->status.code(), StatusCode::kOutOfMemory);
  EXPECT_GT(result->tokens.size(), 300u) << "what it had said is there";
  EXPECT_TRUE(engine->Run(RequestOf({1}, 5, kept)).ok());
}

TEST(Preemption, OptionsThatMeanNothingAreNamed) {
  EngineOptions options = LikelyOptions(700, 100);
  options.kv_limit_bytes = 0;
  EXPECT_THAT(CreateForTest(options).status().message(), HasSubstr("host_kv_bytes is 102400"));
  options = LikelyOptions(700, -1);
  EXPECT_THAT(CreateForTest(options).status().message(), HasSubstr("host_kv_bytes is -1024"));
  options = LikelyOptions(700, 100);
  options.kv_admission = EngineOptions::KvAdmission::kWorstCase;
  EXPECT_THAT(CreateForTest(options).status().message(), HasSubstr("nobody gives way"));
}

}  // namespace
}  // namespace headwise
