// Requests that begin with what another is reading: they wait for it, and what both begin with is read once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "backend/all_backends.h"
#include "engine/engine_impl.h"
#include "server/prefix_store.h"
#include "support/engines.h"
#include "support/golden.h"
#include "support/requests.h"

namespace headwise {
namespace {

constexpr int64_t kTokenBytes = 1024;  // of full heads
constexpr int64_t kNew = 8;
constexpr int64_t kShared = 2000;     // tokens that prompts have in common
constexpr int64_t kBranch = 1984;     // where they are taken to part
constexpr float kTolerance = 1e-3F;   // of two logits: how a step is cut and shared changes less
constexpr int64_t kMostSteps = 3000;  // that any of these tests needs

struct Client : RequestObserver {
  bool HasRoom() override { return reads; }
  void OnToken(int32_t token, std::string, std::optional<TokenLogprobs>) override { tokens.push_back(token); }
  void OnFinish(std::string, RequestResult of_request) override { result = std::move(of_request); }
  int64_t num_reused() const { return result ? result->metrics.reused_tokens : -1; }

  bool reads = true;
  RequestId id = 0;
  std::vector<int32_t> prompt;
  std::vector<int32_t> tokens;
  std::optional<RequestResult> result;
};
using ClientPtr = std::shared_ptr<Client>;

class PrefixWaits : public ::testing::Test {
 protected:
  explicit PrefixWaits(int64_t limit_bytes = 0, int64_t host_kv_bytes = 0, int64_t prefix_bytes = int64_t{1} << 30) {
    EngineImpl::Parts parts;
    parts.options = ExactOptions(SourcePath("tests/golden/tiny/llama-gqa"), {"cpu"});
    parts.options.page_tokens = 16;
    parts.options.chunk_tokens = 256;
    parts.options.max_gap_ms = 0;
    alone_ = MustCreate(parts.options);
    parts.options.kv_limit_bytes = limit_bytes;
    parts.options.kv_admission = EngineOptions::KvAdmission::kLikely;
    memory_ = parts.memory = std::make_shared<KvMemory>();
    memory_->backend = FarIfAsked(*MakeBackend({.name = "cpu", .num_threads = 2}));
    memory_->formats = {KvFormat::kF32, KvFormat::kF32};
    memory_->limit_bytes = limit_bytes;
    memory_->host_limit_bytes = host_kv_bytes;
    parts.model = *LoadModel(parts.options.model, *memory_->backend);
    memory_->page_pools.emplace(*memory_->backend, KvPoolSet::Options{.head_dim = parts.model->config.head_dim,
                                                                      .page_tokens = 16,
                                                                      .formats = memory_->formats,
                                                                      .limit_bytes = limit_bytes});
    engine_ = std::make_unique<EngineImpl>(std::move(parts));
    store_ = std::make_shared<PrefixStore>(prefix_bytes, nullptr, PrefixStore::Sharing::kReadAlike);
    engine_->prefixes().SetCache(store_);
  }
  void TearDown() override {
    store_->Clear();
    const KvMemory::Hold hold(*memory_);
    EXPECT_EQ(memory_->usage().bytes, 0);
    EXPECT_EQ(memory_->reserved_bytes, 0);
  }

