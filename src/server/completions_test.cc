// Completions and chats as clients see them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headwise/prompt.h>

#include <span>
#include <string>
#include <thread>
#include <vector>

#include "engine/token_logprobs.h"
#include "support/test_api.h"

namespace headwise {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

RequestResult Expected(const Json& body, std::optional<int64_t> logprobs = std::nullopt) {
  const Engine& engine = Shared().model().engine();
  Request request;
  request.prompt = *EncodePrompt(engine, body["prompt"].get<std::string>());
  request.max_new_tokens = body["max_tokens"];
  request.logprobs = logprobs;
  return *Shared().model().service().Run(request);
}

// The text of one choice of a stream.
std::string TextOf(const std::vector<Json>& events, int64_t index = 0) {
  std::string text;
  for (const Json& event : events) {
    if (!event.is_object()) continue;
    for (const Json& choice : event["choices"]) {
      if (choice["index"] != index) continue;
      text += choice.contains("text") ? choice["text"].get<std::string>() : choice["delta"].value("content", "");
    }
  }
  return text;
}

TEST(Completions, SayWhatTheEngineSays) {
  const Json body = Greedy(kStory, 20);
  const Json answer = Shared().Complete(body);
  const RequestResult expected = Expected(body);
  EXPECT_EQ(answer["object"], "text_completion");
  EXPECT_EQ(answer["model"], kModel);
  EXPECT_THAT(answer["id"].get<std::string>(), ::testing::StartsWith("cmpl-"));
  ASSERT_EQ(answer["choices"].size(), 1u);
  EXPECT_EQ(answer["choices"][0]["text"], expected.text);
  EXPECT_EQ(answer["choices"][0]["finish_reason"], expected.finish == FinishReason::kLength ? "length" : "stop");
  const Json& usage = answer["usage"];
  EXPECT_EQ(usage["prompt_tokens"], expected.metrics.prompt_tokens);
  EXPECT_EQ(usage["completion_tokens"], expected.metrics.new_tokens);
  EXPECT_EQ(usage["headwise"]["plan"], "full");
  EXPECT_EQ(usage["headwise"]["kv_bytes"], expected.metrics.kv_bytes);
  EXPECT_EQ(usage["headwise"]["kv_bytes_bounded"], 0);
}

TEST(Completions, StreamTheSameText) {
  Json body = Greedy(kStory, 24);
  const std::string whole = Shared().Complete(body)["choices"][0]["text"];
  body["stream"] = true;
  const Reply reply = Shared().Ask("POST", "/v1/completions", body.dump());
  EXPECT_THAT(reply->response().content_type, HasSubstr("text/event-stream"));
  const std::vector<Json> events = reply->Events();
  ASSERT_GT(events.size(), 3u);
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(TextOf(events), whole);
  EXPECT_EQ(events[events.size() - 2]["choices"][0]["finish_reason"], "length");
  for (const Json& event : events) EXPECT_FALSE(event.contains("usage"));
}

TEST(Completions, IncludeUsageOnceAndLast) {
  Json body = Greedy(kStory, 5);
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  const std::vector<Json> events = Shared().Ask("POST", "/v1/completions", body.dump())->Events();
  ASSERT_GT(events.size(), 2u);
  const Json& last = events[events.size() - 2];
  EXPECT_TRUE(last["choices"].empty());
  EXPECT_EQ(last["usage"]["completion_tokens"], 5);
  EXPECT_GT(last["usage"]["headwise"]["kv_bytes"], 0);
  for (size_t i = 0; i + 2 < events.size(); ++i) EXPECT_TRUE(events[i]["usage"].is_null());
}

TEST(Completions, EndBeforeStopStringsWithTheirTokens) {
  Json body = Greedy(kStory, 30);
  const std::string whole = Shared().Complete(body)["choices"][0]["text"];
  const size_t cut = whole.size() / 2;
  ASSERT_GT(cut, 4u);
  body["stop"] = whole.substr(cut, 4);
  body["logprobs"] = 0;
  const Json answer = Shared().Complete(body);
  const Json& choice = answer["choices"][0];
  const std::string text = choice["text"];
  EXPECT_EQ(text, whole.substr(0, whole.find(body["stop"])));
  EXPECT_EQ(choice["finish_reason"], "stop");
  const Json& offsets = choice["logprobs"]["text_offset"];
  EXPECT_LT(offsets.back(), text.size());
  body["stream"] = true;
  const std::vector<Json> events = Shared().Ask("POST", "/v1/completions", body.dump())->Events();
  EXPECT_EQ(TextOf(events), text);
  Json streamed = Json::array();
  for (const Json& event : events) {
    if (!event.is_object() || event["choices"][0]["logprobs"].is_null()) continue;
    for (const Json& offset : event["choices"][0]["logprobs"]["text_offset"]) streamed.push_back(offset);
  }
  EXPECT_EQ(streamed, offsets);
}

TEST(Completions, HaveLogprobsOfTheModel) {
  Json body = Greedy(kStory, 6);
  const RequestResult expected = Expected(body, 2);
  body["logprobs"] = 2;
  const Json answer = Shared().Complete(body);
  const Json& logprobs = answer["choices"][0]["logprobs"];
  ASSERT_EQ(logprobs["tokens"].size(), expected.tokens.size());
  std::string text;
  for (size_t i = 0; i < expected.tokens.size(); ++i) {
    EXPECT_FLOAT_EQ(logprobs["token_logprobs"][i], expected.logprobs[i].chosen.logprob);
    EXPECT_EQ(logprobs["top_logprobs"][i].size(), 2u) << "greedy: what was chosen is among the best";
    text += logprobs["tokens"][i];
  }
  EXPECT_EQ(text, expected.text);
}

// Also one that no step reads, because it is the last of a prompt whose log-probabilities are asked for.
TEST(Completions, IdsOutsideTheVocabularyAreRefused) {
  const int64_t vocab_size = Shared().model().engine().config().vocab_size;
  for (const std::vector<int64_t>& ids :
       {std::vector<int64_t>{vocab_size}, {5, 6, vocab_size}, {5, vocab_size, 6}, {vocab_size, 5}, {5, 2147483647}}) {
    for (const bool echo : {false, true}) {
      Json body = {{"prompt", ids}, {"max_tokens", 1}, {"echo", echo}};
      if (echo) body["logprobs"] = 1;
      const Json error = Shared().Fail(400, "POST", "/v1/completions", body.dump());
      EXPECT_EQ(error["param"], "prompt");
      EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("expected 0 to 8191"));
    }
  }
}

