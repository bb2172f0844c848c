#include <headwise/chat.h>

#include "engine/prompt.h"

namespace headwise {
Result<ChatForm> FindChatForm(const Tokenizer& tokenizer, const std::string& name) {
  if (!name.empty()) return ChatFormByName(name);
  const std::optional<ChatForm> form = DetectChatForm(tokenizer);
  if (form) return *form;
  return Status::InvalidInput("the model's files do not tell its chat form; name it with --chat-form");
}

Result<ChatIds> EncodeChat(const Engine& engine, std::span<const ChatMessage> messages, const std::string& form) {
  HW_RETURN_IF_ERROR(RequireTokenizer(engine));
  const Tokenizer& tokenizer = engine.tokenizer();
  ChatIds ids;
  HW_ASSIGN_OR_RETURN(const ChatForm found, FindChatForm(tokenizer, form));
  HW_ASSIGN_OR_RETURN(ids.prompt,
                      EncodeChat(tokenizer, {.form = found, .messages = messages, .bos_id = BeginOfText(engine)}));
  ids.stop_tokens = ChatStopIds(tokenizer, found);
  return ids;
}

Result<std::vector<int32_t>> EncodeFirstTurn(const Tokenizer& tokenizer, ChatForm form, const std::string& message,
                                             std::optional<int32_t> bos_id) {
  if (message.empty()) return Status::InvalidInput("message: is empty, expected at least one character");
  const ChatMessage messages[] = {{.role = "user", .content = message}};
  return EncodeChat(tokenizer, {.form = form, .messages = messages, .bos_id = bos_id});
}

}  // namespace headwise
