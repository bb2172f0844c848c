// Whatever clients do, in whatever order: the limit holds after every step, nobody starves, all memory comes back, and
// every answer is that of its request alone. HEADWISE_SCHEDULE_STEPS says how many steps, HEADWISE_SCHEDULE_SEED which.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>
#include <utility>

#include "backend/all_backends.h"
#include "engine/engine_impl.h"
#include "engine/token_set.h"
#include "server/prefix_store.h"
#include "support/engines.h"
#include "support/golden.h"
#include "support/requests.h"

namespace headwise {
namespace {

constexpr int64_t kTokenBytes = 1024;  // of full heads
constexpr int64_t kMostNew = 240;
constexpr size_t kMostAtOnce = 12;
constexpr int64_t kPhaseSteps = 200;
// Steps that a request may take once nobody keeps sequences and its client reads: with all others before it.
constexpr int64_t kMostSteps = 6000;
constexpr size_t kNumPrompts = 12;
constexpr size_t kNumPlans = 5;
// Of two logits: how a step is cut and shared changes less, and nothing where a schedule is exact.
constexpr float kTolerance = 1e-3F;

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoll(text);
}

// What a client hears.
struct Client : RequestObserver {
  bool HasRoom() override { return reads; }
  void OnToken(int32_t id, std::string, std::optional<TokenLogprobs>) override { tokens.push_back(id); }
  void OnFinish(std::string, RequestResult of_request) override { result = std::move(of_request); }

  bool reads = true;
  std::vector<int32_t> tokens;
  std::optional<RequestResult> result;
};

struct Asked {
  RequestId id = 0;
  std::shared_ptr<Client> client;
  size_t prompt = 0;
  size_t plan = 0;
  int64_t max_new_tokens = 0;
  bool was_cancelled = false;
  int64_t free_steps = 0;  // in which nothing of the client's or of others who keep sequences was in its way
};

// A text that a program keeps, of a prompt but for its last token, and forks.
struct Kept {
  std::shared_ptr<Sequence> sequence;
  size_t prompt = 0;
  size_t plan = 0;
};

// What is kept is a text and nothing of the request that has read it.
class CheckedStore : public PrefixStore {
 public:
  using PrefixStore::PrefixStore;
  void Keep(std::shared_ptr<const HeadPlan> plan, std::span<const int32_t> ids,
            std::shared_ptr<const Sequence> sequence, int64_t bytes) override {
    TokenSet seen;
    seen.Add(ids);
    EXPECT_TRUE(std::ranges::is_permutation(sequence->seen.ids(), seen.ids())) << "ids that the text does not have";
    EXPECT_FALSE(sequence->pending);
    EXPECT_EQ(sequence->host_bytes(), 0) << "promised to a request";
    PrefixStore::Keep(std::move(plan), ids, std::move(sequence), bytes);
  }
};

class Schedule {
 public:
  Schedule(uint64_t seed, int64_t limit_bytes, int64_t host_kv_bytes)
      : limit_bytes_(limit_bytes), is_exact_(seed % 2 == 0), rng_(seed) {
    EngineImpl::Parts parts;
    parts.options = ExactOptions(SourcePath("tests/golden/tiny/llama-gqa"), {"cpu"});
    parts.options.page_tokens = 16;
    parts.options.chunk_tokens = 64;
    parts.options.batch_invariant = is_exact_;
    alone_ = MustCreate(parts.options);
    parts.options.kv_limit_bytes = limit_bytes_;
    parts.options.kv_admission = EngineOptions::KvAdmission::kLikely;
    parts.options.host_kv_bytes = host_kv_bytes;
    memory_ = parts.memory = std::make_shared<KvMemory>();
    memory_->backend = FarIfAsked(*MakeBackend({.name = "cpu", .num_threads = 1, .batch_invariant = is_exact_}));
    memory_->formats = {KvFormat::kF32, KvFormat::kF32};
    memory_->limit_bytes = limit_bytes_;
    memory_->host_limit_bytes = host_kv_bytes;
    parts.model = *LoadModel(parts.options.model, *memory_->backend);
    memory_->page_pools.emplace(*memory_->backend, KvPoolSet::Options{.head_dim = parts.model->config.head_dim,
                                                                      .page_tokens = 16,
                                                                      .formats = memory_->formats,
                                                                      .limit_bytes = limit_bytes_});
    engine_ = std::make_unique<EngineImpl>(std::move(parts));
    engine_->WaitForKept();
    store_ = std::make_shared<CheckedStore>(limit_bytes_ / 4, nullptr, PrefixStore::Sharing::kReadAlike);
    engine_->prefixes().SetCache(store_);
    MakePlans();
    // Half of them begin alike.
    for (size_t i = 0; i < kNumPrompts; ++i) {
      prompts_.push_back(IdsOf(i % 2 == 0 ? 1 : 100 + i, 20 + 37 * i % 110));
      const std::vector<int32_t> end = IdsOf(200 + i, 3 + i);
      prompts_.back().insert(prompts_.back().end(), end.begin(), end.end());
    }
  }

