// The other endpoints, and who may ask them.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "support/test_api.h"

namespace headwise {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Endpoints, Models) {
  const Json list = Shared().Must("GET", "/v1/models");
  ASSERT_EQ(list["data"].size(), 1u);
  EXPECT_EQ(list["data"][0]["id"], kModel);
  EXPECT_EQ(list["data"][0]["max_model_len"], 32768);
  EXPECT_EQ(Shared().Must("GET", std::string("/v1/models/") + kModel), list["data"][0]);
  EXPECT_EQ(Shared().Fail(404, "GET", "/v1/models/other")["code"], "model_not_found");
}

TEST(Endpoints, TokensThereAndBack) {
  TestApi& api = Shared();
  const Json with_start = api.Must("POST", "/tokenize", R"({"prompt": "Hello there"})");
  const Json without = api.Must("POST", "/tokenize", R"({"content": "Hello there"})");
  EXPECT_EQ(with_start["tokens"].size(), without["tokens"].size() + 1);
  EXPECT_EQ(with_start["max_model_len"], 32768);
  EXPECT_EQ(with_start["count"], with_start["tokens"].size());
  const Json text = api.Must("POST", "/detokenize", Json({{"tokens", without["tokens"]}}).dump());
  EXPECT_EQ(text["prompt"], "Hello there");
  EXPECT_EQ(text["content"], "Hello there");
  const Json as_text = api.Must("POST", "/tokenize", R"({"content": "<|im_end|>"})");
  const Json as_token = api.Must("POST", "/tokenize", R"({"content": "<|im_end|>", "parse_special": true})");
  EXPECT_GT(as_text["count"], 1);
  EXPECT_EQ(as_token["count"], 1);
  EXPECT_EQ(api.Fail(400, "POST", "/tokenize", "{}")["param"], "prompt");
  EXPECT_EQ(api.Fail(400, "POST", "/detokenize", R"({"tokens": [99999]})")["param"], "tokens");
  EXPECT_EQ(api.Fail(400, "POST", "/detokenize", R"({"tokens": "x"})")["param"], "tokens");
}

