// Requests whose tokens are limited, alone and among others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "engine/engine_impl.h"
#include "support/engines.h"
#include "support/fake_constraint.h"
#include "support/golden.h"
#include "support/requests.h"

namespace headwise {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::unique_ptr<Engine> TinyEngine() {
  return MustCreate(ExactOptions(SourcePath("tests/golden/tiny/llama-gqa"), {"cpu"}));
}

// Ids of 100 to 131 and nothing else; after `most` of them the text ends.
std::shared_ptr<const TokenConstraint> Band(const Engine& engine, size_t most) {
  std::vector<int32_t> band;
  for (int32_t id = 100; id < 132; ++id) band.push_back(id);
  return std::make_shared<FakeConstraint>(engine.config().vocab_size, [band, most](size_t n) {
    return n < most ? FakeStep{band, false} : FakeStep{{}, true};
  });
}

Request Constrained(const Engine& engine, uint64_t seed, size_t most = 6) {
  Request request = RequestOf(IdsOf(seed, 20), 20);
  request.eos = EosMode::kStop;
  request.constraint = Band(engine, most);
  return request;
}

TEST(Constraint, LimitsWhatIsDrawn) {
  const auto engine = TinyEngine();
  for (const float temperature : {0.0f, 2.0f}) {
    Request request = Constrained(*engine, 1);
    request.sampling.temperature = temperature;
    const auto result = engine->Run(std::move(request));
    ASSERT_TRUE(result.ok()) << result.status().message();
    EXPECT_EQ(result->finish, FinishReason::kEos);
    EXPECT_EQ(result->tokens.size(), 6u);
    EXPECT_THAT(result->tokens, Each(::testing::AllOf(::testing::Ge(100), ::testing::Lt(132))));
  }
}

// Greedy under a constraint is the most likely of what is allowed; log-probabilities stay the model's.
TEST(Constraint, LeavesTheModelsDistributionAsItIs) {
  const auto engine = TinyEngine();
  Request free = Constrained(*engine, 2);
  free.constraint = nullptr;
  free.max_new_tokens = 1;
  free.logprobs = 256;
  const auto all = engine->Run(std::move(free));
  ASSERT_TRUE(all.ok()) << all.status().message();
  Request request = Constrained(*engine, 2, 1);
  request.logprobs = 256;
  const auto result = engine->Run(std::move(request));
  ASSERT_TRUE(result.ok()) << result.status().message();
  ASSERT_EQ(result->logprobs.size(), 1u);
  const TokenLogprobs& drawn = result->logprobs[0];
  EXPECT_EQ(drawn.top.front().id, all->logprobs[0].top.front().id);
  EXPECT_FLOAT_EQ(drawn.top.front().logprob, all->logprobs[0].top.front().logprob);
  for (const TokenLogprob& other : drawn.top) {
    if (other.id < 100 || other.id >= 132) continue;
    EXPECT_EQ(other.id, drawn.chosen.id) << "the first of those allowed";
    EXPECT_FLOAT_EQ(other.logprob, drawn.chosen.logprob);
    break;
  }
}

TEST(Constraint, ConcernsNobodyElse) {
  const auto engine = TinyEngine();
  const auto alone = engine->Run(RequestOf(IdsOf(5, 30), 12));
  ASSERT_TRUE(alone.ok());
  const RequestId limited = *engine->Submit(Constrained(*engine, 4));
  const RequestId free = *engine->Submit(RequestOf(IdsOf(5, 30), 12));
  while (*engine->Step()) {
  }
  EXPECT_EQ(engine->Take(free)->tokens, alone->tokens);
  EXPECT_THAT(engine->Take(limited)->tokens, Each(::testing::Ge(100)));
}

TEST(Constraint, EndsARequestThatCannotGoOn) {
  const auto engine = TinyEngine();
  const int64_t vocab_size = engine->config().vocab_size;
  Request dead = Constrained(*engine, 6);
  dead.constraint = std::make_shared<FakeConstraint>(vocab_size, [](size_t n) {
    return n == 0 ? FakeStep{{7}, false} : FakeStep{{}, false};
  });
  const RequestId id = *engine->Submit(std::move(dead));
  while (*engine->Step()) {
  }
  const auto result = engine->Take(id);
  EXPECT_THAT(result->tokens, ElementsAre(7));
  EXPECT_EQ(result->finish, FinishReason::kError);
  EXPECT_THAT(result->status.message(), HasSubstr("no token of the vocabulary"));

  Request biased = Constrained(*engine, 6);
  for (int32_t banned = 100; banned < 132; ++banned) {
    biased.sampling.logit_bias.push_back({.id = banned, .bias = -INFINITY});
  }
  EXPECT_THAT(engine->Run(std::move(biased)).status().message(), HasSubstr("logit_bias forbids"));
}

TEST(Constraint, IsRefusedWhereItCannotBeHeldTo) {
  const auto engine = TinyEngine();
  Request ignoring = Constrained(*engine, 7);
  ignoring.eos = EosMode::kIgnore;
  EXPECT_THAT(engine->Submit(std::move(ignoring)).status().message(),
              HasSubstr("end-of-text tokens are to be ignored"));
  Request other = Constrained(*engine, 7);
  other.constraint = std::make_shared<FakeConstraint>(5, [](size_t) { return FakeStep{}; });
  EXPECT_THAT(engine->Submit(std::move(other)).status().message(), HasSubstr("is one of 5 ids"));
}

}  // namespace
}  // namespace headwise