  void Run(int64_t num_steps) {
    for (int64_t i = 0; i < num_steps && !::testing::Test::HasFailure(); ++i) {
      for (int64_t num = Below(3); num > 0; --num) DoSomething();
      Step();
    }
    Finish();
  }
  int64_t num_preemptions() const { return engine_->num_preemptions(); }
  int64_t num_right() const { return num_right_; }
  PrefixStats prefixes() const { return store_->stats(); }

 private:
  int64_t Below(int64_t n) { return static_cast<int64_t>(rng_() % static_cast<uint64_t>(n)); }
  bool OneIn(int64_t n) { return Below(n) == 0; }
  // Now few ask for short answers, so that prefixes are kept and answers taken to be short; now many ask for long ones,
  // which outgrow what is reserved for them.
  bool IsCalm() const { return num_steps_ / kPhaseSteps % 2 == 0; }
  int64_t NumNew() { return IsCalm() ? 1 + Below(10) : kMostNew - Below(kMostNew / 2); }
  // A prompt and a plan; every other time one of a few that are asked for again and again.
  std::pair<size_t, size_t> AnyText() {
    if (OneIn(2)) return {kNumPrompts - 2 * static_cast<size_t>(1 + Below(2)), static_cast<size_t>(Below(2))};
    return {static_cast<size_t>(Below(kNumPrompts)), static_cast<size_t>(Below(kNumPlans))};
  }
  bool IsFull() const { return asked_.size() >= (IsCalm() ? 5 : kMostAtOnce); }

  void MakePlans() {
    HeadRule compensated = HeadRule::Stream(2, 50);
    compensated.compensate = true;
    HeadRule cut = HeadRule::Stream(4, 30);
    cut.start = RuleStart::kEndOfPrompt;
    // As long as any text, and so kept as such.
    HeadRule all{.kind = HeadRule::Kind::kElasticMoa, .sink = 4, .alpha = 4096, .start = RuleStart::kEndOfPrompt};
    const std::vector<std::vector<HeadRule>> rules = {
        {HeadRule::Full()}, {HeadRule::Full(), HeadRule::Stream(4, 60)}, {compensated, HeadRule::Full()}, {cut}, {all}};
    for (const auto& of_plan : rules) {
      HeadPlan plan = HeadPlan::Dense(alone_->shape());
      for (size_t i = 0; i < plan.rules.size(); ++i) plan.rules[i] = of_plan[i % of_plan.size()];
      plan_texts_.push_back(plan);
      plans_.push_back(std::make_shared<const HeadPlan>(std::move(plan)));
    }
    ASSERT_EQ(plans_.size(), kNumPlans);
  }

  void DoSomething() {
    switch (Below(12)) {
      case 0:
      case 1:
      case 2:
        return Submit();
      case 3:
        return SubmitOnFork();
      case 4:
        if (!asked_.empty() && OneIn(3)) {  // a client who leaves
          Asked& asked = asked_[static_cast<size_t>(Below(static_cast<int64_t>(asked_.size())))];
          asked.was_cancelled = true;
          engine_->cancellations()->Cancel(asked.id);
        }
        return;
      case 5:
      case 6:
        if (!asked_.empty()) {  // a client who stops reading, or goes on
          Client& client = *asked_[static_cast<size_t>(Below(static_cast<int64_t>(asked_.size())))].client;
          client.reads = !client.reads || !OneIn(4);
        }
        return;
      case 7:
        return Keep();
      case 8:
      case 9:
        if (!kept_.empty()) kept_.erase(kept_.begin());
        return;
      case 10:
        if (OneIn(5)) static_cast<void>(store_->Reclaim(1 + Below(limit_bytes_ / 8)));
        return;
      default:  // a plan that is unloaded while it is in use, and loaded again
        if (!OneIn(10)) return;
        const auto plan = static_cast<size_t>(Below(kNumPlans));
        store_->Forget(*plans_[plan]);
        plans_[plan] = std::make_shared<const HeadPlan>(plan_texts_[plan]);
    }
  }