  // `num_shared` tokens that all texts of a seed begin with, and a few of its own.
  static std::vector<int32_t> TextOf(uint64_t own, int64_t num_shared = kShared, uint64_t shared = 1) {
    std::vector<int32_t> ids = IdsOf(shared, static_cast<size_t>(num_shared));
    const std::vector<int32_t> end = IdsOf(1000 + own, 20);
    ids.insert(ids.end(), end.begin(), end.end());
    return ids;
  }
  ClientPtr Ask(std::vector<int32_t> prompt, int64_t priority = 0, int64_t max_new_tokens = kNew) {
    auto client = std::make_shared<Client>();
    client->prompt = prompt;
    Request request = RequestOf(std::move(prompt), max_new_tokens);
    request.plan = plan_;
    request.reuse_prefix = true;
    request.priority = priority;
    client->id = Enter(std::move(request), client);
    return client;
  }
  RequestId Enter(Request request, const ClientPtr& client) {
    auto prepared = engine_->Prepare(std::move(request), client);
    EXPECT_TRUE(prepared.ok()) << prepared.status().message();
    return *engine_->Accept(*std::move(prepared));
  }
  void Steps(int num) {
    while (num-- > 0) engine_->Step();
  }
  // Until all of them are over, whatever else runs.
  void Await(const std::vector<ClientPtr>& clients) {
    const auto is_over = [](const ClientPtr& client) { return client->result.has_value(); };
    for (int64_t i = 0; !std::ranges::all_of(clients, is_over); ++i) {
      ASSERT_LT(i, kMostSteps) << "somebody waits for ever";
      engine_->Step();
    }
    for (const ClientPtr& client : clients) ExpectAsAlone(*client);
  }
  void ExpectAsAlone(const Client& client) {
    ASSERT_EQ(client.result->finish, FinishReason::kLength) << client.result->status.message();
    Request request = RequestOf(client.prompt, static_cast<int64_t>(client.tokens.size()));
    request.plan = plan_;
    request.logprobs = 2;
    const auto expected = alone_->Run(std::move(request));
    ASSERT_TRUE(expected.ok());
    for (size_t i = 0; i < client.tokens.size(); ++i) {
      if (client.tokens[i] == expected->tokens[i]) continue;
      // Where two are as good as equal either may come, and the texts part.
      const auto& top = expected->logprobs[i].top;
      EXPECT_LT(top[0].logprob - top[1].logprob, 2 * kTolerance) << "token " << i;
      return;
    }
  }
  void UsePlan(const HeadRule& even, const HeadRule& odd) {
    HeadPlan plan = HeadPlan::Dense(alone_->shape());
    for (size_t i = 0; i < plan.rules.size(); ++i) plan.rules[i] = i % 2 == 0 ? even : odd;
    plan_ = std::make_shared<const HeadPlan>(std::move(plan));
  }
  // Of so many requests that waited so many found what they waited for.
  void ExpectWaits(int64_t num_waits, int64_t num_hits) {
    EXPECT_EQ(store_->stats().num_waits, num_waits);
    EXPECT_EQ(store_->stats().num_wait_hits, num_hits);
  }
  bool IsRunning() const { return engine_->num_running() + engine_->num_waiting() > 0; }

