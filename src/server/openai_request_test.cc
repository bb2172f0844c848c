#include "server/openai_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <limits>

namespace headwise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A completion with more fields: R"("n": 2)".
std::string Completion(const std::string& more) {
  return fmt::format(R"({{"prompt": "Hi"{}{}}})", more.empty() ? "" : ", ", more);
}
std::string Chat(const std::string& more) {
  return fmt::format(R"({{"messages": [{{"role": "user", "content": "Hi"}}]{}{}}})", more.empty() ? "" : ", ", more);
}

ApiRequest Must(ApiResult<ApiRequest> request) {
  EXPECT_TRUE(request.ok()) << request.status().message;
  return request.ok() ? *std::move(request) : ApiRequest();
}

TEST(OpenAiRequest, HasOpenAisDefaults) {
  const ApiRequest request = Must(ParseCompletionRequest(Completion("")));
  EXPECT_EQ(request.kind, ApiKind::kCompletion);
  ASSERT_EQ(request.prompts.size(), 1u);
  EXPECT_EQ(std::get<std::string>(request.prompts[0]), "Hi");
  EXPECT_EQ(request.sampling.temperature, 1);
  EXPECT_EQ(request.sampling.top_p, 1);
  EXPECT_EQ(request.sampling.top_k, 0);
  EXPECT_EQ(request.n, 1);
  EXPECT_FALSE(request.max_tokens || request.seed || request.logprobs || request.stream || request.echo);
}

