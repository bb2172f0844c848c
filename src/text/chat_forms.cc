// Conversations in a built-in form.
#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "text/chat_encoder.h"
#include "text/chat_form_table.h"
#include "text/utf8.h"

namespace headwise {
namespace {

// Collects ids; text is held back until a special token ends it.
class ChatWriter {
 public:
  ChatWriter(const Tokenizer& tokenizer, const ChatFormRow& row, std::optional<int32_t> bos_id)
      : tokenizer_(tokenizer), row_(row), bos_id_(bos_id ? bos_id : tokenizer.bos_id()) {}

  void Text(std::string_view text) { text_.append(text); }

  Result<int32_t> IdOf(std::string_view token) const {
    std::optional<int32_t> id = token == kBos ? bos_id_ : token == kEos ? tokenizer_.eos_id() : tokenizer_.IdOf(token);
    if (!id || (token != kBos && token != kEos && !tokenizer_.IsSpecial(*id))) {
      return Status::InvalidInput(fmt::format("chat form {}: the tokenizer has no special token {}", row_.name, token));
    }
    return *id;
  }

  Status Special(std::string_view token) {
    HW_ASSIGN_OR_RETURN(const int32_t id, IdOf(token));
    HW_RETURN_IF_ERROR(EndText());
    ids_.push_back(id);
    return Status::Ok();
  }

  Status Write(std::span<const Mark> marks) {
    for (const Mark& mark : marks) {
      if (!mark.special.empty()) HW_RETURN_IF_ERROR(Special(mark.special));
      Text(mark.text);
    }
    return Status::Ok();
  }

  Result<std::vector<int32_t>> Finish() {
    HW_RETURN_IF_ERROR(EndText());
    return std::move(ids_);
  }

 private:
  Status EndText() {
    HW_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, tokenizer_.Encode(text_, SpecialText::kAsText));
    ids_.insert(ids_.end(), ids.begin(), ids.end());
    text_.clear();
    return Status::Ok();
  }

  const Tokenizer& tokenizer_;
  const ChatFormRow& row_;
  std::optional<int32_t> bos_id_;
  std::string text_;
  std::vector<int32_t> ids_;
};

Status CheckMessages(const ChatFormRow& row, std::span<const ChatMessage> messages) {
  std::string_view expected = "user";
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (const auto at = FindInvalidUtf8(messages[i].content)) {
      return Status::InvalidInput(fmt::format("message {}: invalid UTF-8 at byte {}", i, *at));
    }
    if (role == "system" && i == 0) continue;
    const bool known = role == "user" || role == "assistant";
    if (!known || (row.roles == Roles::kAlternate && role != expected)) {
      return Status::InvalidInput(
          fmt::format("chat form {}: message {} has role \"{}\", expected {}", row.name, i, role,
                      row.roles == Roles::kAlternate ? expected : "user or assistant (system: first only)"));
    }
    expected = role == "user" ? "assistant" : "user";
  }
  return Status::Ok();
}

// The message that carries the system prompt inside it.
size_t SystemCarrier(const ChatFormRow& row, std::span<const ChatMessage> messages) {
  size_t carrier = messages.size();
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role != "user") continue;
    if (row.system_place == SystemPlace::kInLastUser || carrier == messages.size()) carrier = i;
  }
  return carrier;
}

Status WriteSystem(const ChatFormRow& row, std::string_view system, ChatWriter& writer) {
  HW_RETURN_IF_ERROR(writer.Write(row.before_system));
  const bool trims = row.trim == Trim::kEnds && row.system_place == SystemPlace::kOwnTurn;
  writer.Text(trims ? TrimStart(TrimEnd(system)) : system);
  return writer.Write(row.after_system);
}

class FormEncoder : public ChatEncoder {
 public:
  FormEncoder(const Tokenizer& tokenizer, const ChatFormRow& row, const ChatFormatOptions& options)
      : tokenizer_(tokenizer), row_(row), bos_id_(options.bos_id) {
    for (const std::string_view stop : row.stops) {
      const auto id = tokenizer.IdOf(stop);
      if (id && tokenizer.IsSpecial(*id)) AddStopId(id, stop_ids_);
    }
    AddStopId(tokenizer.eos_id(), stop_ids_);
    for (const int32_t id : options.eos_ids) AddStopId(id, stop_ids_);
  }

  std::string_view name() const override { return row_.name; }
  bool is_template() const override { return false; }
  const std::vector<int32_t>& stop_ids() const override { return stop_ids_; }
  Result<std::vector<int32_t>> Encode(const ChatPrompt& prompt) const override;
  Result<NextTurn> EncodeNextTurn(const ChatPrompt& prompt, AnswerEnd last_answer) const override;

 private:
  // That these messages, the prompt's or some of them, and all else it has are for a built-in form.
  Status CheckPrompt(const ChatPrompt& prompt, std::span<const ChatMessage> messages) const;

  const Tokenizer& tokenizer_;
  const ChatFormRow& row_;
  const std::optional<int32_t> bos_id_;
  std::vector<int32_t> stop_ids_;
};

Status FormEncoder::CheckPrompt(const ChatPrompt& prompt, std::span<const ChatMessage> messages) const {
  const auto refuse = [&](const std::string& what) {
    return Status::InvalidInput(fmt::format("chat form {}: {}, which only a chat template can write", row_.name, what));
  };
  if (!prompt.tools.empty()) return refuse("tools are given");
  if (!prompt.documents.empty()) return refuse("documents are given");
  if (!prompt.variables.empty()) return refuse("variables are given");
  HW_RETURN_IF_ERROR(CheckMessages(row_, messages));
  for (size_t i = 0; i < messages.size(); ++i) {
    if (!messages[i].json.empty()) {
      return refuse(fmt::format("message {} has more than a role and a text", i));
    }
  }
  return Status::Ok();
}