  std::unique_ptr<Engine> alone_;
  std::shared_ptr<KvMemory> memory_;
  std::shared_ptr<PrefixStore> store_;
  std::unique_ptr<EngineImpl> engine_;
  std::shared_ptr<const HeadPlan> plan_;
};

TEST_F(PrefixWaits, TwoAtOnceReadWhatTheyShareOnce) {
  HeadRule cut = HeadRule::Stream(4, 32);
  cut.start = RuleStart::kEndOfPrompt;
  const std::pair<HeadRule, HeadRule> rules[] = {{HeadRule::Full(), HeadRule::Full()},
                                                 {HeadRule::Full(), HeadRule::Stream(4, 60)},
                                                 {HeadRule::Stream(4, 32), HeadRule::Stream(2, 50)},
                                                 {cut, HeadRule::Full()}};
  int64_t num_waits = 0;
  for (const auto& [even, odd] : rules) {
    store_->Clear();
    UsePlan(even, odd);
    const ClientPtr first = Ask(TextOf(1));
    const ClientPtr second = Ask(TextOf(2));
    Await({first, second});
    EXPECT_EQ(first->num_reused(), 0);
    EXPECT_EQ(second->num_reused(), kBranch);
    ++num_waits;
    ExpectWaits(num_waits, num_waits);
  }
}

TEST_F(PrefixWaits, WhoComesWhileItIsReadWaitsForTheRest) {
  const ClientPtr first = Ask(TextOf(1));
  Steps(4);
  ASSERT_TRUE(first->tokens.empty());
  const ClientPtr second = Ask(TextOf(2));
  Steps(1);
  EXPECT_EQ(engine_->num_waiting(), 1u);
  Await({first, second});
  EXPECT_EQ(second->num_reused(), kBranch);
  ExpectWaits(1, 1);
}

// What was read without a fork cannot be gone on from.
TEST_F(PrefixWaits, WhoComesTooLateReadsItself) {
  const ClientPtr first = Ask(TextOf(1, 4000));
  Steps(8);
  std::vector<int32_t> ids = TextOf(1, 4000);
  ids.resize(1000);
  ids.resize(1200, 5);
  const ClientPtr second = Ask(std::move(ids));
  Await({first, second});
  EXPECT_EQ(second->num_reused(), 0);
  ExpectWaits(0, 0);
}

TEST_F(PrefixWaits, OnePromptInAnother) {
  const ClientPtr longer = Ask(TextOf(1, 3000));
  std::vector<int32_t> ids = TextOf(1, 3000);
  ids.resize(1600);  // a place where texts are taken to part
  const ClientPtr shorter = Ask(ids);
  ids = TextOf(1, 3000);
  ids.insert(ids.end(), 500, 7);
  const ClientPtr longest = Ask(std::move(ids));
  Await({longer, shorter, longest});
  EXPECT_EQ(shorter->num_reused(), 1598);
  EXPECT_EQ(longest->num_reused(), 3018);
  ExpectWaits(2, 2);
}

// The third has more in common with the second than with the first: it waits for both, one after the other.
TEST_F(PrefixWaits, ThreeInARow) {
  std::vector<int32_t> second_ids = TextOf(2);
  const std::vector<int32_t> more = IdsOf(7, 1000);
  second_ids.insert(second_ids.end(), more.begin(), more.end());
  std::vector<int32_t> third_ids = second_ids;
  second_ids.insert(second_ids.end(), {1, 2, 3, 4, 5});
  third_ids.insert(third_ids.end(), {6, 7, 8, 9, 10});
  const ClientPtr first = Ask(TextOf(1));
  const ClientPtr second = Ask(second_ids);
  const ClientPtr third = Ask(third_ids);
  Await({first, second, third});
  EXPECT_EQ(first->num_reused(), 0);
  EXPECT_EQ(second->num_reused(), kBranch);
  EXPECT_EQ(third->num_reused(), BranchPoint(kShared + 20 + 1000));
  ExpectWaits(2, 2);
}

TEST_F(PrefixWaits, ManyOfOnePrompt) {
  std::vector<ClientPtr> clients;
  for (int i = 0; i < 20; ++i) clients.push_back(Ask(TextOf(1)));
  Await(clients);
  int64_t num_read = 0;
  for (const ClientPtr& client : clients) num_read += kShared + 20 - client->num_reused();
  EXPECT_EQ(num_read, kShared + 20 + 19 * 2);
  ExpectWaits(19, 19);
}

TEST_F(PrefixWaits, TheNextOneReadsWhereTheOwnerLeaves) {
  const ClientPtr owner = Ask(TextOf(1));
  const ClientPtr second = Ask(TextOf(2));
  const ClientPtr third = Ask(TextOf(3));
  Steps(4);
  EXPECT_EQ(engine_->num_waiting(), 2u);
  engine_->cancellations()->Cancel(owner->id);
  Await({second, third});
  EXPECT_EQ(owner->result->finish, FinishReason::kCancelled);
  EXPECT_EQ(second->num_reused(), 0);
  EXPECT_EQ(third->num_reused(), kBranch);
  ExpectWaits(2, 1);
}

TEST_F(PrefixWaits, WhoIsCancelledWhileItWaitsIsGone) {
  const ClientPtr owner = Ask(TextOf(1));
  const ClientPtr second = Ask(TextOf(2));
  Steps(2);
  engine_->cancellations()->Cancel(second->id);
  Await({owner});
  EXPECT_EQ(second->result->finish, FinishReason::kCancelled);
  ExpectWaits(1, 0);
}

// Its client does not read: it takes part in no step.
TEST_F(PrefixWaits, NobodyWaitsForOneThatStandsStill) {
  const ClientPtr owner = Ask(TextOf(1));
  Steps(2);
  const ClientPtr second = Ask(TextOf(2));
  Steps(2);
  EXPECT_EQ(engine_->num_waiting(), 1u);
  owner->reads = false;
  Await({second});
  EXPECT_EQ(second->num_reused(), 0);
  EXPECT_FALSE(owner->result);
  const ClientPtr third = Ask(TextOf(2));
  Await({third});
  EXPECT_EQ(third->num_reused(), kShared + 18) << "of what the second has left";
  owner->reads = true;
  Await({owner});
}

// Others are more urgent, for as long as they come.
TEST_F(PrefixWaits, NobodyWaitsForOneThatIsNeverServed) {
  const ClientPtr owner = Ask(TextOf(1), 100);
  Steps(2);
  const ClientPtr busy = Ask(TextOf(5, 8000, 2));
  const ClientPtr second = Ask(TextOf(2), 0);
  Await({second});
  EXPECT_EQ(second->num_reused(), 0);
  EXPECT_FALSE(owner->result);
  EXPECT_FALSE(busy->result);
  ExpectWaits(1, 0);
  engine_->cancellations()->Cancel(busy->id);
  Await({owner});
}

TEST_F(PrefixWaits, OtherRulesAndTextsDoNotWait) {
  HeadRule rule;
  rule.kind = HeadRule::Kind::kElasticMoa;
  rule.sink = 4;
  rule.alpha = 16;
  rule.beta = 0.25;
  UsePlan(rule, HeadRule::Full());
  const ClientPtr first = Ask(TextOf(1), 0, 4);
  const ClientPtr other_length = Ask(TextOf(1), 0, 400);
  const ClientPtr other_text = Ask(TextOf(1, kShared, 3), 0, 4);
  UsePlan(HeadRule::Full(), HeadRule::Stream(4, 60));
  const ClientPtr other_plan = Ask(TextOf(1), 0, 4);
  Steps(1);
  EXPECT_EQ(engine_->num_running(), 4u);
  ExpectWaits(0, 0);
  for (const ClientPtr& client : {first, other_length, other_text, other_plan}) {
    engine_->cancellations()->Cancel(client->id);
  }
  Steps(1);
  EXPECT_FALSE(IsRunning());
}

TEST_F(PrefixWaits, PlansThatReadAPromptAlikeShareIt) {
  HeadRule cut = HeadRule::Stream(4, 32);
  cut.start = RuleStart::kEndOfPrompt;
  cut.compensate = true;
  const ClientPtr full = Ask(TextOf(1));
  UsePlan(cut, HeadRule::Full());
  const ClientPtr half_cut = Ask(TextOf(2));
  UsePlan(cut, cut);
  const ClientPtr all_cut = Ask(TextOf(3));
  Await({all_cut});
  UsePlan(cut, HeadRule::Full());
  Await({half_cut});
  plan_ = nullptr;
  Await({full});
  EXPECT_EQ(half_cut->num_reused(), kBranch);
  EXPECT_EQ(all_cut->num_reused(), kBranch);
  ExpectWaits(2, 2);
}

// A sequence of a program's, as the prompt of several choices has.
TEST_F(PrefixWaits, AGivenSequenceWaitsToo) {
  const ClientPtr owner = Ask(TextOf(1));
  auto client = std::make_shared<Client>();
  client->prompt = TextOf(2);
  const auto num_ids = static_cast<int64_t>(client->prompt.size());
  auto sequence = engine_->sequences().New({.plan = nullptr, .prompt_tokens = num_ids, .max_tokens = num_ids + kNew},
                                           engine_->sequences().step_tokens());
  ASSERT_TRUE(sequence.ok());
  Request request = RequestOf(client->prompt, kNew, *sequence);
  request.reuse_prefix = true;
  Enter(std::move(request), client);
  sequence->reset();
  Await({owner, client});
  EXPECT_EQ(client->num_reused(), kBranch);
  ExpectWaits(1, 1);
}

class NoRoomForPrefixes : public PrefixWaits {
 protected:
  NoRoomForPrefixes() : PrefixWaits(0, 0, kShared / 2 * kTokenBytes) {}
};

TEST_F(NoRoomForPrefixes, NobodyWaitsForWhatIsNotKept) {
  const ClientPtr first = Ask(TextOf(1));
  const ClientPtr second = Ask(TextOf(2));
  Await({first, second});
  EXPECT_EQ(second->num_reused(), 0);
  ExpectWaits(0, 0);
}

template <int64_t kHostBytes>
class LimitedPrefixWaits : public PrefixWaits {
 protected:
  static constexpr int64_t kLimit = 20000 * kTokenBytes;
  LimitedPrefixWaits() : PrefixWaits(kLimit, kHostBytes) {}