TEST(Endpoints, HealthAndMetrics) {
  TestApi api({.api_keys = {"sk-one"}});
  EXPECT_EQ(api.Must("GET", "/health")["status"], "ok") << "open";
  EXPECT_EQ(api.Fail(401, "GET", "/metrics")["code"], "invalid_api_key");
  const std::vector<HttpField> key = {{"authorization", "Bearer sk-one"}};
  EXPECT_EQ(api.Ask("POST", "/v1/completions", Greedy(kStory, 3).dump(), key)->status(), 200);
  // The last step is counted when it is over.
  ASSERT_TRUE(WaitUntil([&] { return api.model().service().stats().num_running == 0; }));
  const std::string text = api.Ask("GET", "/metrics", "", key)->Text();
  for (const char* line :
       {"# TYPE headwise:num_requests_running gauge", "headwise:num_requests_running{model_name=\"headwise-17m\"} 0",
        "headwise:generation_tokens_total{model_name=\"headwise-17m\"} 3",
        "headwise:request_success_total{model_name=\"headwise-17m\",finished_reason=\"length\"} 1",
        "headwise:time_to_first_token_seconds_count{model_name=\"headwise-17m\"} 1",
        "headwise:time_per_output_token_seconds_bucket{model_name=\"headwise-17m\",le=\"+Inf\"} 1",
        "headwise:e2e_request_latency_seconds_count{model_name=\"headwise-17m\"} 1",
        "headwise:kv_cache_bytes{model_name=\"headwise-17m\",head_class=\"full\"} 0",
        "headwise:kv_cache_bytes{model_name=\"headwise-17m\",head_class=\"bounded\"} 0", "headwise:kv_limit_bytes{",
        "# TYPE headwise:num_preemptions_total counter\nheadwise:num_preemptions_total{model_name=\"headwise-17m\"} 0",
        "headwise:kv_host_bytes{"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(Endpoints, RefuseOtherOriginsAndUnknownPaths) {
  TestApi& api = Shared();
  const std::vector<HttpField> evil = {{"origin", "https://evil.example"}, {"host", "127.0.0.1:80"}};
  EXPECT_EQ(api.Ask("POST", "/v1/completions", Greedy("x", 1).dump(), evil)->status(), 403);
  EXPECT_EQ(api.Ask("OPTIONS", "/v1/completions", "", evil)->status(), 403);
  EXPECT_EQ(api.Fail(404, "GET", "/v2/models")["code"], "unknown_url");
  const Reply wrong = api.Ask("GET", "/v1/completions");
  EXPECT_EQ(wrong->status(), 405);
  EXPECT_EQ(wrong->Field("Allow"), "POST, OPTIONS");
  TestApi open({.allow_origins = {"*"}});
  const Reply preflight = open.Ask("OPTIONS", "/v1/completions", "", evil);
  EXPECT_EQ(preflight->status(), 204);
  EXPECT_EQ(preflight->Field("Access-Control-Allow-Origin"), "https://evil.example");
}

TEST(Plans, ComeAndGo) {
  TestApi api;
  const std::string plan = *ReadFile(SourcePath("models/headwise-17m-two-heads.json"));
  const std::string body = fmt::format(R"({{"name": "mine", "plan": {}}})", plan);
  const Json added = api.Must("POST", "/v1/plans", body);
  EXPECT_EQ(added["id"], "mine");
  EXPECT_EQ(added["full_heads"], 2);
  EXPECT_EQ(added["bounded_heads"], 30);
  EXPECT_LT(added["at_max_context"]["kv_bytes"], added["at_max_context"]["kv_bytes_full"]);
  EXPECT_EQ(api.Fail(409, "POST", "/v1/plans", body)["code"], "plan_exists");
  const Json list = api.Must("GET", "/v1/plans")["data"];
  ASSERT_EQ(list.size(), 3u);
  EXPECT_EQ(list[0]["id"], "full");
  EXPECT_TRUE(list[0]["is_default"]);
  EXPECT_EQ(list[0]["bounded_heads"], 0);

  // One in use goes on.
  Json long_answer = Greedy(kStory, 400);
  long_answer["plan"] = "mine";
  long_answer["ignore_eos"] = true;
  const Reply running = api.Begin("POST", "/v1/completions", long_answer.dump());
  EXPECT_TRUE(api.Must("DELETE", "/v1/plans/mine")["deleted"]);
  running->Await();
  EXPECT_EQ(running->status(), 200);
  EXPECT_EQ(running->Object()["usage"]["headwise"]["plan"], "mine");
  EXPECT_EQ(api.Fail(404, "POST", "/v1/completions", long_answer.dump())["param"], "plan");
  EXPECT_EQ(api.Fail(404, "DELETE", "/v1/plans/mine")["code"], "plan_not_found");
  EXPECT_THAT(api.Fail(400, "DELETE", "/v1/plans/full")["message"].get<std::string>(), HasSubstr("always there"));
}

TEST(Plans, BadOnesAreRefused) {
  TestApi api({.is_loopback = true, .plan_dir = SourcePath("models")});
  const auto error = [&](const std::string& body) {
    return api.Fail(400, "POST", "/v1/plans", body)["message"].get<std::string>();
  };
  EXPECT_THAT(error("{}"), HasSubstr("name: is missing"));
  EXPECT_THAT(error(R"({"name": "x"})"), HasSubstr("expected one of plan and path"));
  EXPECT_THAT(error(R"({"name": "x", "plan": {}})"), HasSubstr("plan"));
  EXPECT_THAT(error(R"({"name": "a/b", "path": "headwise-17m-full.json"})"), HasSubstr("expected 1 to 64"));
  EXPECT_THAT(error(R"({"name": "x", "path": "../CMakeLists.txt"})"), HasSubstr("no file in --plan-dir"));
  EXPECT_THAT(error(R"({"name": "x", "path": "/etc/passwd"})"),
              AllOf(HasSubstr("no file in --plan-dir"), Not(HasSubstr("root:"))));
  EXPECT_THAT(error(R"({"name": "x", "path": "headwise-17m/config.json"})"), HasSubstr("headwise_plan"));
  EXPECT_EQ(api.Must("POST", "/v1/plans", R"({"name": "x", "path": "headwise-17m-two-heads.json"})")["id"], "x");
}

TEST(Plans, AreFixedWhereEverybodyIsNear) {
  TestApi open({.is_loopback = false});
  EXPECT_EQ(open.Fail(403, "DELETE", "/v1/plans/two-heads")["code"], "plans_are_fixed");
  EXPECT_EQ(open.Fail(403, "POST", "/v1/plans", "{}")["code"], "plans_are_fixed");
  TestApi closed({.api_keys = {"k"}, .is_loopback = false});
  EXPECT_EQ(closed.Ask("DELETE", "/v1/plans/two-heads", "", {{"authorization", "Bearer k"}})->status(), 200);
  TestApi near;
  EXPECT_EQ(near.Fail(403, "POST", "/v1/plans", R"({"name": "x", "path": "y"})")["code"], "plan_files_are_closed");
}

TEST(Plans, GoToTheModelsThatTheyFit) {
  ModelHost host;
  ASSERT_TRUE(host.Add(MustServe("tiny", "tests/golden/tiny/llama-gqa")).ok());
  ASSERT_TRUE(host.Add(MustServe(kModel, "models/headwise-17m")).ok());
  EXPECT_THAT(host.Add(MustServe("tiny", "tests/golden/tiny/llama-gqa")).message(), HasSubstr("two models are called"));
  ApiServer server(host, {});
  const auto ask = [&](const char* method, const char* path, const std::string& body) {
    auto reply = std::make_shared<FakeReply>();
    server.Handle(RequestTo(method, path, body), reply);
    reply->Await();
    return reply;
  };
  const std::string plan = *ReadFile(SourcePath("models/headwise-17m-two-heads.json"));
  const Reply wrong = ask("POST", "/v1/plans", fmt::format(R"({{"name": "x", "model": "tiny", "plan": {}}})", plan));
  EXPECT_EQ(wrong->status(), 400);
  const Reply added = ask("POST", "/v1/plans", fmt::format(R"({{"name": "x", "plan": {}}})", plan));
  EXPECT_EQ(added->Object()["model"], kModel);
  host.models()[1]->SetDefaultPlan("x");
  const auto plan_of = [&](const char* model) {
    const Json body = {{"model", model}, {"prompt", {1, 2, 3}}, {"max_tokens", 1}};
    return ask("POST", "/v1/completions", body.dump())->Object()["usage"]["headwise"]["plan"].get<std::string>();
  };
  EXPECT_EQ(plan_of(kModel), "x");
  EXPECT_EQ(plan_of("tiny"), "full");
  EXPECT_EQ(ask("DELETE", "/v1/plans/x", "")->status(), 200);
  EXPECT_EQ(plan_of(kModel), "full") << "nobody asks for one that is gone";
  server.Shutdown();
}

}  // namespace
}  // namespace headwise