// As vLLM: what is ignored is the model's end of text, not the ends that a request names.
TEST(Completions, StopTokensEndATextThatIgnoresTheModels) {
  Json body = Greedy(kStory, 8);
  const std::vector<int32_t> tokens = Expected(body).tokens;
  body["ignore_eos"] = true;
  body["stop_token_ids"] = {tokens.at(3)};
  const Json answer = Shared().Complete(body);
  const auto first = std::ranges::find(tokens, tokens[3]) - tokens.begin();
  EXPECT_EQ(answer["usage"]["completion_tokens"], first);
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
}

// What lm-eval asks for.
TEST(Completions, EchoThePromptsLogprobs) {
  const Engine& engine = Shared().model().engine();
  const std::vector<int32_t> ids = *EncodePrompt(engine, kStory);
  const auto other = MustCreate([] {
    EngineOptions options = ExactOptions(BundledModel(), {"cpu"});
    options.num_threads = 2;
    return options;
  }());
  const ForcedRows rows = MustRunForced(*other, ids);
  const size_t vocab_size = rows.logits.size() / ids.size();
  for (const int max_tokens : {0, 1, 3}) {
    const Json answer = Shared().Complete(
        {{"prompt", {ids, kStory}}, {"max_tokens", max_tokens}, {"temperature", 0}, {"echo", true}, {"logprobs", 1}});
    ASSERT_EQ(answer["choices"].size(), 2u);
    for (const Json& choice : answer["choices"]) {
      const Json& logprobs = choice["logprobs"];
      ASSERT_EQ(logprobs["tokens"].size(), ids.size() + static_cast<size_t>(max_tokens)) << "at " << max_tokens;
      EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
      EXPECT_TRUE(logprobs["top_logprobs"][0].is_null());
      for (size_t i = 1; i < ids.size(); ++i) {
        const TokenLogprobs expected =
            LogprobsOf(std::span(rows.logits).subspan((i - 1) * vocab_size, vocab_size), ids[i], 1);
        EXPECT_NEAR(logprobs["token_logprobs"][i], expected.chosen.logprob, 1e-4) << "at " << i;
      }
      const std::string text = choice["text"];
      EXPECT_EQ(text.substr(0, kStory.size()), kStory);
      EXPECT_EQ(choice["finish_reason"], "length");
    }
    EXPECT_EQ(answer["usage"]["completion_tokens"], 2 * max_tokens);
    EXPECT_EQ(answer["usage"]["prompt_tokens"], 2 * ids.size());
    EXPECT_GT(answer["usage"]["headwise"]["kv_bytes"], 0);
  }
}

