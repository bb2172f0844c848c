// Requests that go on from what others have read, as clients see them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/requests.h"
#include "support/test_api.h"

namespace headwise {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kRoom = int64_t{1} << 30;

std::string Document(int num_sentences = 20) {
  std::string text;
  for (int i = 0; i < num_sentences; ++i) text += kStory + " number " + std::to_string(i) + ". ";
  return text;
}

int64_t CachedOf(const Json& answer) {
  return answer["usage"]["prompt_tokens_details"]["cached_tokens"];
}
int64_t PromptOf(const Json& answer) {
  return answer["usage"]["prompt_tokens"];
}
std::string TextOf(const Json& answer) {
  const Json& choice = answer["choices"][0];
  return choice.contains("text") ? choice["text"] : choice["message"]["content"];
}

class PrefixReuse : public ::testing::Test {
 protected:
  explicit PrefixReuse(int64_t kv_limit_bytes = 0, int64_t prefix_bytes = kRoom)
      : api_({}, kv_limit_bytes, prefix_bytes) {}

  PrefixStore& store() { return *api_.model().prefixes(); }
  int64_t misses(PrefixMiss why) { return store().stats().num_misses[static_cast<size_t>(why)]; }
  // What is said without any reuse, which has to be the same.
  Json Alone(Json body) {
    body["cache_prompt"] = false;
    const Json answer = api_.Complete(body);
    EXPECT_EQ(CachedOf(answer), 0);
    return answer;
  }
  Json Ask(const Json& body) {
    const Json answer = api_.Complete(body);
    EXPECT_EQ(TextOf(answer), TextOf(Alone(body)));
    return answer;
  }
  void AddPlan(const std::string& name, const HeadRule& rule) {
    HeadPlan plan = HeadPlan::Dense(api_.model().engine().shape());
    for (HeadRule& each : plan.rules) each = rule;
    ASSERT_FALSE(api_.model().AddPlan(name, std::move(plan), "test"));
  }
  // That nothing is left of what was kept.
  void ExpectAllComesBack() {
    store().Clear();
    EXPECT_TRUE(WaitUntil([&] {
      api_.model().service().Cancel(0);  // a look at how things stand
      const ServiceStats stats = api_.model().service().stats();
      return stats.num_running + stats.num_waiting == 0 && stats.kv_bytes == 0 && stats.kv_reserved_bytes == 0;
    }));
  }

