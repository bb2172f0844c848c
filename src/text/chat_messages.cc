#include "text/chat_messages.h"

#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <utility>

namespace headwise {
namespace {

constexpr const char* kRole = "role";
constexpr const char* kContent = "content";

Result<ChatMessage> ReadMessage(const Json& value, const std::string& where, bool is_first) {
  HW_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(value, where));
  constexpr std::string_view kKeys[] = {kRole, kContent};
  HW_RETURN_IF_ERROR(object.ExpectOnly(kKeys));
  ChatMessage message;
  HW_ASSIGN_OR_RETURN(message.role, object.String(kRole));
  HW_ASSIGN_OR_RETURN(message.content, object.String(kContent));
  const bool is_known = message.role == "user" || message.role == "assistant" || (message.role == "system" && is_first);
  if (!is_known) {
    return Status::InvalidInput(fmt::format(
        "{}: role is \"{}\", expected user, assistant or, in the first message, system", where, message.role));
  }
  if (message.content.empty() && message.role != "assistant") {
    return Status::InvalidInput(fmt::format("{}: content is empty, expected at least one character", where));
  }
  return message;
}

}  // namespace

Result<std::vector<ChatMessage>> ReadChatMessages(const Json& list, std::string_view origin) {
  if (!list.is_array()) {
    return Status::InvalidInput(fmt::format("{}: expected a list of messages with role and content", origin));
  }
  std::vector<ChatMessage> messages;
  for (const Json& value : list) {
    const std::string where = fmt::format("{}: message {}", origin, messages.size());
    HW_ASSIGN_OR_RETURN(ChatMessage message, ReadMessage(value, where, messages.empty()));
    messages.push_back(std::move(message));
  }
  return messages;
}

Status CheckWholeTurns(std::span<const ChatMessage> messages, std::string_view origin) {
  std::string_view expected = "user";
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (i == 0 && role == "system") continue;
    if (role != expected) {
      return Status::InvalidInput(
          fmt::format("{}: message {}: role is \"{}\", expected {}", origin, i, role, expected));
    }
    expected = role == "user" ? "assistant" : "user";
  }
  if (expected == "user") return Status::Ok();
  return Status::InvalidInput(fmt::format("{}: message {} is the last and a user's, expected an assistant's behind it",
                                          origin, messages.size() - 1));
}

nlohmann::ordered_json ToJson(std::span<const ChatMessage> messages) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ChatMessage& message : messages) list.push_back({{kRole, message.role}, {kContent, message.content}});
  return list;
}

}  // namespace headwise