TEST(Completions, EchoInAStream) {
  Json body = Greedy(kStory, 4);
  body["echo"] = true;
  body["logprobs"] = 0;
  const std::string whole = Shared().Complete(body)["choices"][0]["text"];
  body["stream"] = true;
  EXPECT_EQ(TextOf(Shared().Ask("POST", "/v1/completions", body.dump())->Events()), whole);
  EXPECT_EQ(whole.substr(0, kStory.size()), kStory);
}

TEST(Completions, ChoicesDrawByThemselves) {
  Json body = {{"prompt", kStory}, {"max_tokens", 12}, {"n", 3}, {"seed", 7}, {"temperature", 1.5}};
  const Json first = Shared().Complete(body);
  ASSERT_EQ(first["choices"].size(), 3u);
  const std::string texts[] = {first["choices"][0]["text"], first["choices"][1]["text"], first["choices"][2]["text"]};
  EXPECT_TRUE(texts[0] != texts[1] && texts[1] != texts[2] && texts[0] != texts[2]);
  EXPECT_EQ(Shared().Complete(body)["choices"], first["choices"]) << "the seed decides";
  body["n"] = 1;
  body["seed"] = 9;
  EXPECT_EQ(Shared().Complete(body)["choices"][0]["text"], texts[2]) << "choice i has seed + i";
}

TEST(Completions, ChoicesOfALongPromptShareIt) {
  std::string prompt;
  for (int i = 0; i < 20; ++i) prompt += kStory + ". ";
  const Json alone = Shared().Complete(Greedy(prompt, 8));
  for (const bool echo : {false, true}) {
    Json body = Greedy(prompt, 8);
    body["n"] = 3;
    body["echo"] = echo;
    if (echo) body["logprobs"] = 1;
    const Json answer = Shared().Complete(body);
    ASSERT_EQ(answer["choices"].size(), 3u);
    for (const Json& choice : answer["choices"]) {
      EXPECT_EQ(choice["text"], (echo ? prompt : "") + alone["choices"][0]["text"].get<std::string>());
    }
    EXPECT_EQ(answer["usage"]["prompt_tokens"], alone["usage"]["prompt_tokens"]) << "read once";
  }
}

TEST(Completions, TakePlansByName) {
  std::string prompt;
  for (int i = 0; i < 30; ++i) prompt += kStory + ". ";
  Json body = Greedy(prompt, 4);
  const Json full = Shared().Complete(body)["usage"]["headwise"];
  body["plan"] = "two-heads";
  const Json bounded = Shared().Complete(body)["usage"]["headwise"];
  EXPECT_EQ(bounded["plan"], "two-heads");
  EXPECT_LT(bounded["kv_bytes"], full["kv_bytes"]);
  EXPECT_GT(bounded["kv_bytes_bounded"], 0);
  body["plan"] = "none";
  const Json error = Shared().Fail(404, "POST", "/v1/completions", body.dump());
  EXPECT_EQ(error["code"], "plan_not_found");
}

TEST(Completions, RefuseWhatDoesNotFit) {
  TestApi& api = Shared();
  Json body = Greedy(kStory, 40000);
  Json error = api.Fail(400, "POST", "/v1/completions", body.dump());
  EXPECT_EQ(error["code"], "context_length_exceeded");
  EXPECT_THAT(error["message"].get<std::string>(), AllOf(HasSubstr("32768"), HasSubstr("40000 for the answer")));
  body = {{"prompt", std::vector<int32_t>(40000, 5)}};
  EXPECT_EQ(api.Fail(400, "POST", "/v1/completions", body.dump())["code"], "context_length_exceeded");
  body = {{"prompt", {1, 99999}}};
  EXPECT_THAT(api.Fail(400, "POST", "/v1/completions", body.dump())["message"].get<std::string>(), HasSubstr("99999"));
  body = {{"prompt", "x"}, {"model", "gpt-4"}};
  error = api.Fail(404, "POST", "/v1/completions", body.dump());
  EXPECT_EQ(error["code"], "model_not_found");
  EXPECT_EQ(error["param"], "model");
  body = {{"prompt", ""}};
  EXPECT_THAT(api.Fail(400, "POST", "/v1/completions", body.dump())["message"].get<std::string>(), HasSubstr("empty"));
  body = Greedy("x", 1);
  body["logit_bias"] = {{"9999999", 1}};
  EXPECT_THAT(api.Fail(400, "POST", "/v1/completions", body.dump())["message"].get<std::string>(),
              HasSubstr("logit_bias"));
}

