// The page's files and the heads' arithmetic. How the page behaves in a browser is tests/server/page_test.py.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "base/file.h"
#include "kv/plan_bytes.h"
#include "kv/rule.h"
#include "model/model_config.h"
#include "server/page_files.h"
#include "support/test_api.h"

namespace headwise {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Page, FilesHaveTheirTypesAndAPolicy) {
  const std::map<std::string, std::string> types = {{".html", "text/html; charset=utf-8"},
                                                    {".js", "text/javascript; charset=utf-8"},
                                                    {".css", "text/css; charset=utf-8"},
                                                    {".svg", "image/svg+xml"}};
  ASSERT_GE(PageFiles().size(), 4u);
  for (const PageFile& file : PageFiles()) {
    const std::string name(file.name);
    const Reply reply = Shared().Ask("GET", "/page/" + name);
    EXPECT_EQ(reply->status(), 200);
    EXPECT_EQ(reply->response().content_type, types.at(name.substr(name.rfind('.')))) << name;
    EXPECT_EQ(reply->Text(), *ReadFile(SourcePath("src/server/page/" + name))) << "as it was when this was built";
    const std::string policy = reply->Field("Content-Security-Policy");
    EXPECT_THAT(policy, AllOf(HasSubstr("default-src 'none'"), HasSubstr("script-src 'self';"),
                              HasSubstr("frame-ancestors 'none'"), Not(HasSubstr("unsafe"))));
    EXPECT_EQ(reply->Field("X-Content-Type-Options"), "nosniff");
    EXPECT_EQ(reply->Field("Cache-Control"), "no-cache");
  }
  EXPECT_EQ(Shared().Ask("GET", "/")->Text(), Shared().Ask("GET", "/page/index.html")->Text());
}

TEST(Page, UnknownFilesAreNotThere) {
  EXPECT_EQ(Shared().Fail(404, "GET", "/page/other.js")["code"], "unknown_url");
  EXPECT_EQ(Shared().Fail(404, "GET", "/page/")["code"], "unknown_url");
  EXPECT_EQ(Shared().Fail(404, "GET", "/page/a/main.js")["code"], "unknown_url");
  EXPECT_EQ(Shared().Ask("POST", "/")->status(), 405);
}

// Nothing that a browser would load or run from elsewhere, and no text made into elements.
TEST(Page, FilesNameNoOtherHostAndNoMarkup) {
  for (const PageFile& file : PageFiles()) {
    for (const char* part : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "https://",
                             "@import", "style=\"", "onclick="}) {
      EXPECT_EQ(file.bytes.find(part), std::string_view::npos) << file.name << " has " << part;
    }
  }
}

TEST(Page, NeedsNoKeyAndItsRequestsDo) {
  TestApi api({.api_keys = {"sk-one"}});
  EXPECT_EQ(api.Ask("GET", "/")->status(), 200);
  EXPECT_EQ(api.Ask("GET", "/page/main.js")->status(), 200);
  EXPECT_EQ(api.Fail(401, "GET", "/v1/plans/full/heads")["code"], "invalid_api_key");
  EXPECT_EQ(api.Fail(401, "GET", "/page")["code"], "invalid_api_key");
}

// The tests' caches are f32; what plans are compared by (kv/plan_bytes.h) is f16.
constexpr int64_t kF32OverF16 = 2;

Reply AskHeads(TestApi& api, const std::string& plan, const std::string& query) {
  HttpRequest request = RequestTo("GET", "/v1/plans/" + plan + "/heads");
  request.query = query;
  Reply reply = std::make_shared<FakeReply>();
  api.server().Handle(request, reply);
  reply->Await();
  return reply;
}

int64_t SumOf(const Json& rows) {
  int64_t sum = 0;
  for (const Json& row : rows) {
    for (const Json& value : row) sum += value.get<int64_t>();
  }
  return sum;
}