TEST(OpenAiRequest, ReadsEveryField) {
  const ApiRequest request = Must(ParseCompletionRequest(R"({
    "model": "m", "plan": "p", "prompt": [[1, 2], [3]], "stream": true, "stream_options": {"include_usage": true},
    "n": 3, "best_of": 3, "suffix": null, "stop": ["a", "b"], "seed": 7, "max_tokens": 9, "temperature": 0.5,
    "top_p": 0.25, "presence_penalty": 1, "frequency_penalty": -1, "logit_bias": {"5": -100, "7": 2.5}, "logprobs": 4,
    "echo": true, "user": "u", "priority": -3, "metadata": {}, "store": false, "service_tier": "auto", "top_k": 40,
    "min_p": 0.1, "repetition_penalty": 1.5, "ignore_eos": true, "stop_token_ids": [11], "response_format": {"type": "text"}})"));
  EXPECT_EQ(request.model, "m");
  EXPECT_EQ(request.plan, "p");
  ASSERT_EQ(request.prompts.size(), 2u);
  EXPECT_THAT(std::get<std::vector<int32_t>>(request.prompts[0]), ElementsAre(1, 2));
  EXPECT_TRUE(request.stream && request.include_usage && request.echo && request.ignore_eos);
  EXPECT_EQ(request.n, 3);
  EXPECT_THAT(request.stop, ElementsAre("a", "b"));
  EXPECT_THAT(request.stop_token_ids, ElementsAre(11));
  EXPECT_EQ(request.seed, 7u);
  EXPECT_EQ(request.max_tokens, 9);
  EXPECT_EQ(request.logprobs, 4);
  EXPECT_EQ(request.priority, -3);
  EXPECT_EQ(request.client, "u");
  EXPECT_EQ(request.sampling.temperature, 0.5f);
  EXPECT_EQ(request.sampling.top_p, 0.25f);
  EXPECT_EQ(request.sampling.top_k, 40);
  EXPECT_EQ(request.sampling.min_p, 0.1f);
  EXPECT_EQ(request.sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(request.sampling.presence_penalty, 1);
  EXPECT_EQ(request.sampling.frequency_penalty, -1);
  ASSERT_EQ(request.sampling.logit_bias.size(), 2u);
  EXPECT_EQ(request.sampling.logit_bias[1].id, 7);
  EXPECT_EQ(request.sampling.logit_bias[1].bias, 2.5f);
}

TEST(OpenAiRequest, TakesTheOtherFormsOfFields) {
  EXPECT_EQ(Must(ParseCompletionRequest(R"({"prompt": ["a", "b"]})")).prompts.size(), 2u);
  EXPECT_EQ(Must(ParseCompletionRequest(R"({"prompt": [1, 2]})")).prompts.size(), 1u);
  EXPECT_THAT(Must(ParseCompletionRequest(Completion(R"("stop": "x")"))).stop, ElementsAre("x"));
  EXPECT_EQ(Must(ParseCompletionRequest(Completion(R"("max_tokens": 16.0)"))).max_tokens, 16);
  EXPECT_EQ(Must(ParseCompletionRequest(Completion(R"("top_k": -1)"))).sampling.top_k, 0);
  EXPECT_GT(Must(ParseCompletionRequest(Completion(R"("top_p": 0)"))).sampling.top_p, 0);
  EXPECT_EQ(Must(ParseCompletionRequest(Completion(R"("seed": 18446744073709551615)"))).seed,
            std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(Must(ParseCompletionRequest(Completion(R"("seed": -1)"))).seed, std::numeric_limits<uint64_t>::max());
  EXPECT_FALSE(Must(ParseCompletionRequest(Completion(R"("logprobs": false)"))).logprobs);
  EXPECT_EQ(Must(ParseChatRequest(Chat(R"("logprobs": true)"))).logprobs, 0);
  EXPECT_EQ(Must(ParseChatRequest(Chat(R"("logprobs": true, "top_logprobs": 5)"))).logprobs, 5);
  EXPECT_EQ(Must(ParseChatRequest(Chat(R"("max_completion_tokens": 3)"))).max_tokens, 3);
  EXPECT_TRUE(ParseChatRequest(Chat(R"("tools": [{}], "tool_choice": "none")")).ok());
}

TEST(OpenAiRequest, ReadsConversations) {
  const ApiRequest request = Must(ParseChatRequest(R"({"messages": [
      {"role": "system", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief"}]},
      {"role": "assistant", "content": null, "refusal": null, "tool_calls": [{"z": 1, "a": 2}]},
      {"role": "assistant", "content": "Yes", "refusal": null, "tool_calls": null},
      {"role": "tool", "content": "4", "tool_call_id": "x"},
      {"role": "user", "content": "Hi"}], "chat_template_kwargs": {"b": 1, "a": 2}})"));
  const auto& messages = request.conversation.messages;
  ASSERT_EQ(messages.size(), 5u);
  EXPECT_EQ(messages[0].content, "Be\nbrief");
  EXPECT_EQ(messages[0].json, "");
  EXPECT_THAT(messages[1].json, HasSubstr(R"({"z":1,"a":2})")) << "in the client's order";
  EXPECT_EQ(messages[2].json, "") << "fields that say nothing are none";
  EXPECT_THAT(messages[3].json, HasSubstr("tool_call_id"));
  EXPECT_EQ(request.conversation.variables, R"({"b":1,"a":2})");
}

struct BadCase {
  bool is_chat;
  std::string body;
  std::string param;
  std::string message;
};

TEST(OpenAiRequest, SaysWhatIsWrong) {
  const BadCase cases[] = {
      {false, "", "", "body: is empty"},
      {false, "[]", "", "body: found a JSON array, expected an object"},
      {false, "{", "", "not valid JSON"},
      {false, R"({"prompt": "a", "prompt": "b"})", "", "stands there twice"},
      {false, R"({"prompt": "a", "temperature": NaN})", "", "not valid JSON"},
      {false, R"({"prompt": "a", "temperature": 1e999})", "", "not valid JSON"},
      {false, "{\"prompt\": \"\xff\"}", "", "not valid JSON"},
      {false, std::string(1000, '['), "", "nests deeper"},
      {false, R"({"prompt": [)" + std::string(5'000'000, ',') + "]}", "", "more than 4194304 values"},
      {false, "{}", "prompt", "prompt: is missing"},
      {false, R"({"prompt": 5})", "prompt", "prompt: is 5, expected a text"},
      {false, R"({"prompt": []})", "prompt", "prompt: is []"},
      {false, R"({"prompt": [1, -2]})", "prompt", "expected token ids alone"},
      {false, R"({"prompt": ["a", 5]})", "prompt", "prompt: item 1 is 5"},
      {false, R"({"prompt": [[1], [1.5]]})", "prompt", "prompt: item 1"},
      {false, Completion(R"("temperature": "hot")"), "temperature",
       R"(temperature: is "hot", expected a number from 0 to 2)"},
      {false, Completion(R"("temperature": 3)"), "temperature", "temperature: is 3, expected a number from 0 to 2"},
      {false, Completion(R"("top_p": 1.5)"), "top_p", "expected a number from 0 to 1"},
      {false, Completion(R"("min_p": -1)"), "min_p", "expected a number from 0 to 1"},
      {false, Completion(R"("presence_penalty": 2.5)"), "presence_penalty", "from -2 to 2"},
      {false, Completion(R"("frequency_penalty": [])"), "frequency_penalty", "from -2 to 2"},
      {false, Completion(R"("repetition_penalty": 0)"), "repetition_penalty", "above 0"},
      {false, Completion(R"("top_k": 1.5)"), "top_k", "expected a whole number"},
      {false, Completion(R"("n": 0)"), "n", "n: is 0, expected a whole number from 1 to 128"},
      {false, Completion(R"("n": true)"), "n", "n: is true"},
      {false, R"({"prompt": ["a","b","c","d","e","f","g","h","i"], "n": 128})", "n", "9 prompts of 128 choices"},
      {false, Completion(R"("max_tokens": -1)"), "max_tokens", "max_tokens: is -1"},
      {false, Completion(R"("max_tokens": 1e300)"), "max_tokens", "expected a whole number"},
      {false, Completion(R"("stop": 5)"), "stop", "stop: is 5, expected a text or a list of texts"},
      {false, Completion(R"("stop": ["a", 5])"), "stop", "a list of texts"},
      {false, Completion(R"("stop": "")"), "stop", "one is empty"},
      {false, Completion(R"("stop_token_ids": "x")"), "stop_token_ids", "token ids"},
      {false, Completion(R"("seed": 1.5)"), "seed", "expected a whole number"},
      {false, Completion(R"("stream": 1)"), "stream", "stream: is 1, expected true or false"},
      {false, Completion(R"("stream_options": {})"), "stream_options", "without stream"},
      {false, Completion(R"("stream": true, "stream_options": {"x": 1})"), "stream_options.x",
       "Unrecognized request argument supplied: stream_options.x"},
      {false, Completion(R"("logit_bias": {"a": 1})"), "logit_bias", R"(logit_bias: "a": 1)"},
      {false, Completion(R"("logit_bias": {"05": 1})"), "logit_bias", R"(logit_bias: "05": 1)"},
      {false, Completion(R"("logit_bias": {"5": 101})"), "logit_bias", "from -100 to 100"},
      {false, Completion(R"("logit_bias": [])"), "logit_bias", "expected an object"},
      {false, Completion(R"("logprobs": 257)"), "logprobs", "from 0 to 256"},
      {false, Completion(R"("echo": "yes")"), "echo", "true or false"},
      {false, Completion(R"("best_of": 2)"), "best_of", "not supported yet"},
      {false, Completion(R"("suffix": "end")"), "suffix", "not supported yet"},
      {false, Completion(R"("response_format": {"type": "xml"})"), "response_format.type", "is \"xml\""},
      {false, Completion(R"("tools": [])"), "tools", "Unrecognized"},
      {false, Completion(R"("frobnicate": 1)"), "frobnicate", "Unrecognized request argument supplied: frobnicate"},
      {false, Completion(R"("messages": [])"), "messages", "Unrecognized request argument supplied: messages"},
      {false, Completion(R"("model": 5)"), "model", "model: is 5, expected a string"},
      {true, "{}", "messages", "messages: is missing"},
      {true, R"({"messages": []})", "messages", "messages: is []"},
      {true, R"({"messages": [5]})", "messages", "message 0 is no object"},
      {true, R"({"messages": [{"content": "Hi"}]})", "messages", R"("role" is missing)"},
      {true, R"({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]})", "messages",
       "image_url"},
      {true, Chat(R"("prompt": "x")"), "prompt", "Unrecognized"},
      {true, Chat(R"("logprobs": 5)"), "logprobs", "true or false"},
      {true, Chat(R"("top_logprobs": 5)"), "top_logprobs", "without logprobs"},
      {true, Chat(R"("logprobs": true, "top_logprobs": 21)"), "top_logprobs", "from 0 to 20"},
      {true, Chat(R"("max_tokens": 5, "max_completion_tokens": 6)"), "max_completion_tokens", "one of the two"},
      {true, Chat(R"("tools": [{}])"), "tools[0].type", "expected \"function\""},
      {true, Chat(R"("tool_choice": "required")"), "tool_choice", "without tools"},
      {true, Chat(R"("functions": [{}])"), "functions", "not supported yet"},
      {true, Chat(R"("modalities": ["audio"])"), "modalities", "not supported yet"},
      {true, Chat(R"("reasoning_effort": "high")"), "reasoning_effort", "not supported yet"},
      {true, Chat(R"("continue_final_message": true)"), "continue_final_message", "not supported yet"},
      {true, Chat(R"("chat_template_kwargs": [])"), "chat_template_kwargs", "expected an object"},
      {true, Chat(R"("echo": true)"), "echo", "Unrecognized"},
  };
  for (const BadCase& each : cases) {
    const auto request = each.is_chat ? ParseChatRequest(each.body) : ParseCompletionRequest(each.body);
    const std::string shown = each.body.substr(0, 200);
    ASSERT_FALSE(request.ok()) << shown;
    EXPECT_EQ(request.status().status, 400) << shown;
    EXPECT_EQ(request.status().param, each.param) << shown;
    EXPECT_THAT(request.status().message, HasSubstr(each.message)) << shown;
  }
}

TEST(OpenAiRequest, BoundsTheKeysOfObjects) {
  // Each key of an ordered object is held against all before it.
  std::string many = R"({"messages": [{"role": "user", "content": "Hi")";
  for (int i = 0; i < 20'000; ++i) many += fmt::format(R"(, "k{}": 1)", i);
  const auto request = ParseChatRequest(many + "}]}");
  ASSERT_FALSE(request.ok());
  EXPECT_THAT(request.status().message, HasSubstr("too many keys"));
}

TEST(ApiErrors, HaveOpenAisShape) {
  const HttpResponse response = ErrorResponse(InvalidField("n", "n: is 0, expected more", "too_few"));
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(response.body, R"({"error":{"message":"n: is 0, expected more","type":"invalid_request_error",)"
                           R"("param":"n","code":"too_few"}})");
  EXPECT_EQ(CarrierErrorBody(408, "too slow"),
            R"({"error":{"message":"too slow","type":"invalid_request_error","param":null,"code":null}})");
}

TEST(ApiErrors, FollowFromAStatus) {
  EXPECT_EQ(ToApiError(Status::InvalidInput("x")).status, 400);
  EXPECT_EQ(ToApiError(Status::NotFound("x")).status, 404);
  EXPECT_EQ(ToApiError(Status::Unsupported("x")).status, 400);
  EXPECT_EQ(ToApiError(Status::OutOfMemory("x")).status, 503);
  EXPECT_EQ(ToApiError(Status::Cancelled("x")).status, 503);
  EXPECT_EQ(ToApiError(Status::Io("x")).status, 500);
  EXPECT_EQ(RefusedError(Status::OutOfMemory("x")).status, 400);
  EXPECT_EQ(ErrorType(401), "authentication_error");
  EXPECT_EQ(ErrorType(429), "rate_limit_error");
  EXPECT_EQ(ErrorType(500), "server_error");
}

}  // namespace
}  // namespace headwise