TEST(Completions, EndWithTheirClient) {
  TestApi api;
  const auto is_idle = [&] {
    const ServiceStats stats = api.model().service().stats();
    return stats.num_running + stats.num_waiting == 0 && stats.kv_bytes == 0;
  };
  Json body = Greedy(kStory, 30000);
  body["ignore_eos"] = true;
  body["n"] = 2;
  // Before the end of a whole answer.
  const Reply whole = api.Begin("POST", "/v1/completions", body.dump());
  ASSERT_TRUE(WaitUntil([&] { return api.model().service().stats().num_running == 2; }));
  whole->Leave();
  EXPECT_TRUE(WaitUntil(is_idle)) << "the KV bytes come back";
  // In the middle of a stream.
  body["stream"] = true;
  const auto stream = std::make_shared<FakeReply>();
  stream->LeaveAfter(5);
  api.Begin("POST", "/v1/completions", body.dump(), {}, stream);
  EXPECT_TRUE(WaitUntil([&] { return api.model().service().stats().num_finished == 4 && is_idle(); }));
  // Before it began.
  const auto gone = std::make_shared<FakeReply>();
  gone->Leave();
  api.Begin("POST", "/v1/completions", body.dump(), {}, gone);
  EXPECT_TRUE(WaitUntil(is_idle));
  EXPECT_LT(api.model().service().stats().num_finished, 100);
}

// Streams, whole answers, choices that share, prompts with rows, clients that leave, plans that come and go.
TEST(Completions, ManyClientsAtOnce) {
  TestApi api;
  const HeadPlan plan = *ReadHeadPlan(SourcePath("models/headwise-17m-two-heads.json"));
  const auto one_client = [&](int client) {
    std::string prompt = kStory;
    for (int i = 0; i < 5; ++i) prompt += ". " + kStory;
    for (int i = 0; i < 6; ++i) {
      const int kind = client + i;
      Json body = Greedy(kind % 3 == 0 ? prompt : kStory, 6 + i);
      body["n"] = 1 + kind % 2;
      body["stream"] = kind % 4 < 2;
      body["echo"] = kind % 5 == 0;
      if (kind % 3 == 1) body["logprobs"] = 2;
      if (kind % 4 == 1) body["plan"] = "two-heads";
      const Reply reply = api.Begin("POST", "/v1/completions", body.dump());
      if (kind % 6 == 5) {
        reply->Leave();
        continue;
      }
      reply->Await();
      EXPECT_EQ(reply->status(), 200) << reply->Text();
      const std::string name = "plan-" + std::to_string(client);
      EXPECT_FALSE(api.model().AddPlan(name, plan, "test"));
      EXPECT_FALSE(api.model().RemovePlan(name));
      api.Ask("GET", "/metrics");
    }
  };
  std::vector<std::thread> clients;
  for (int client = 0; client < 8; ++client) clients.emplace_back(one_client, client);
  for (std::thread& client : clients) client.join();
  EXPECT_TRUE(WaitUntil([&] {
    const ServiceStats stats = api.model().service().stats();
    return stats.num_running + stats.num_waiting == 0 && stats.kv_bytes == 0;
  }));
}

TEST(Completions, AnswersLongerThanTheKvLimitAreCut) {
  TestApi api({}, 4 << 20);
  // Nobody said how long: as long as fits.
  const Json answer = api.Must("POST", "/v1/chat/completions",
                               R"({"messages": [{"role": "user", "content": "Hi"}], "temperature": 0})");
  EXPECT_EQ(answer["choices"].size(), 1u);
  Json body = Greedy(kStory, 30000);
  EXPECT_EQ(api.Fail(400, "POST", "/v1/completions", body.dump())["code"], "kv_limit_exceeded");
  // No room for a sequence to share: each choice waits for its own.
  std::string prompt;
  for (int i = 0; i < 4; ++i) prompt += kStory + ". ";
  body = Greedy(prompt, 60);
  body["n"] = 8;
  body["ignore_eos"] = true;
  const Json many = api.Complete(body);
  for (const Json& choice : many["choices"]) EXPECT_EQ(choice["text"], many["choices"][0]["text"]);
  body["echo"] = true;
  body["logprobs"] = 0;
  EXPECT_EQ(api.Complete(body)["choices"].size(), 8u);
}

