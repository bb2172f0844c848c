#include "server/openai_response.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "text/utf8.h"

namespace headwise {
namespace {

// A token as completions write it, where it is a key beside others: a part of a character by its bytes.
std::string TokenName(int32_t id, const Tokenizer& tokenizer) {
  const std::string_view bytes = tokenizer.BytesOf(id);
  if (!FindInvalidUtf8(bytes)) return std::string(bytes);
  std::string name = "bytes:";
  for (const char byte : bytes) name += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  return name;
}

ApiJson TokenJson(const TokenLogprob& token, const Tokenizer& tokenizer) {
  const std::string_view text = tokenizer.BytesOf(token.id);
  ApiJson bytes = ApiJson::array();
  for (const char byte : text) bytes.push_back(static_cast<unsigned char>(byte));
  return {{"token", text}, {"logprob", token.logprob}, {"bytes", std::move(bytes)}};
}

ApiJson ChatLogprobs(std::span<const LoggedToken> tokens, const Tokenizer& tokenizer) {
  ApiJson content = ApiJson::array();
  for (const LoggedToken& token : tokens) {
    ApiJson json = TokenJson({.id = token.id, .logprob = token.logprob.value_or(0)}, tokenizer);
    json["top_logprobs"] = ApiJson::array();
    for (const TokenLogprob& top : token.top) json["top_logprobs"].push_back(TokenJson(top, tokenizer));
    content.push_back(std::move(json));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

// The chosen token is among them, as OpenAI has it: one more than was asked for, where it is none of the best.
ApiJson TopOf(const LoggedToken& token, const Tokenizer& tokenizer) {
  // An object looks for a name among all that it has.
  ApiJson::object_t top;
  std::unordered_set<std::string> names;
  const auto add = [&](int32_t id, double logprob) {
    std::string name = TokenName(id, tokenizer);
    // Of tokens with the same text the most probable: it comes first.
    if (names.insert(name).second) top.emplace_back(std::move(name), logprob);
  };
  for (const TokenLogprob& each : token.top) add(each.id, each.logprob);
  add(token.id, *token.logprob);
  return top;
}

ApiJson CompletionLogprobs(std::span<const LoggedToken> tokens, const Tokenizer& tokenizer) {
  ApiJson names = ApiJson::array();
  ApiJson logprobs = ApiJson::array();
  ApiJson tops = ApiJson::array();
  ApiJson offsets = ApiJson::array();
  for (const LoggedToken& token : tokens) {
    names.push_back(TokenName(token.id, tokenizer));
    logprobs.push_back(token.logprob ? ApiJson(*token.logprob) : ApiJson());
    tops.push_back(token.logprob ? TopOf(token, tokenizer) : ApiJson());
    offsets.push_back(token.text_offset);
  }
  return {{"tokens", std::move(names)},
          {"token_logprobs", std::move(logprobs)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

ApiJson HeadJson(const ResponseHead& head, const char* object) {
  return {{"id", head.id},
          {"object", object},
          {"created", head.created},
          {"model", head.model},
          {"system_fingerprint", head.fingerprint}};
}

// In a stream it has its place among the calls, and its name only once.
ApiJson CallJson(const ToolCallDelta& call, bool is_piece) {
  ApiJson json = ApiJson::object();
  if (is_piece) json["index"] = call.index;
  if (call.begins()) {
    json["id"] = call.id;
    json["type"] = "function";
    json["function"]["name"] = call.name;
  }
  json["function"]["arguments"] = call.arguments;
  return json;
}

const char* ChunkObject(ApiKind kind) {
  return kind == ApiKind::kChat ? "chat.completion.chunk" : "text_completion";
}

}  // namespace

void Usage::Add(const RequestMetrics& metrics) {
  completion_tokens += metrics.new_tokens;
  kv_bytes += metrics.kv_bytes;
  kv_bytes_full += metrics.kv_bytes_full;
  kv_bytes_bounded += metrics.kv_bytes_bounded;
  kv_peak_bytes += metrics.kv_peak_bytes;
}

void TokenLog::Push(LoggedToken token) {
  token.text_offset = num_characters_;
  const size_t begin = num_bytes_;
  const std::string text = decoder_.Push(token.id);
  num_bytes_ += text.size();
  num_characters_ += CountCharacters(text);
  waiting_.push_back({.token = std::move(token), .begin = begin});
}

std::vector<LoggedToken> TokenLog::TakeWithin(size_t num_bytes) {
  std::vector<LoggedToken> tokens;
  for (; !waiting_.empty() && waiting_.front().begin < num_bytes; waiting_.pop_front()) {
    tokens.push_back(std::move(waiting_.front().token));
  }
  return tokens;
}

ApiJson LogprobsJson(ApiKind kind, std::span<const LoggedToken> tokens, const Tokenizer& tokenizer) {
  return kind == ApiKind::kChat ? ChatLogprobs(tokens, tokenizer) : CompletionLogprobs(tokens, tokenizer);
}

int64_t CountCharacters(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

const char* FinishReasonName(FinishReason finish, bool has_calls) {
  if (finish == FinishReason::kLength) return "length";
  return has_calls ? "tool_calls" : "stop";
}

ApiJson UsageJson(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
          {"headwise",
           {{"plan", usage.plan},
            {"kv_bytes", usage.kv_bytes},
            {"kv_bytes_full", usage.kv_bytes_full},
            {"kv_bytes_bounded", usage.kv_bytes_bounded},
            {"kv_peak_bytes", usage.kv_peak_bytes}}}};
}

ApiJson ChoiceJson(ApiKind kind, int64_t index, const std::string& text, ApiJson logprobs, FinishReason finish,
                   std::span<const ToolCallDelta> calls) {
  ApiJson choice = {{"index", index}};
  if (kind == ApiKind::kChat) {
    choice["message"] = {{"role", "assistant"}, {"content", text}, {"refusal", nullptr}};
    if (!calls.empty()) {
      if (text.empty()) choice["message"]["content"] = nullptr;
      choice["message"]["tool_calls"] = ApiJson::array();
      for (const ToolCallDelta& call : calls) choice["message"]["tool_calls"].push_back(CallJson(call, false));
    }
  } else {
    choice["text"] = text;
  }
  choice["logprobs"] = std::move(logprobs);
  choice["finish_reason"] = FinishReasonName(finish, !calls.empty());
  return choice;
}

ApiJson ResponseJson(const ResponseHead& head, ApiJson choices, const Usage& usage) {
  ApiJson json = HeadJson(head, head.kind == ApiKind::kChat ? "chat.completion" : "text_completion");
  json["choices"] = std::move(choices);
  json["usage"] = UsageJson(usage);
  return json;
}

ApiJson ChunkJson(const ResponseHead& head, int64_t index, Piece piece, const std::string& text, ApiJson logprobs,
                  std::optional<FinishReason> finish, bool has_calls) {
  ApiJson choice = {{"index", index}};
  if (head.kind == ApiKind::kCompletion) {
    choice["text"] = text;
  } else if (piece == Piece::kFirst) {
    choice["delta"] = {{"role", "assistant"}, {"content", text}};
  } else if (piece == Piece::kLast && text.empty()) {
    choice["delta"] = ApiJson::object();
  } else {
    choice["delta"] = {{"content", text}};
  }
  choice["logprobs"] = std::move(logprobs);
  choice["finish_reason"] = finish ? ApiJson(FinishReasonName(*finish, has_calls)) : ApiJson();
  ApiJson json = HeadJson(head, ChunkObject(head.kind));
  json["choices"] = ApiJson::array({std::move(choice)});
  return json;
}

ApiJson CallsChunkJson(const ResponseHead& head, int64_t index, std::span<const ToolCallDelta> calls,
                       ApiJson logprobs) {
  ApiJson pieces = ApiJson::array();
  for (const ToolCallDelta& call : calls) pieces.push_back(CallJson(call, true));
  ApiJson json = HeadJson(head, ChunkObject(head.kind));
  json["choices"] = ApiJson::array({{{"index", index},
                                     {"delta", {{"tool_calls", std::move(pieces)}}},
                                     {"logprobs", std::move(logprobs)},
                                     {"finish_reason", nullptr}}});
  return json;
}

ApiJson UsageChunkJson(const ResponseHead& head, const Usage& usage) {
  ApiJson json = HeadJson(head, ChunkObject(head.kind));
  json["choices"] = ApiJson::array();
  json["usage"] = UsageJson(usage);
  return json;
}

std::string ToText(const ApiJson& json) {
  return json.dump(-1, ' ', false, ApiJson::error_handler_t::replace);
}

std::string EventText(const ApiJson& json) {
  return "data: " + ToText(json) + "\n\n";
}

}  // namespace headwise
