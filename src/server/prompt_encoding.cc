#include "server/prompt_encoding.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "engine/prompt.h"

namespace headwise {
namespace {

// The server's variables, and the request's in their place.
std::string MergedVariables(const std::string& server, const std::string& request) {
  if (server.empty() || request.empty()) return server + request;
  auto merged = nlohmann::ordered_json::parse(server, nullptr, false);
  merged.update(nlohmann::ordered_json::parse(request, nullptr, false));
  return merged.dump();
}

}  // namespace

ApiResult<std::vector<int32_t>> EncodeApiPrompt(const ServedModel& model, const ApiPrompt& prompt) {
  if (const auto* ids = std::get_if<std::vector<int32_t>>(&prompt)) {
    if (ids->empty()) return InvalidField("prompt", "prompt: is empty, expected at least one token id");
    // Here, and not by the engine alone: some of them are looked up, or read by it, one by one.
    const int64_t vocab_size = model.engine().config().vocab_size;
    for (size_t i = 0; i < ids->size(); ++i) {
      if ((*ids)[i] >= 0 && (*ids)[i] < vocab_size) continue;
      return InvalidField("prompt",
                          fmt::format("prompt: token {} is id {}, expected 0 to {}", i, (*ids)[i], vocab_size - 1));
    }
    return *ids;
  }
  Result<std::vector<int32_t>> ids = EncodePrompt(model.engine(), std::get<std::string>(prompt));
  if (!ids.ok()) return InvalidField("prompt", ids.status().message());
  return *std::move(ids);
}

ApiResult<std::vector<int32_t>> EncodeConversation(const ServedModel& model, const ApiConversation& conversation,
                                                   const ApiTools& tools) {
  const ChatFormat* format = model.chat_format();
  if (format == nullptr) {
    return InvalidField("messages",
                        fmt::format("messages: the model {} has no chat format, expected a prompt for "
                                    "/v1/completions: {}",
                                    model.name(), model.chat_status().message()),
                        "unsupported");
  }
  const std::string tools_json = tools.tools.empty() ? std::string() : tools.json;
  std::vector<ChatMessage> messages = MessagesWithTools(model.tool_syntax(), conversation.messages, tools_json);
  for (ChatMessage& message : messages) {
    // OpenAI's newer name for a system prompt.
    const bool is_plain_developer = message.role == "developer" && message.json.empty();
    if (is_plain_developer && !model.knows_developers()) message.role = "system";
  }
  const std::string variables = MergedVariables(model.template_variables(), conversation.variables);
  Result<std::vector<int32_t>> ids = format->Encode(
      {.messages = messages,
       .end = conversation.end,
       .tools = model.tool_syntax() == ToolSyntax::kGeneric ? std::string_view() : std::string_view(tools_json),
       .documents = conversation.documents,
       .variables = variables});
  if (!ids.ok()) return InvalidField("messages", ids.status().message());
  if (ids->empty()) return InvalidField("messages", "messages: make an empty prompt, expected at least one token");
  return *std::move(ids);
}

ApiResult<int64_t> NewTokensFor(const ServedModel& model, int64_t prompt_tokens, std::optional<int64_t> asked,
                                int64_t otherwise) {
  const int64_t room = model.max_context() - prompt_tokens;
  const int64_t needed = asked.value_or(1);
  if (needed <= room) return asked.value_or(std::min(otherwise, room));
  std::string message = fmt::format("This model's maximum context length is {} tokens. However, ", model.max_context());
  message += asked ? fmt::format("you requested {} tokens ({} in the prompt, {} for the answer).",
                                 prompt_tokens + *asked, prompt_tokens, *asked)
                   : fmt::format("your prompt has {} tokens.", prompt_tokens);
  return InvalidField(room < 1 ? "prompt" : "max_tokens", std::move(message) + " Expected less.",
                      "context_length_exceeded");
}

}  // namespace headwise