  int64_t ReservedBytes() {
    const KvMemory::Hold hold(*memory_);
    return memory_->reserved_bytes;
  }
  void SetLimit(int64_t bytes) {
    const KvMemory::Hold hold(*memory_);
    memory_->limit_bytes = bytes;
  }

  void AnOwnerGivesWay() {
    // It grows by four pages at a time, and soon again. Of so short a prompt nothing is kept that could give way.
    const ClientPtr oldest = Ask(TextOf(9, 30, 4), 0, 600);
    Steps(2);
    const int64_t reserved_bytes = ReservedBytes();
    for (int i = 0; ReservedBytes() == reserved_bytes; ++i) {
      ASSERT_LT(i, 500);
      Steps(1);
    }
    Steps(60);
    const ClientPtr owner = Ask(TextOf(1, 3 * kShared));
    const ClientPtr second = Ask(TextOf(2, 3 * kShared));
    Steps(2);
    EXPECT_EQ(engine_->num_waiting(), 1u);
    SetLimit(ReservedBytes());
    for (int i = 0; engine_->num_preemptions() == 0; ++i) {
      ASSERT_LT(i, 20) << "the owner has read all of it";
      Steps(1);
    }
    EXPECT_EQ(engine_->num_waiting(), 2u);
    Steps(20);
    EXPECT_EQ(engine_->num_waiting(), 2u) << "nobody else has memory";
    SetLimit(kLimit);
    Await({oldest, owner, second});
    EXPECT_EQ(owner->result->metrics.num_preemptions, 1);
    EXPECT_EQ(second->num_reused(), BranchPoint(3 * kShared));
    ExpectWaits(1, 1);
  }
};
using WaitsThatReadAgain = LimitedPrefixWaits<0>;
using WaitsForHostMemory = LimitedPrefixWaits<int64_t{1} << 24>;

TEST_F(WaitsThatReadAgain, AnOwnerGivesWay) {
  AnOwnerGivesWay();
}
TEST_F(WaitsForHostMemory, AnOwnerGivesWay) {
  AnOwnerGivesWay();
}

}  // namespace
}  // namespace headwise
