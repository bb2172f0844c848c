// Conversations as JSON: [{"role": "user", "content": "..."}, ...].
#ifndef HEADWISE_TEXT_CHAT_MESSAGES_H_
#define HEADWISE_TEXT_CHAT_MESSAGES_H_

#include <headwise/chat.h>
#include <headwise/status.h>

#include <span>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace headwise {

// Which roles there are, in what order, and what else a message may have, the model's ChatFormat says. System prompts
// and users' messages say something. `origin` opens every message.
Result<std::vector<ChatMessage>> ReadChatMessages(const nlohmann::ordered_json& list, std::string_view origin);

// That messages are the whole of a conversation: a system message or none, then users and assistants in turn, the last
// of them an assistant. Where there are other roles, or messages with more than a text, the order is the ChatFormat's
// business.
Status CheckWholeTurns(std::span<const ChatMessage> messages, std::string_view origin);

// The same list; the role stands first, as people read it.
nlohmann::ordered_json ToJson(std::span<const ChatMessage> messages);

}  // namespace headwise

#endif  // HEADWISE_TEXT_CHAT_MESSAGES_H_