Result<std::vector<int32_t>> FormEncoder::Encode(const ChatPrompt& prompt) const {
  HW_RETURN_IF_ERROR(CheckPrompt(prompt, prompt.messages));
  ChatWriter writer(tokenizer_, row_, bos_id_);
  if (row_.bos == BosRule::kOnce || (row_.bos == BosRule::kIfGiven && bos_id_)) {
    HW_RETURN_IF_ERROR(writer.Special(kBos));
  }
  const bool has_system = !prompt.messages.empty() && prompt.messages[0].role == "system";
  const std::string_view system = has_system ? std::string_view(prompt.messages[0].content) : row_.default_system;
  const bool says_system = has_system || !system.empty();
  const auto messages = prompt.messages.subspan(has_system ? 1 : 0);
  size_t carrier = messages.size();
  if (says_system && row_.system_place == SystemPlace::kOwnTurn) {
    HW_RETURN_IF_ERROR(WriteSystem(row_, system, writer));
  } else if (says_system) {
    carrier = SystemCarrier(row_, messages);
    if (carrier == messages.size()) {
      return Status::InvalidInput(
          fmt::format("chat form {}: a system message alone, expected a user message with it", row_.name));
    }
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    const bool is_user = messages[i].role == "user";
    if (is_user && row_.bos == BosRule::kEveryUserTurn) HW_RETURN_IF_ERROR(writer.Special(kBos));
    HW_RETURN_IF_ERROR(writer.Write(is_user ? row_.before_user : row_.before_assistant));
    std::string_view content = messages[i].content;
    if (row_.trim == Trim::kEnds) content = TrimEnd(content);
    if (i == carrier) {
      // The two together are one message: its ends are trimmed, not the joint.
      HW_RETURN_IF_ERROR(WriteSystem(row_, system, writer));
    } else if (row_.trim == Trim::kEnds) {
      content = TrimStart(content);
    }
    writer.Text(content);
    HW_RETURN_IF_ERROR(writer.Write(is_user ? row_.after_user : row_.after_assistant));
  }
  if (prompt.end == ChatEnd::kOpenAssistantTurn) HW_RETURN_IF_ERROR(writer.Write(row_.open_assistant));
  return writer.Finish();
}

Result<NextTurn> FormEncoder::EncodeNextTurn(const ChatPrompt& prompt, AnswerEnd last_answer) const {
  HW_RETURN_IF_ERROR(CheckPrompt(prompt, prompt.messages.last(1)));
  const std::string& message = prompt.messages.back().content;
  ChatWriter writer(tokenizer_, row_, bos_id_);
  // What stands before the end token belongs to the answer, whether the model wrote it or not.
  std::span<const Mark> rest = row_.after_assistant;
  for (bool is_end = false; !is_end; rest = rest.subspan(1)) {
    if (rest.empty()) {
      return Status::Unsupported("chat: in this form no token ends an answer; a conversation cannot go on after it");
    }
    const Mark& mark = rest.front();
    if (mark.special.empty()) continue;
    HW_ASSIGN_OR_RETURN(const int32_t id, writer.IdOf(mark.special));
    is_end = std::find(stop_ids_.begin(), stop_ids_.end(), id) != stop_ids_.end();
    if (!is_end) continue;
    if (last_answer == AnswerEnd::kCut) HW_RETURN_IF_ERROR(writer.Special(mark.special));
    writer.Text(mark.text);
  }
  HW_RETURN_IF_ERROR(writer.Write(rest));
  if (row_.bos == BosRule::kEveryUserTurn) HW_RETURN_IF_ERROR(writer.Special(kBos));
  HW_RETURN_IF_ERROR(writer.Write(row_.before_user));
  writer.Text(row_.trim == Trim::kEnds ? TrimStart(TrimEnd(message)) : std::string_view(message));
  HW_RETURN_IF_ERROR(writer.Write(row_.after_user));
  HW_RETURN_IF_ERROR(writer.Write(row_.open_assistant));
  HW_ASSIGN_OR_RETURN(std::vector<int32_t> ids, writer.Finish());
  return NextTurn{.goes_on = true, .ids = std::move(ids)};
}

}  // namespace

Result<std::shared_ptr<const ChatEncoder>> MakeFormEncoder(const Tokenizer& tokenizer,
                                                           const ChatFormatOptions& options) {
  std::string names;
  for (const ChatFormRow& row : kForms) {
    if (row.name == options.form) return std::shared_ptr<const ChatEncoder>(new FormEncoder(tokenizer, row, options));
    names += fmt::format("{}{}", names.empty() ? "" : ", ", row.name);
  }
  return Status::InvalidInput(fmt::format("chat form \"{}\", expected one of {}", options.form, names));
}

std::optional<std::string> DetectChatForm(const Tokenizer& tokenizer) {
  const auto has_special = [&](std::string_view token) {
    const auto id = tokenizer.IdOf(token);
    return id && tokenizer.IsSpecial(*id);
  };
  if (has_special("<|start_header_id|>") && has_special("<|eot_id|>")) return "llama-3";
  if (has_special("<|im_start|>") && has_special("<|im_end|>")) return "chatml";
  if (has_special("[INST]") && has_special("[/INST]")) return "mistral-v3";
  return std::nullopt;
}

}  // namespace headwise
