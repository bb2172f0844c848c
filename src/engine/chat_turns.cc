#include <headwise/chat.h>

#include <algorithm>

#include "base/check.h"
#include "engine/prompt.h"

namespace headwise {
namespace {

Status CheckMessage(const std::string& message) {
  return message.empty() ? Status::InvalidInput("message: is empty, expected at least one character") : Status::Ok();
}

}  // namespace

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
  HW_RETURN_IF_ERROR(CheckMessage(message));
  const ChatMessage messages[] = {{.role = "user", .content = message}};
  return EncodeChat(tokenizer, {.form = form, .messages = messages, .bos_id = bos_id});
}

// The form only encodes whole conversations; a made-up one of three messages has the stretch that is wanted after its
// first answer. The answer's end is the first end token behind the opening: words do not encode to special tokens.
Result<std::vector<int32_t>> EncodeNextTurn(const Tokenizer& tokenizer, ChatForm form, const std::string& message,
                                            AnswerEnd last_answer) {
  HW_RETURN_IF_ERROR(CheckMessage(message));
  const ChatMessage messages[] = {
      {.role = "user", .content = "a"}, {.role = "assistant", .content = "b"}, {.role = "user", .content = message}};
  HW_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, EncodeChat(tokenizer, {.form = form, .messages = messages}));
  HW_ASSIGN_OR_RETURN(const std::vector<int32_t> opening,
                      EncodeChat(tokenizer, {.form = form, .messages = std::span(messages).first(1)}));
  const std::vector<int32_t> stop_ids = ChatStopIds(tokenizer, form);
  HW_CHECK(opening.size() <= ids.size());
  const auto end_token = std::find_first_of(ids.begin() + static_cast<std::ptrdiff_t>(opening.size()), ids.end(),
                                            stop_ids.begin(), stop_ids.end());
  if (end_token == ids.end()) {
    return Status::Unsupported("chat: in this form no token ends an answer; a conversation cannot go on after it");
  }
  return std::vector<int32_t>(last_answer == AnswerEnd::kCut ? end_token : end_token + 1, ids.end());
}

}  // namespace headwise