  void Enter(Request request, size_t prompt, size_t plan) {
    request.sampling.repetition_penalty = Penalty(prompt);
    Asked asked{
        .client = std::make_shared<Client>(), .prompt = prompt, .plan = plan, .max_new_tokens = request.max_new_tokens};
    if (OneIn(3)) request.logprobs = 1;
    if (OneIn(4)) request.priority = Below(3) - 1;
    request.client = std::to_string(Below(3));
    auto prepared = engine_->Prepare(std::move(request), asked.client);
    ASSERT_TRUE(prepared.ok()) << prepared.status().message();
    const auto id = engine_->Accept(*std::move(prepared));
    ASSERT_TRUE(id.ok()) << id.status().message();
    asked.id = *id;
    asked_.push_back(std::move(asked));
  }

  // What a text has had that it has no more must not count: so others' answers show.
  float Penalty(size_t prompt) const { return is_exact_ && prompt % 4 == 0 ? 1.5F : 1.0F; }

  void Submit() {
    if (IsFull()) return;
    const auto [prompt, plan] = AnyText();
    // Two at once wait for each other's prefix.
    for (int64_t num = OneIn(3) ? 2 : 1; num > 0; --num) {
      Request request = RequestOf(prompts_[prompt], NumNew());
      request.plan = plans_[plan];
      request.reuse_prefix = !OneIn(4);
      Enter(std::move(request), prompt, plan);
    }
  }

  // A sequence for some prompt, which a request reads.
  void Keep() {
    if (kept_.size() >= 2 || !OneIn(4) || IsFull()) return;
    const auto [prompt, plan] = AnyText();
    const std::vector<int32_t>& ids = prompts_[prompt];
    const auto num_ids = static_cast<int64_t>(ids.size());
    auto sequence =
        engine_->sequences().New({.plan = plans_[plan], .prompt_tokens = num_ids, .max_tokens = num_ids + kMostNew},
                                 engine_->sequences().step_tokens());
    if (!sequence.ok()) return;
    Request request = RequestOf({ids.begin(), ids.end() - 1}, 0, *sequence);
    request.reuse_prefix = OneIn(2);
    kept_.push_back({.sequence = *std::move(sequence), .prompt = prompt, .plan = plan});
    Enter(std::move(request), prompt, plan);
  }

  void SubmitOnFork() {
    if (kept_.empty() || IsFull()) return;
    const Kept& kept = kept_.back();
    const std::vector<int32_t>& ids = prompts_[kept.prompt];
    if (kept.sequence->NumTextTokens() + 1 != static_cast<int64_t>(ids.size())) return;
    auto fork = engine_->sequences().Fork(*kept.sequence);
    if (!fork.ok()) return;
    Enter(RequestOf({ids.back()}, NumNew(), *std::move(fork)), kept.prompt, kept.plan);
  }

  void Step() {
    ++num_steps_;
    engine_->Step();
    {
      const KvMemory::Hold hold(*memory_);
      ASSERT_LE(memory_->usage().bytes, limit_bytes_);
      ASSERT_LE(memory_->reserved_bytes, limit_bytes_);
      ASSERT_LE(memory_->usage().bytes, memory_->reserved_bytes) << "all that is held is reserved";
      ASSERT_LE(memory_->host_bytes, memory_->host_limit_bytes);
    }
    const bool all_read = std::ranges::all_of(asked_, [](const Asked& each) { return each.client->reads; });
    for (Asked& asked : asked_) {
      if (all_read && kept_.empty()) ++asked.free_steps;
      ASSERT_LT(asked.free_steps, kMostSteps) << "request " << asked.id << " starves";
      if (asked.client->result) Check(asked);
    }
    std::erase_if(asked_, [](const Asked& each) { return each.client->result.has_value(); });
  }