  TestApi api_;
};

TEST_F(PrefixReuse, TheSamePromptIsReadOnce) {
  const Json body = Greedy(Document(), 12);
  const Json first = Ask(body);
  EXPECT_EQ(CachedOf(first), 0);
  const Json again = Ask(body);
  EXPECT_EQ(CachedOf(again), PromptOf(again) - 2);
  EXPECT_EQ(TextOf(again), TextOf(first));
  EXPECT_EQ(store().stats().num_hits, 1);
  EXPECT_EQ(store().stats().hit_tokens, CachedOf(again));
  EXPECT_EQ(store().stats().query_tokens, 2 * PromptOf(again));
  EXPECT_EQ(misses(PrefixMiss::kUnknown), 1);
  // Several choices of it, and one after several.
  Json many = body;
  many["n"] = 3;
  EXPECT_EQ(CachedOf(Ask(many)), PromptOf(again) - 2);
  many["prompt"] = "In short: " + Document();
  EXPECT_EQ(CachedOf(Ask(many)), 0);
  EXPECT_GT(CachedOf(Ask(many)), 300);
  many["n"] = 1;
  EXPECT_GT(CachedOf(Ask(many)), 300);
  ExpectAllComesBack();
}

TEST_F(PrefixReuse, AChatGoesOn) {
  Json body = {{"messages", {{{"role", "system"}, {"content", Document(4)}}, {{"role", "user"}, {"content", "Hi"}}}},
               {"max_tokens", 24},
               {"temperature", 0}};
  const auto ask = [&](bool reuses) {
    body["cache_prompt"] = reuses;
    return api_.Must("POST", "/v1/chat/completions", body.dump());
  };
  int64_t before = 0;
  for (int turn = 0; turn < 3; ++turn) {
    const Json answer = ask(true);
    EXPECT_EQ(TextOf(answer), TextOf(ask(false)));
    EXPECT_GE(CachedOf(answer), before) << "turn " << turn;
    // All but the last token of the answer, unless its text is cut into other tokens now.
    before = PromptOf(answer) + answer["usage"]["completion_tokens"].get<int64_t>() - 1;
    body["messages"].push_back({{"role", "assistant"}, {"content", TextOf(answer)}});
    body["messages"].push_back({{"role", "user"}, {"content", "Go on, " + std::to_string(turn)}});
  }
  ExpectAllComesBack();
}

TEST_F(PrefixReuse, ADocumentIsReadTwiceForFiveQuestions) {
  for (const char* plan : {"full", "two-heads"}) {
    const std::vector<std::string> questions = {"Who lived there?", "When was it?", "Why?", "In which town?",
                                                "Was it?"};
    int64_t num_read = 0;
    int64_t num_prompt = 0;
    for (const std::string& question : questions) {
      Json body = Greedy(Document() + question, 10);
      body["plan"] = plan;
      const Json answer = Ask(body);
      num_read += PromptOf(answer) - CachedOf(answer);
      num_prompt = std::max(num_prompt, PromptOf(answer));
    }
    EXPECT_GT(num_prompt, 300);
    EXPECT_LT(num_read, 2 * num_prompt + 3 * 50) << plan;
  }
  EXPECT_EQ(store().stats().num_hits, 6) << "three of each plan; no plan has another's";
  ExpectAllComesBack();
}

// The second question finds all but the end of it, and leaves a fork where the questions really begin.
TEST_F(PrefixReuse, ALongDocumentIsReadOnceForTwoQuestions) {
  const std::string document = Document(90);
  const Json first = Ask(Greedy(document + "Who lived there?", 8));
  ASSERT_GT(PromptOf(first), 1300);
  EXPECT_EQ(CachedOf(first), 0);
  const Json second = Ask(Greedy(document + "When was it, and why?", 8));
  EXPECT_GE(CachedOf(second), PromptOf(second) - 256 - 512);
  EXPECT_LT(CachedOf(second), PromptOf(second) - 128);
  const Json third = Ask(Greedy(document + "In which town was the house?", 8));
  EXPECT_GE(CachedOf(third), PromptOf(third) - 64);
  ExpectAllComesBack();
}

TEST_F(PrefixReuse, BoundedHeadsGoOnFarBehindTheirWindow) {
  Json body = Greedy(Document(), 40);
  body["plan"] = "two-heads";
  body["ignore_eos"] = true;
  const Json first = Ask(body);
  // The whole text with its answer: of the next prompt only what is new.
  body["prompt"] = Document() + TextOf(first) + " and then they all went home to sleep";
  EXPECT_GT(CachedOf(Ask(body)), PromptOf(first) - 3);
  body["plan"] = "full";
  EXPECT_EQ(CachedOf(Ask(body)), 0);
  ExpectAllComesBack();
}

TEST_F(PrefixReuse, RulesFromTheEndOfAPromptShareWhatIsBeforeIt) {
  HeadRule rule = HeadRule::Stream(4, 32);
  rule.start = RuleStart::kEndOfPrompt;
  rule.compensate = true;
  AddPlan("cut", rule);
  Json body = Greedy(Document(), 12);
  body["plan"] = "cut";
  const Json first = Ask(body);
  EXPECT_EQ(CachedOf(Ask(body)), PromptOf(first) - 2);
  // What was cut is no beginning of a longer prompt; what was read before the cut is.
  body["prompt"] = Document() + TextOf(first) + " and so on";
  EXPECT_EQ(CachedOf(Ask(body)), PromptOf(first) - 2);
  EXPECT_EQ(misses(PrefixMiss::kRules), 0);
  ExpectAllComesBack();
}

TEST_F(PrefixReuse, PlansThatReadAPromptAlikeShareIt) {
  HeadRule rule = HeadRule::Stream(4, 32);
  rule.start = RuleStart::kEndOfPrompt;
  AddPlan("cut", rule);
  rule.recent = 16;
  rule.compensate = true;
  AddPlan("cut-more", rule);
  Json body = Greedy(Document(), 12);
  const Json first = Ask(body);
  for (const char* plan : {"cut", "cut-more"}) {
    body["plan"] = plan;
    EXPECT_EQ(CachedOf(Ask(body)), PromptOf(first) - 2) << plan;
  }
  body["plan"] = "two-heads";
  EXPECT_EQ(CachedOf(Ask(body)), 0) << "reads otherwise";
  // The other way round, and with an answer that was read in full.
  body["plan"] = "cut";
  body["prompt"] = "In short: " + Document();
  EXPECT_EQ(CachedOf(Ask(body)), 0);
  body["plan"] = "full";
  const Json full = Ask(body);
  EXPECT_EQ(CachedOf(full), PromptOf(full) - 2);
  body["plan"] = "cut-more";
  body["prompt"] = "In short: " + Document() + TextOf(full) + " and so on";
  EXPECT_GT(CachedOf(Ask(body)), PromptOf(full));
  // A plan that goes takes what was read under it, and nobody else's.
  ASSERT_FALSE(api_.model().RemovePlan("cut-more"));
  body["plan"] = "cut";
  EXPECT_GT(CachedOf(Ask(body)), PromptOf(full) - 3);
  ExpectAllComesBack();
}

// What they keep depends on the steps that a text is read in.
TEST_F(PrefixReuse, HeadsThatSelectByScoreReuseNothing) {
  HeadRule rule = HeadRule::Stream(0, 64);
  rule.select.kind = TokenSelector::Kind::kH2o;
  AddPlan("h2o", rule);
  Json body = Greedy(Document(), 12);
  body["plan"] = "h2o";
  EXPECT_EQ(CachedOf(Ask(body)), 0);
  EXPECT_EQ(CachedOf(Ask(body)), 0);
  EXPECT_EQ(misses(PrefixMiss::kSelection), 2);
  // Nor does anybody go on from what they read.
  body.erase("plan");
  EXPECT_EQ(CachedOf(Ask(body)), 0);
  ExpectAllComesBack();
}

TEST_F(PrefixReuse, ElasticRulesOfAnotherLengthMiss) {
  HeadRule rule;
  rule.kind = HeadRule::Kind::kElasticMoa;
  rule.sink = 4;
  rule.alpha = 16;
  rule.beta = 0.5;
  AddPlan("elastic", rule);
  Json body = Greedy(Document(), 12);
  body["plan"] = "elastic";
  const Json first = Ask(body);
  EXPECT_EQ(CachedOf(Ask(body)), PromptOf(first) - 2);
  body["max_tokens"] = 60;
  EXPECT_EQ(CachedOf(Ask(body)), 0);
  EXPECT_EQ(misses(PrefixMiss::kRules), 1);
  // Now it is kept as this length has it.
  EXPECT_EQ(CachedOf(Ask(body)), PromptOf(first) - 2);
  ExpectAllComesBack();
}

// The penalty is over the text alone: not over what was drawn behind it when it was kept.
TEST_F(PrefixReuse, PenaltiesSeeTheSameText) {
  Json body = Greedy(Document(), 30);
  body["repetition_penalty"] = 1.4;
  body["ignore_eos"] = true;
  const Json first = Ask(body);
  EXPECT_GT(CachedOf(Ask(body)), 0);
  body["prompt"] = Document() + TextOf(first) + ", and the";
  EXPECT_GT(CachedOf(Ask(body)), 0);
  body["frequency_penalty"] = 1;
  body["logprobs"] = 3;
  const Json answer = Ask(body);
  const Json expected = Alone(body);
  const Json& logprobs = answer["choices"][0]["logprobs"]["token_logprobs"];
  ASSERT_EQ(logprobs.size(), 30u);
  for (size_t i = 0; i < logprobs.size(); ++i) {
    EXPECT_NEAR(logprobs[i].get<double>(), expected["choices"][0]["logprobs"]["token_logprobs"][i].get<double>(), 1e-3);
  }
}

TEST_F(PrefixReuse, WhoAsksForNoneLeavesNone) {
  const Json body = Greedy(Document(), 5);
  Alone(body);
  const PrefixStats stats = store().stats();
  EXPECT_EQ(stats.num_entries, 0);
  EXPECT_EQ(stats.query_tokens, 0);
  api_.Complete(body);
  Alone(body);
  EXPECT_EQ(store().stats().num_hits, 0);
  EXPECT_THAT(
      api_.Fail(400, "POST", "/v1/completions", R"({"prompt": "x", "cache_prompt": 3})")["message"].get<std::string>(),
      HasSubstr("cache_prompt"));
}

TEST_F(PrefixReuse, ATextGoesOnWhileItsOwnerIsRunning) {
  Json body = Greedy(Document(), 20000);
  body["ignore_eos"] = true;
  body["stream"] = true;
  const Reply owner = api_.Begin("POST", "/v1/completions", body.dump());
  ASSERT_TRUE(WaitUntil([&] { return store().stats().num_entries == 1; }));
  const Json second = Ask(Greedy(Document(), 10));
  EXPECT_EQ(CachedOf(second), PromptOf(second) - 2);
  EXPECT_TRUE(WaitUntil([&] { return api_.model().service().stats().num_running == 1; })) << "the owner";
  owner->Leave();
  // His own text is not kept with half an answer, but what he read is.
  EXPECT_TRUE(WaitUntil([&] { return api_.model().service().stats().num_running == 0; }));
  const Json third = Ask(Greedy(Document(), 10));
  EXPECT_EQ(CachedOf(third), PromptOf(third) - 2);
  ExpectAllComesBack();
}

// All logits but a few, of requests that read a prompt of their own and that go on from each other's.
TEST(PrefixReuseBits, BatchInvariantHitsShowNowhere) {
  if (IsTestDevice("cuda")) GTEST_SKIP() << "cuda is not batch-invariant";
  EngineOptions options = ExactOptions(SourcePath("tests/golden/tiny/llama-gqa"), {"cpu"});
  options.batch_invariant = true;
  options.kv_dtype = "q8,f16";
  options.chunk_tokens = 48;
  const auto service = *Service::Create(MustCreate(options));
  const auto store = std::make_shared<PrefixStore>(kRoom);
  service->UsePrefixCache(store);
  HeadRule compensated = HeadRule::Stream(4, 40);
  compensated.compensate = true;
  HeadPlan plan = HeadPlan::Dense(service->engine().shape());
  for (size_t i = 1; i < plan.rules.size(); i += 2) plan.rules[i] = compensated;
  const auto shared_plan = std::make_shared<const HeadPlan>(std::move(plan));
  const std::vector<int32_t> document = IdsOf(1, 330);
  for (uint64_t question = 2; question <= 6; ++question) {
    Request request = RequestOf(document, 20);
    const std::vector<int32_t> ids = IdsOf(question, 7 * question);
    request.prompt.insert(request.prompt.end(), ids.begin(), ids.end());
    request.plan = shared_plan;
    request.logprobs = kMaxLogprobs;
    const auto alone = service->Run(request);
    request.reuse_prefix = true;
    const auto reusing = service->Run(request);
    ASSERT_TRUE(alone.ok() && reusing.ok());
    EXPECT_EQ(alone->metrics.reused_tokens, 0);
    // The second leaves a fork where the questions begin.
    EXPECT_EQ(reusing->metrics.reused_tokens > 0, question > 3);
    ASSERT_EQ(reusing->tokens, alone->tokens);
    for (size_t i = 0; i < alone->logprobs.size(); ++i) {
      for (size_t rank = 0; rank < alone->logprobs[i].top.size(); ++rank) {
        ASSERT_EQ(reusing->logprobs[i].top[rank].id, alone->logprobs[i].top[rank].id);
        ASSERT_EQ(reusing->logprobs[i].top[rank].logprob, alone->logprobs[i].top[rank].logprob);
      }
    }
  }
}

// However far the first has come when the others come in: they wait for it, or find what it has left.
TEST_F(PrefixReuse, ClientsWhoComeAtOnceReadOnce) {
  const std::string body = Greedy(Document(90), 6).dump();
  Json many = Greedy(Document(90), 6);
  many["n"] = 2;
  std::vector<Reply> replies;
  for (int i = 0; i < 3; ++i) replies.push_back(api_.Begin("POST", "/v1/completions", body));
  replies.push_back(api_.Begin("POST", "/v1/completions", many.dump()));
  int64_t num_read = 0;
  int64_t num_prompt = 0;
  for (const Reply& reply : replies) {
    reply->Await();
    ASSERT_EQ(reply->status(), 200) << reply->Text();
    num_prompt = PromptOf(reply->Object());
    num_read += num_prompt - CachedOf(reply->Object());
    EXPECT_EQ(TextOf(reply->Object()), TextOf(replies.front()->Object()));
  }
  EXPECT_GT(num_prompt, 1300);
  EXPECT_LE(num_read, num_prompt + 3 * 2);
  EXPECT_EQ(store().stats().num_waits, store().stats().num_wait_hits);
  ExpectAllComesBack();
}

TEST_F(PrefixReuse, IsInTheMetrics) {
  const Json body = Greedy(Document(), 5);
  api_.Complete(body);
  const Json again = api_.Complete(body);
  const std::string text = api_.Ask("GET", "/metrics")->Text();
  const std::string label = std::string("{model_name=\"") + kModel + "\"";
  const auto line = [&](const std::string& name, int64_t value) {
    return "headwise:prefix_cache_" + name + label + "} " + std::to_string(value) + "\n";
  };
  EXPECT_THAT(text, HasSubstr(line("queries_total", 2 * PromptOf(again))));
  EXPECT_THAT(text, HasSubstr(line("hits_total", CachedOf(again))));
  EXPECT_THAT(text, HasSubstr(line("wait_requests_total", 0)));
  EXPECT_THAT(text, HasSubstr(line("wait_hit_requests_total", 0)));
  EXPECT_THAT(text, HasSubstr(line("entries", store().stats().num_entries)));
  EXPECT_THAT(text, HasSubstr(line("bytes", store().stats().bytes)));
  EXPECT_THAT(text, HasSubstr("prefix_cache_miss_requests_total" + label + ",reason=\"unknown\"} 1\n"));
  EXPECT_GT(store().stats().bytes, 0);
}

TEST_F(PrefixReuse, BytesByClassOfHeadsAreInTheMetrics) {
  const auto bytes_of = [&](const std::string& head_class) {
    const std::string text = api_.Ask("GET", "/metrics")->Text();
    const std::string name = "headwise:kv_cache_bytes{model_name=\"headwise-17m\",head_class=\"" + head_class + "\"} ";
    const size_t begin = text.find(name);
    EXPECT_NE(begin, std::string::npos) << text;
    return std::stoll(text.substr(begin + name.size()));
  };
  Json body = Greedy(Document(), 5);
  const Json full = api_.Complete(body);
  EXPECT_TRUE(WaitUntil([&] { return bytes_of("full") > 0; })) << "what is kept";
  EXPECT_EQ(bytes_of("bounded"), 0);
  body["plan"] = "two-heads";
  api_.Complete(body);
  EXPECT_TRUE(WaitUntil([&] { return bytes_of("bounded") > 0; }));
  EXPECT_TRUE(WaitUntil([&] {
    const ServiceStats stats = api_.model().service().stats();
    return bytes_of("full") + bytes_of("bounded") == stats.kv_bytes;
  }));
  ExpectAllComesBack();
  EXPECT_EQ(bytes_of("full") + bytes_of("bounded"), 0);
}

class SmallPrefixCache : public PrefixReuse {
 protected:
  SmallPrefixCache() : PrefixReuse(0, 12 << 20) {}
};

TEST_F(SmallPrefixCache, StaysWithinItsBudget) {
  for (int i = 0; i < 6; ++i) {
    Ask(Greedy(std::to_string(i) + ". " + Document(12), 4));
    EXPECT_LE(store().stats().bytes, 12 << 20);
  }
  EXPECT_GT(store().stats().num_evicted, 0);
  EXPECT_GT(store().stats().num_entries, 0);
  const Json last = Ask(Greedy("5. " + Document(12), 4));
  EXPECT_GT(CachedOf(last), 0) << "the newest is there";
  ExpectAllComesBack();
}

// Every request takes more than half of the limit.
class TightPrefixCache : public PrefixReuse {
 protected:
  static constexpr int64_t kLimit = 10 << 20;
  TightPrefixCache() : PrefixReuse(kLimit, kLimit) {}
};

TEST_F(TightPrefixCache, GivesWayToRequests) {
  for (int i = 0; i < 4; ++i) {
    // Not even beside what one of them leaves.
    Ask(Greedy(std::to_string(i) + ". " + Document(12), 60));
  }
  EXPECT_GT(store().stats().num_evicted, 0);
  const Json again = api_.Complete(Greedy("3. " + Document(12), 60));
  EXPECT_EQ(again["choices"].size(), 1u);
  Json many = Greedy(Document(12), 8);
  many["n"] = 4;
  EXPECT_EQ(api_.Complete(many)["choices"].size(), 4u);
  ExpectAllComesBack();
}

TEST_F(TightPrefixCache, GivesWayToThoseThatWait) {
  std::vector<Reply> replies;
  for (int i = 0; i < 12; ++i) {
    const std::string prompt = std::to_string(i % 5) + ". " + Document(4 + i % 8);
    replies.push_back(api_.Begin("POST", "/v1/completions", Greedy(prompt, 30).dump()));
  }
  for (const Reply& reply : replies) {
    reply->Await();
    EXPECT_EQ(reply->status(), 200) << reply->Text();
  }
  ExpectAllComesBack();
}

// Two plans, those that leave and those that forget all that is kept, on two documents.
TEST_F(TightPrefixCache, ManyClientsAtOnce) {
  std::vector<std::string> expected;
  const auto body_of = [](int kind) {
    Json body = Greedy(Document(3 + kind % 2) + std::to_string(kind % 3) + ", they said", 6);
    if (kind % 2 == 1) body["plan"] = "two-heads";
    return body;
  };
  for (int kind = 0; kind < 6; ++kind) expected.push_back(TextOf(Alone(body_of(kind))));
  std::vector<std::thread> clients;
  for (int client = 0; client < 6; ++client) {
    clients.emplace_back([&, client] {
      for (int i = 0; i < 6; ++i) {
        const int kind = (client + i) % 6;
        Json body = body_of(kind);
        body["stream"] = i == 3;
        const Reply reply = api_.Begin("POST", "/v1/completions", body.dump());
        if (i == 3) {
          reply->Leave();
          continue;
        }
        reply->Await();
        EXPECT_EQ(reply->status(), 200) << reply->Text();
        EXPECT_EQ(reply->status() == 200 ? TextOf(reply->Object()) : "", expected[static_cast<size_t>(kind)]);
        if (i == 4) store().Clear();
        api_.Ask("GET", "/metrics");
      }
    });
  }
  for (std::thread& client : clients) client.join();
  ExpectAllComesBack();
}

}  // namespace
}  // namespace headwise
