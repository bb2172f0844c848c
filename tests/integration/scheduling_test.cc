// Who reads how much in a step, as whole engines have it. Time is what the tests say it is.
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

EngineOptions TinyOptions() {
  EngineOptions options = ExactOptions(SourcePath("tests/golden/tiny/llama-gqa"), {"cpu"});
  options.page_tokens = 16;
  options.num_threads = 1;
  return options;
}

// A dense engine on a machine that takes half a millisecond for every token, and has no steps ahead of time.
class TimedEngine {
 public:
  explicit TimedEngine(EngineOptions options) {
    EngineImpl::Parts parts;
    parts.options = std::move(options);
    parts.memory = std::make_shared<KvMemory>();
    parts.memory->backend = *MakeBackend({.name = "cpu", .num_threads = 1});
    parts.model = *LoadModel(parts.options.model, *parts.memory->backend);
    parts.seconds = [this] { return 5e-4 * static_cast<double>(NumTokens()); };
    engine_ = *MakeEngine(std::move(parts));
  }
  Engine& engine() { return *engine_; }
  // In the cache, of all requests; to the page.
  int64_t NumTokens() const {
    const auto page_bytes = 2 * engine_->page_tokens() * engine_->shape().head_dim * 4;
    const int64_t num_heads = engine_->shape().num_layers * engine_->shape().num_kv_heads;
    return engine_->kv_bytes() / page_bytes / num_heads * engine_->page_tokens();
  }

 private:
  std::unique_ptr<Engine> engine_;
};

TEST(Pace, AStreamsGapBoundsThePromptsBesideIt) {
  EngineOptions options = TinyOptions();
  options.max_gap_ms = 50;  // a hundred tokens
  TimedEngine timed(options);
  Engine& engine = timed.engine();
  // Nobody waits for a token: whole chunks.
  const RequestId stream = *engine.Submit(RequestOf(IdsOf(1, 1024), 10000));
  for (int64_t i = 1; i <= 2; ++i) {
    ASSERT_TRUE(*engine.Step());
    EXPECT_EQ(timed.NumTokens(), 512 * i);
  }
  const RequestId prompt = *engine.Submit(RequestOf(IdsOf(2, 4000), 1));
  int64_t num_steps = 0;
  for (; engine.Peek(prompt)->finish == FinishReason::kRunning; ++num_steps) {
    ASSERT_LT(num_steps, 1000);
    const int64_t before = timed.NumTokens();
    const int64_t new_tokens = engine.Peek(stream)->metrics.new_tokens;
    ASSERT_TRUE(*engine.Step());
    EXPECT_EQ(engine.Peek(stream)->metrics.new_tokens, new_tokens + 1);
    // To the page of both.
    EXPECT_LE(timed.NumTokens() - before, 100 + 2 * 16) << num_steps;
  }
  EXPECT_LE(num_steps, 4000 / 48);
}

TEST(Pace, PromptsGetOnWhateverAStepTakes) {
  EngineOptions options = TinyOptions();
  options.max_gap_ms = 1;  // two tokens
  TimedEngine timed(options);
  Engine& engine = timed.engine();
  ASSERT_TRUE(engine.Submit(RequestOf(IdsOf(1, 8), 10000)).ok());
  ASSERT_TRUE(*engine.Step());
  const RequestId prompt = *engine.Submit(RequestOf(IdsOf(2, 640), 1));
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(*engine.Step());
  EXPECT_EQ(engine.Peek(prompt)->finish, FinishReason::kLength);
  EXPECT_EQ(engine.Take(prompt)->tokens, MustCreate(TinyOptions())->Run(RequestOf(IdsOf(2, 640), 1))->tokens);
}

TEST(Pace, WithoutALimitChunksAreWhole) {
  TimedEngine timed(TinyOptions());
  Engine& engine = timed.engine();
  ASSERT_TRUE(engine.Submit(RequestOf(IdsOf(1, 8), 10000)).ok());
  ASSERT_TRUE(*engine.Step());
  ASSERT_TRUE(engine.Submit(RequestOf(IdsOf(2, 5000), 1)).ok());
  ASSERT_TRUE(*engine.Step());
  EXPECT_EQ(timed.NumTokens(), 512 + 16);
}

// Room for one of them at a time.
TEST(Turns, GoByPriorityAndClient) {
  EngineOptions options = TinyOptions();
  options.kv_limit_bytes = 100 << 10;  // 100 tokens
  const auto engine = MustCreate(options);
  std::vector<int> order;
  const auto submit = [&](int name, int64_t priority, const char* client) {
    Request request = RequestOf(IdsOf(static_cast<uint64_t>(name), 40), 20);
    request.priority = priority;
    request.client = client;
    request.on_token = [&order, name](int32_t) {
      if (order.empty() || order.back() != name) order.push_back(name);
      return true;
    };
    EXPECT_TRUE(engine->Submit(request).ok());
  };
  submit(1, 0, "a");
  ASSERT_TRUE(*engine->Step());
  submit(2, 0, "a");
  submit(3, 0, "a");
  submit(4, 7, "b");
  submit(5, 0, "b");
  submit(6, -1, "a");
  submit(7, 0, "b");
  while (*engine->Step()) {
  }
  // "b" comes when "a" has had one step, and is served what "a" has had more.
  EXPECT_EQ(order, (std::vector<int>{1, 6, 5, 7, 2, 3, 4}));
}

TEST(Pace, ALimitThatIsNoneIsNamed) {
  EngineOptions options = TinyOptions();
  for (const int64_t num : {int64_t{-1}, kMaxGapMs + 1}) {
    options.max_gap_ms = num;
    EXPECT_THAT(CreateForTest(options).status().message(), HasSubstr("max_gap_ms is " + std::to_string(num)));
  }
}

}  // namespace
}  // namespace headwise