  void Check(const Asked& asked) {
    const Client& client = *asked.client;
    if (client.result->finish == FinishReason::kCancelled) {
      EXPECT_TRUE(asked.was_cancelled);
    } else {
      ASSERT_EQ(client.result->finish, FinishReason::kLength) << client.result->status.message();
      ASSERT_EQ(static_cast<int64_t>(client.tokens.size()), asked.max_new_tokens);
      ++num_right_;
    }
    const RequestResult& expected = Alone(asked.prompt, asked.plan);
    for (size_t i = 0; i < client.tokens.size(); ++i) {
      if (client.tokens[i] == expected.tokens[i]) continue;
      ASSERT_FALSE(is_exact_) << "token " << i << " of prompt " << asked.prompt << " under plan " << asked.plan;
      // Where two are as good as equal either may come, and the texts part.
      const auto& top = expected.logprobs[i].top;
      EXPECT_LT(top[0].logprob - top[1].logprob, 2 * kTolerance)
          << "token " << i << " of prompt " << asked.prompt << " under plan " << asked.plan << " after "
          << client.result->metrics.num_preemptions << " preemptions, " << client.result->metrics.reused_tokens
          << " tokens reused";
      return;
    }
  }

  const RequestResult& Alone(size_t prompt, size_t plan) {
    const auto [known, is_new] = expected_.try_emplace({prompt, plan});
    if (!is_new) return known->second;
    Request request = RequestOf(prompts_[prompt], kMostNew);
    request.plan = std::make_shared<const HeadPlan>(plan_texts_[plan]);
    request.logprobs = 2;
    request.sampling.repetition_penalty = Penalty(prompt);
    auto result = alone_->Run(std::move(request));
    EXPECT_TRUE(result.ok());
    return known->second = *std::move(result);
  }

  void Finish() {
    kept_.clear();
    for (const Asked& asked : asked_) asked.client->reads = true;
    for (int64_t i = 0; !asked_.empty() && !::testing::Test::HasFailure(); ++i) {
      ASSERT_LT(i, kMostSteps) << asked_.size() << " requests do not end";
      Step();
    }
    engine_->Step();
    store_->Clear();
    const KvMemory::Hold hold(*memory_);
    EXPECT_EQ(memory_->usage().bytes, 0);
    EXPECT_EQ(memory_->reserved_bytes, 0);
    EXPECT_EQ(memory_->host_bytes, 0);
    EXPECT_LE(memory_->usage().peak_bytes, limit_bytes_);
  }

  const int64_t limit_bytes_;
  const bool is_exact_;  // answers are those alone, bit for bit; penalties count then
  std::mt19937_64 rng_;
  std::unique_ptr<Engine> alone_;
  std::shared_ptr<KvMemory> memory_;
  std::shared_ptr<PrefixStore> store_;
  std::unique_ptr<EngineImpl> engine_;
  std::vector<HeadPlan> plan_texts_;
  std::vector<std::shared_ptr<const HeadPlan>> plans_;
  std::vector<std::vector<int32_t>> prompts_;
  std::map<std::pair<size_t, size_t>, RequestResult> expected_;  // by prompt and plan
  std::vector<Asked> asked_;
  std::vector<Kept> kept_;
  int64_t num_steps_ = 0;
  int64_t num_right_ = 0;
};

TEST(RandomSchedule, KeepsItsPromises) {
  const int64_t num_steps = FromEnvironment("HEADWISE_SCHEDULE_STEPS", 1000) / (kIsSanitized ? 4 : 1);
  const auto fresh =
      static_cast<uint64_t>(FromEnvironment("HEADWISE_SCHEDULE_SEED", static_cast<int64_t>(std::random_device()())));
  int64_t num_preemptions = 0;
  int64_t num_right = 0;
  int64_t num_hits = 0;
  int64_t num_wait_hits = 0;
  for (const uint64_t seed : {uint64_t{1}, uint64_t{3}, uint64_t{6}, uint64_t{8}, fresh}) {
    SCOPED_TRACE("HEADWISE_SCHEDULE_SEED=" + std::to_string(seed));
    constexpr int64_t kLimitTokens[] = {900, 1300, 2400};
    constexpr int64_t kHostTokens[] = {0, 300, 5000};
    Schedule schedule(seed, kLimitTokens[seed % 3] * kTokenBytes, kHostTokens[seed / 3 % 3] * kTokenBytes);
    schedule.Run(num_steps);
    num_preemptions += schedule.num_preemptions();
    num_right += schedule.num_right();
    num_hits += schedule.prefixes().num_hits;
    num_wait_hits += schedule.prefixes().num_wait_hits;
    if (HasFailure()) return;
  }
  EXPECT_GT(num_preemptions, 5);
  EXPECT_GT(num_right, 50);
  EXPECT_GT(num_hits, 5);
  EXPECT_GT(num_wait_hits, 5);
}

}  // namespace
}  // namespace headwise
