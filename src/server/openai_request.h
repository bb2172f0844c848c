// What POST /v1/completions and POST /v1/chat/completions ask for, as OpenAI defines them, and what headwise has
// besides. docs/server.md lists the fields.
#ifndef HEADWISE_SERVER_OPENAI_REQUEST_H_
#define HEADWISE_SERVER_OPENAI_REQUEST_H_

#include <headwise/chat.h>
#include <headwise/engine.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "server/api_error.h"
#include "server/grammar_fields.h"
#include "server/json_fields.h"
#include "server/tool_fields.h"

namespace headwise {

// Answers that one request may ask for, prompts x n.
inline constexpr int64_t kMaxChoices = 1024;

enum class ApiKind { kCompletion, kChat };

// A text, or its ids.
using ApiPrompt = std::variant<std::string, std::vector<int32_t>>;

// A conversation, as ChatPrompt has it.
struct ApiConversation {
  std::vector<ChatMessage> messages;
  ChatEnd end = ChatEnd::kOpenAssistantTurn;
  std::string documents;  // JSON; empty: none
  std::string variables;
};

struct ApiRequest {
  ApiKind kind = ApiKind::kCompletion;
  std::string model;  // empty: the first
  std::string plan;   // empty: the model's own default
  std::vector<ApiPrompt> prompts;
  ApiConversation conversation;

  bool stream = false;
  bool include_usage = false;
  int64_t n = 1;                      // choices for each prompt
  std::optional<int64_t> max_tokens;  // none: what the endpoint has
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
  SamplingOptions sampling;  // but for the seed
  std::optional<uint64_t> seed;
  // Log-probabilities of the drawn tokens, and of so many of the most probable.
  std::optional<int64_t> logprobs;
  bool echo = false;
  std::optional<ApiGrammar> grammar;  // of every answer that calls nothing
  ApiTools tools;                     // that it may call
  int64_t priority = 0;               // as Request has it
  std::string client;                 // "user", unless there are keys
  bool cache_prompt = true;           // begins with what is kept of its prompt, and is kept itself
};

ApiResult<ApiRequest> ParseCompletionRequest(std::string_view body);
ApiResult<ApiRequest> ParseChatRequest(std::string_view body);

// "messages", and what templates are given with them: of this request and of /tokenize. `body` is the text of the
// object, whose order templates see.
void ReadConversation(JsonFields& fields, std::string_view body, ApiConversation& conversation);

}  // namespace headwise

#endif  // HEADWISE_SERVER_OPENAI_REQUEST_H_
