#include "text/chat_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

namespace headwise {
namespace {

constexpr const char* kRole = "role";
constexpr const char* kContent = "content";

// Whether templates can make something of a content that is no text: none beside other fields, or a list of parts.
bool IsOtherContent(const Json& message) {
  const Json content = message.value(kContent, Json());
  const bool has_more = message.size() > (message.contains(kContent) ? 2 : 1);
  return content.is_array() || (content.is_null() && has_more);
}

Result<ChatMessage> ReadMessage(const nlohmann::ordered_json& value, const std::string& where) {
  const Json json = value;
  HW_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(json, where));
  ChatMessage message;
  HW_ASSIGN_OR_RETURN(message.role, object.String(kRole));
  if (message.role.empty()) return Status::InvalidInput(fmt::format("{}: role is empty, expected a name", where));
  const bool is_text = !IsOtherContent(json);
  if (is_text) {
    HW_ASSIGN_OR_RETURN(message.content, object.String(kContent));
  }
  if (!is_text || json.size() > 2) message.json = value.dump();
  return message;
}

}  // namespace

Result<std::vector<ChatMessage>> ReadChatMessages(const nlohmann::ordered_json& list, std::string_view origin) {
  if (!list.is_array()) {
    return Status::InvalidInput(fmt::format("{}: expected a list of messages with role and content", origin));
  }
  std::vector<ChatMessage> messages;
  for (const nlohmann::ordered_json& value : list) {
    const std::string where = fmt::format("{}: message {}", origin, messages.size());
    HW_ASSIGN_OR_RETURN(ChatMessage message, ReadMessage(value, where));
    messages.push_back(std::move(message));
  }
  return messages;
}

Status CheckWholeTurns(std::span<const ChatMessage> messages, std::string_view origin) {
  const bool is_plain = std::ranges::all_of(messages, [](const ChatMessage& message) {
    const std::string& role = message.role;
    return message.json.empty() && (role == "system" || role == "user" || role == "assistant");
  });
  std::string_view expected = "user";
  for (size_t i = 0; i < messages.size() && is_plain; ++i) {
    const std::string& role = messages[i].role;
    if (i == 0 && role == "system") continue;
    if (role != expected) {
      return Status::InvalidInput(
          fmt::format("{}: message {}: role is \"{}\", expected {}", origin, i, role, expected));
    }
    expected = role == "user" ? "assistant" : "user";
  }
  const bool has_turns = messages.size() > 1 || (messages.size() == 1 && messages[0].role != "system");
  if (!has_turns || messages.back().role == "assistant") return Status::Ok();
  const std::string& role = messages.back().role;
  return Status::InvalidInput(fmt::format("{}: message {} is the last and {}'s, expected an assistant's behind it",
                                          origin, messages.size() - 1, role == "user" ? "a user" : role));
}

nlohmann::ordered_json ToJson(std::span<const ChatMessage> messages) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ChatMessage& message : messages) {
    list.push_back(message.json.empty() ? nlohmann::ordered_json({{kRole, message.role}, {kContent, message.content}})
                                        : nlohmann::ordered_json::parse(message.json, nullptr, false));
  }
  return list;
}

}  // namespace headwise