// Another job holds sequences that nothing runs on at this moment, as between a prompt and its choices.
TEST(Completions, WaitForWhatOtherJobsHold) {
  TestApi api({}, 4 << 20);
  auto held = api.model().service().NewSequence({.plan = nullptr, .prompt_tokens = 100, .max_tokens = 200});
  ASSERT_TRUE(held.ok()) << held.status().message();
  Json body = Greedy(kStory, 200);
  body["ignore_eos"] = true;
  const Reply waits = api.Begin("POST", "/v1/completions", body.dump());
  // Who needs little comes in when that one has been looked at.
  Request small;
  small.prompt = {1};
  small.max_new_tokens = 1;
  small.sequence = *held;
  EXPECT_TRUE(api.model().service().Run(small).ok());
  small.sequence = nullptr;
  ASSERT_TRUE(WaitUntil([&] { return api.model().service().stats().num_waiting == 1; }));
  *held = nullptr;
  waits->Await();
  EXPECT_EQ(waits->status(), 200) << waits->Text();
}

TEST(Completions, EndWithTheServer) {
  auto api = std::make_unique<TestApi>();
  Json body = Greedy(kStory, 30000);
  body["ignore_eos"] = true;
  const Reply whole = api->Begin("POST", "/v1/completions", body.dump());
  body["stream"] = true;
  const Reply stream = api->Begin("POST", "/v1/completions", body.dump());
  ASSERT_TRUE(WaitUntil([&] { return api->model().service().stats().num_running == 2; }));
  api->server().Shutdown();
  whole->Await();
  EXPECT_EQ(whole->status(), 503);
  stream->Await();
  EXPECT_EQ(stream->Events().back()["error"]["code"], "shutting_down");
  EXPECT_EQ(api->Fail(503, "POST", "/v1/completions", Greedy("x", 1).dump())["code"], "shutting_down");
}

TEST(Chat, AnswersAndStreams) {
  Json body = {{"messages", {{{"role", "developer"}, {"content", "Be brief."}}, {{"role", "user"}, {"content", "Hi"}}}},
               {"max_tokens", 8},
               {"temperature", 0},
               {"logprobs", true},
               {"top_logprobs", 2}};
  const Json answer = Shared().Must("POST", "/v1/chat/completions", body.dump());
  EXPECT_EQ(answer["object"], "chat.completion");
  const Json& choice = answer["choices"][0];
  EXPECT_EQ(choice["message"]["role"], "assistant");
  std::string text;
  for (const Json& token : choice["logprobs"]["content"]) {
    text += token["token"];
    EXPECT_EQ(token["top_logprobs"].size(), 2u);
    EXPECT_EQ(token["bytes"].size(), token["token"].get<std::string>().size());
  }
  EXPECT_EQ(text, choice["message"]["content"]);
  // The prompt is what the chat format says.
  const Json tokens = Shared().Must("POST", "/tokenize", Json({{"messages", body["messages"]}}).dump());
  EXPECT_EQ(tokens["count"], answer["usage"]["prompt_tokens"]);

  body["stream"] = true;
  const std::vector<Json> events = Shared().Ask("POST", "/v1/chat/completions", body.dump())->Events();
  EXPECT_EQ(events[0]["object"], "chat.completion.chunk");
  EXPECT_EQ(events[0]["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(TextOf(events), choice["message"]["content"]);
}

TEST(Chat, ModelsWithoutAFormatSaySo) {
  ModelHost host;
  ASSERT_TRUE(host.Add(MustServe("tiny", "tests/golden/tiny/llama-gqa")).ok());
  ApiServer server(host, {});
  const auto ask = [&](const char* path, const std::string& body) {
    auto reply = std::make_shared<FakeReply>();
    server.Handle(RequestTo("POST", path, body), reply);
    reply->Await();
    return reply;
  };
  const Reply chat = ask("/v1/chat/completions", R"({"messages": [{"role": "user", "content": "Hi"}]})");
  EXPECT_EQ(chat->status(), 400);
  EXPECT_THAT(chat->Text(), HasSubstr("no chat format"));
  // On ids it runs.
  EXPECT_EQ(ask("/v1/completions", R"({"prompt": [1, 2, 3], "max_tokens": 3})")->status(), 200);
  EXPECT_EQ(ask("/v1/completions", R"({"prompt": "Hi"})")->status(), 400);
  EXPECT_EQ(ask("/tokenize", R"({"prompt": "Hi"})")->status(), 400);
  server.Shutdown();
}

}  // namespace
}  // namespace headwise
