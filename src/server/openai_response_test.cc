#include "server/openai_response.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "support/golden.h"

namespace headwise {
namespace {

const Tokenizer& BundledTokenizer() {
  static const std::unique_ptr<Tokenizer> tokenizer = *OpenTokenizer(BundledModel());
  return *tokenizer;
}

int32_t IdOf(std::string_view text) {
  return BundledTokenizer().Encode(text)->at(0);
}

const ResponseHead kCompletionHead = {
    .kind = ApiKind::kCompletion, .id = "cmpl-1", .created = 5, .model = "m", .fingerprint = "f"};
const ResponseHead kChatHead = {
    .kind = ApiKind::kChat, .id = "chatcmpl-1", .created = 5, .model = "m", .fingerprint = "f"};
const Usage kUsage = {.prompt_tokens = 3,
                      .completion_tokens = 2,
                      .plan = "full",
                      .kv_bytes = 30,
                      .kv_bytes_full = 20,
                      .kv_bytes_bounded = 10,
                      .kv_peak_bytes = 40};

TEST(OpenAiResponse, WholeCompletion) {
  ApiJson choices = ApiJson::array();
  choices.push_back(ChoiceJson(ApiKind::kCompletion, 0, "a \xff", nullptr, FinishReason::kLength));
  EXPECT_EQ(ToText(ResponseJson(kCompletionHead, choices, kUsage)),
            R"({"id":"cmpl-1","object":"text_completion","created":5,"model":"m","system_fingerprint":"f",)"
            R"("choices":[{"index":0,"text":"a )"
            "\xEF\xBF\xBD"
            R"(","logprobs":null,"finish_reason":"length"}],)"
            R"("usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5,)"
            R"("prompt_tokens_details":{"cached_tokens":0},"headwise":{"plan":"full",)"
            R"("kv_bytes":30,"kv_bytes_full":20,"kv_bytes_bounded":10,"kv_peak_bytes":40}}})");
}

TEST(OpenAiResponse, WholeChat) {
  ApiJson choices = ApiJson::array();
  choices.push_back(ChoiceJson(ApiKind::kChat, 1, "Hi", nullptr, FinishReason::kStopString));
  EXPECT_EQ(ToText(ResponseJson(kChatHead, choices, kUsage)["choices"]),
            R"([{"index":1,"message":{"role":"assistant","content":"Hi","refusal":null},)"
            R"("logprobs":null,"finish_reason":"stop"}])");
  EXPECT_EQ(ResponseJson(kChatHead, choices, kUsage)["object"], "chat.completion");
}

TEST(OpenAiResponse, Chunks) {
  const std::string head = R"({"id":"chatcmpl-1","object":"chat.completion.chunk","created":5,"model":"m",)"
                           R"("system_fingerprint":"f","choices":[)";
  EXPECT_EQ(EventText(ChunkJson(kChatHead, 0, Piece::kFirst, "", nullptr, std::nullopt)),
            "data: " + head +
                R"({"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]})"
                "\n\n");
  EXPECT_EQ(ToText(ChunkJson(kChatHead, 0, Piece::kText, "Hi", nullptr, std::nullopt)),
            head + R"({"index":0,"delta":{"content":"Hi"},"logprobs":null,"finish_reason":null}]})");
  EXPECT_EQ(ToText(ChunkJson(kChatHead, 0, Piece::kLast, "", nullptr, FinishReason::kEos)),
            head + R"({"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]})");
  EXPECT_EQ(ToText(ChunkJson(kCompletionHead, 2, Piece::kText, "Hi", nullptr, std::nullopt)["choices"]),
            R"([{"index":2,"text":"Hi","logprobs":null,"finish_reason":null}])");
  const ApiJson usage = UsageChunkJson(kChatHead, kUsage);
  EXPECT_TRUE(usage["choices"].empty());
  EXPECT_EQ(usage["usage"]["total_tokens"], 5);
}

TEST(OpenAiResponse, LogprobsOfCompletions) {
  const int32_t the = IdOf("the");
  const int32_t at = IdOf("at");
  const std::vector<LoggedToken> tokens = {
      {.id = the, .logprob = std::nullopt, .top = {}, .text_offset = 0},
      {.id = at, .logprob = -1.5f, .top = {{.id = the, .logprob = -0.5f}}, .text_offset = 3}};
  EXPECT_EQ(ToText(LogprobsJson(ApiKind::kCompletion, tokens, BundledTokenizer())),
            R"({"tokens":["the","at"],"token_logprobs":[null,-1.5],)"
            R"("top_logprobs":[null,{"the":-0.5,"at":-1.5}],"text_offset":[0,3]})");
}

TEST(OpenAiResponse, LogprobsOfChats) {
  const int32_t at = IdOf("at");
  const std::vector<LoggedToken> tokens = {{.id = at, .logprob = -1.5f, .top = {{.id = at, .logprob = -1.5f}}}};
  EXPECT_EQ(ToText(LogprobsJson(ApiKind::kChat, tokens, BundledTokenizer())),
            R"({"content":[{"token":"at","logprob":-1.5,"bytes":[97,116],"top_logprobs":[)"
            R"({"token":"at","logprob":-1.5,"bytes":[97,116]}]}],"refusal":null})");
}

TEST(OpenAiResponse, TokensThatAreNoCharacterAreNamedByTheirBytes) {
  const auto ids = BundledTokenizer().Encode("\xF0\x9F\x98\x80");
  ASSERT_TRUE(ids.ok());
  ASSERT_GT(ids->size(), 1u) << "the vocabulary has this character: another is needed";
  const std::vector<LoggedToken> tokens = {{.id = ids->at(0), .logprob = -1.f, .top = {}}};
  const ApiJson json = LogprobsJson(ApiKind::kCompletion, tokens, BundledTokenizer());
  EXPECT_EQ(json["tokens"][0].get<std::string>().substr(0, 10), "bytes:\\xf0");
}

TEST(TokenLog, LetsTokensOutWithTheirText) {
  TokenLog log(BundledTokenizer(), 10);
  const auto ids = BundledTokenizer().Encode("Grüße aus dem Haus");
  ASSERT_TRUE(ids.ok());
  for (const int32_t id : *ids) log.Push({.id = id, .logprob = -1.f, .top = {}});
  // Two bytes, so whatever begins at the first or the second.
  const size_t num_first = log.TakeWithin(2).size();
  EXPECT_GE(num_first, 1u);
  EXPECT_LT(num_first, ids->size());
  EXPECT_TRUE(log.TakeWithin(2).empty());
  const std::vector<LoggedToken> rest = log.TakeAll();
  ASSERT_EQ(num_first + rest.size(), ids->size());
  const std::string last(BundledTokenizer().BytesOf(ids->back()));
  EXPECT_EQ(rest.back().text_offset, 10 + 18 - static_cast<int64_t>(last.size())) << "in characters, not in bytes";
}

}  // namespace
}  // namespace headwise