TEST(Heads, AreWhatThePlanSays) {
  const auto plan = ReadHeadPlan(SourcePath("models/headwise-17m-two-heads.json"));
  ASSERT_TRUE(plan.ok());
  const LayerWindows windows = LayerWindowsOf(Shared().model().engine().config());
  for (const int64_t tokens : {0, 1, 31, 32, 33, 500, 8192}) {
    const Json heads = AskHeads(Shared(), "two-heads", fmt::format("tokens={}", tokens))->Object();
    ASSERT_EQ(heads["kv_bytes"].size(), static_cast<size_t>(plan->shape.num_layers));
    for (int64_t layer_idx = 0; layer_idx < plan->shape.num_layers; ++layer_idx) {
      const size_t row = static_cast<size_t>(layer_idx);
      ASSERT_EQ(heads["kv_bytes"][row].size(), static_cast<size_t>(plan->shape.num_kv_heads));
      for (int64_t kv_head = 0; kv_head < plan->shape.num_kv_heads; ++kv_head) {
        const HeadRule& rule = plan->At(layer_idx, kv_head);
        const size_t column = static_cast<size_t>(kv_head);
        const int64_t window = windows.At(layer_idx);
        EXPECT_EQ(heads["kv_bytes"][row][column], kF32OverF16 * RuleBytesAt(rule, plan->shape, tokens, window));
        const ResolvedRule resolved = ResolveRule(rule, {.prompt_tokens = tokens, .max_tokens = tokens}, window);
        EXPECT_EQ(heads["kept_tokens"][row][column], NumKeptTokens(resolved, tokens));
      }
    }
    const Json& total = heads["total"];
    EXPECT_EQ(total["kv_bytes"], kF32OverF16 * PlanBytesAt(*plan, tokens, windows));
    EXPECT_EQ(total["kv_bytes"], SumOf(heads["kv_bytes"]));
    EXPECT_EQ(total["kept_tokens"], SumOf(heads["kept_tokens"]));
    EXPECT_EQ(total["kv_bytes_all_full"], kF32OverF16 * PlanBytesAt(HeadPlan::Dense(plan->shape), tokens, windows));
    const Json full = AskHeads(Shared(), "full", fmt::format("tokens={}&model={}", tokens, kModel))->Object()["total"];
    EXPECT_EQ(full["kv_bytes"], total["kv_bytes_all_full"]);
    EXPECT_EQ(full["pages_given_back"], 0);
    EXPECT_EQ(total["pages_given_back"].get<int64_t>() + total["pages"].get<int64_t>(), full["pages"]);
  }
}

// Rules that keep by how long the prompt is and the text may become, among them some that fold what they drop.
HeadPlan ElasticPlan(const ModelShape& shape) {
  HeadRule moa{.kind = HeadRule::Kind::kElasticMoa, .sink = 4};
  moa.alpha = 20;
  moa.beta = 0.25;
  HeadRule razor{.kind = HeadRule::Kind::kElasticRazor, .sink = 4};
  razor.min_recent = 40;
  razor.divisor = 5;
  razor.compensate = true;
  razor.start = RuleStart::kEndOfPrompt;
  HeadPlan plan = HeadPlan::Dense(shape);
  for (size_t i = 0; i < plan.rules.size(); ++i) {
    if (i % 3 != 0) plan.rules[i] = i % 3 == 1 ? moa : razor;
  }
  return plan;
}

// What the page shows is what a request of this length took.
TEST(Heads, AreWhatARequestHeld) {
  TestApi api;
  ASSERT_FALSE(api.model().AddPlan("elastic", ElasticPlan(api.model().engine().shape()), "test"));
  for (const char* plan : {"full", "two-heads", "elastic"}) {
    std::string prompt_text = kStory;
    for (int i = 0; i < 20; ++i) prompt_text += kStory;
    Json body = Greedy(prompt_text, 40);
    body["plan"] = plan;
    body["ignore_eos"] = true;
    const Json usage = api.Complete(body)["usage"];
    const int64_t prompt = usage["prompt_tokens"];
    // The last token was drawn and never read.
    const int64_t held = usage["total_tokens"].get<int64_t>() - 1;
    const std::string query = fmt::format("tokens={}&prompt_tokens={}&max_tokens={}", held, prompt, prompt + 40);
    const Json total = AskHeads(api, plan, query)->Object()["total"];
    EXPECT_EQ(total["kv_bytes"], usage["headwise"]["kv_bytes"]) << plan;
    EXPECT_EQ(total["kv_bytes_full"], usage["headwise"]["kv_bytes_full"]) << plan;
    EXPECT_EQ(total["kv_bytes_bounded"], usage["headwise"]["kv_bytes_bounded"]) << plan;
    EXPECT_EQ(total["pages_given_back"] == 0, std::string(plan) == "full") << plan;
  }
}

TEST(Heads, BadQuestionsAreRefused) {
  const auto error = [](const std::string& query) {
    const Reply reply = AskHeads(Shared(), "two-heads", query);
    EXPECT_EQ(reply->status(), 400);
    return reply->Object()["error"]["message"].get<std::string>();
  };
  EXPECT_THAT(error(""), HasSubstr("tokens: is missing"));
  for (const char* tokens : {"", "-1", "1.5", "x", "1x", "99999999999999999999", "2000000000000"}) {
    EXPECT_THAT(error(fmt::format("tokens={}", tokens)), HasSubstr("expected a number from 0"));
  }
  EXPECT_THAT(error("tokens=5&max_tokens=4"), HasSubstr("max_tokens: is 4"));
  EXPECT_THAT(error("tokens=5&other=4"), HasSubstr("other: is unknown"));
  EXPECT_EQ(AskHeads(Shared(), "other", "tokens=5")->Object()["error"]["code"], "plan_not_found");
  EXPECT_EQ(AskHeads(Shared(), "full", "tokens=5&model=x")->Object()["error"]["code"], "model_not_found");
  EXPECT_EQ(Shared().Fail(404, "GET", "/v1/plans/full")["code"], "unknown_url");
  // As long as a text may be.
  EXPECT_EQ(AskHeads(Shared(), "two-heads", "tokens=1099511627776")->status(), 200);
}

}  // namespace
}  // namespace headwise
