#include <headwise/chat.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "text/chat_encoder.h"
#include "text/utf8.h"

namespace headwise {
namespace {

Result<std::shared_ptr<const ChatEncoder>> MakeEncoder(const Tokenizer& tokenizer, ChatFormatOptions options) {
  if (options.chat_template) {
    if (!options.form.empty()) {
      return Status::InvalidInput(fmt::format("both a chat template ({}) and the chat form {}, expected one of the two",
                                              options.chat_template->origin, options.form));
    }
    return MakeTemplateEncoder(tokenizer, options, {*options.chat_template});
  }
  const auto own = tokenizer.chat_templates();
  if (options.form.empty() && !own.empty()) {
    return MakeTemplateEncoder(tokenizer, options, {own.begin(), own.end()});
  }
  if (options.form.empty()) {
    const std::optional<std::string> form = DetectChatForm(tokenizer);
    if (!form) {
      return Status::InvalidInput(
          "the model's files have no chat template and do not tell a chat form; name one with --chat-form, or a file "
          "with --chat-template");
    }
    options.form = *form;
  }
  return MakeFormEncoder(tokenizer, options);
}

Status CheckText(std::span<const ChatMessage> messages) {
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    for (const std::string* text : {&message.role, &message.content, &message.json}) {
      if (const auto at = FindInvalidUtf8(*text)) {
        return Status::InvalidInput(fmt::format("message {}: invalid UTF-8 at byte {}", i, *at));
      }
    }
  }
  return Status::Ok();
}

}  // namespace

void AddStopId(std::optional<int32_t> id, std::vector<int32_t>& ids) {
  if (id && std::find(ids.begin(), ids.end(), *id) == ids.end()) ids.push_back(*id);
}

Result<ChatFormat> ChatFormat::Find(const Tokenizer& tokenizer, const ChatFormatOptions& options) {
  HW_ASSIGN_OR_RETURN(std::shared_ptr<const ChatEncoder> encoder, MakeEncoder(tokenizer, options));
  return ChatFormat(std::move(encoder));
}

std::string_view ChatFormat::name() const {
  return encoder_->name();
}
bool ChatFormat::is_template() const {
  return encoder_->is_template();
}
const std::vector<int32_t>& ChatFormat::stop_ids() const {
  return encoder_->stop_ids();
}

Result<std::vector<int32_t>> ChatFormat::Encode(const ChatPrompt& prompt) const {
  HW_RETURN_IF_ERROR(CheckText(prompt.messages));
  return encoder_->Encode(prompt);
}

Result<NextTurn> ChatFormat::EncodeNextTurn(const ChatPrompt& prompt, AnswerEnd last_answer) const {
  const auto& messages = prompt.messages;
  const bool has_both = messages.size() >= 2 && messages[messages.size() - 2].role == "assistant" &&
                        messages.back().role != "assistant" && prompt.end == ChatEnd::kOpenAssistantTurn;
  if (!has_both) return Status::InvalidInput("messages: expected an answer and a message behind it as the last two");
  HW_RETURN_IF_ERROR(CheckText(messages.last(2)));
  if (messages.back().content.empty() && messages.back().json.empty()) {
    return Status::InvalidInput("message: is empty, expected at least one character");
  }
  return encoder_->EncodeNextTurn(prompt, last_answer);
}

}  // namespace headwise
