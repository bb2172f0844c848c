#include <headwise/chat.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "text/utf8.h"

namespace headwise {
namespace {

// Stands for the start or end token in a row; the tokenizer says which those are.
constexpr std::string_view kBos = "{bos}";
constexpr std::string_view kEos = "{eos}";

// One stretch around a message. `special` tokens are ids, `text` is joined with its neighbours before it is encoded:
// words are cut across the joint, as they were in training.
struct Mark {
  std::string_view special = {};
  std::string_view text = {};
};
using Marks = std::array<Mark, 4>;

enum class SystemPlace { kOwnTurn, kInFirstUser, kInLastUser };
enum class BosRule { kIfGiven, kOnce, kEveryUserTurn };
enum class Trim { kNothing, kEnds };
enum class Roles { kAny, kAlternate };

struct FormRow {
  ChatForm form;
  std::string_view name;
  Marks before_system, after_system;  // around the system prompt, wherever it stands
  Marks before_user, after_user;
  Marks before_assistant, after_assistant;
  Marks open_assistant;
  SystemPlace system_place = SystemPlace::kOwnTurn;
  BosRule bos = BosRule::kIfGiven;
  Trim trim = Trim::kNothing;
  Roles roles = Roles::kAlternate;
  std::string_view default_system = {};
  std::array<std::string_view, 3> stops = {};
};

constexpr Marks ChatMlTurn(std::string_view role) {
  return {{{"<|im_start|>", role}}};
}
constexpr Marks kChatMlEnd = {{{"<|im_end|>", "\n"}}};
constexpr Marks Llama3Turn(std::string_view role) {
  return {{{"<|start_header_id|>", role}, {"<|end_header_id|>", "\n\n"}}};
}
constexpr Marks kLlama3End = {{{"<|eot_id|>", ""}}};

constexpr FormRow kForms[] = {
    {.form = ChatForm::kChatMl,
     .name = "chatml",
     .before_system = ChatMlTurn("system\n"),
     .after_system = kChatMlEnd,
     .before_user = ChatMlTurn("user\n"),
     .after_user = kChatMlEnd,
     .before_assistant = ChatMlTurn("assistant\n"),
     .after_assistant = kChatMlEnd,
     .open_assistant = ChatMlTurn("assistant\n"),
     .roles = Roles::kAny,
     .stops = {"<|im_end|>", "<|endoftext|>"}},
    {.form = ChatForm::kLlama2,
     .name = "llama-2",
     .before_system = {{{"", "<<SYS>>\n"}}},
     .after_system = {{{"", "\n<</SYS>>\n\n"}}},
     .before_user = {{{"", "[INST] "}}},
     .after_user = {{{"", " [/INST]"}}},
     .before_assistant = {{{"", " "}}},
     .after_assistant = {{{"", " "}, {kEos, ""}}},
     .open_assistant = {},
     .system_place = SystemPlace::kInFirstUser,
     .bos = BosRule::kEveryUserTurn,
     .trim = Trim::kEnds},
    {.form = ChatForm::kLlama3,
     .name = "llama-3",
     .before_system = Llama3Turn("system"),
     .after_system = kLlama3End,
     .before_user = Llama3Turn("user"),
     .after_user = kLlama3End,
     .before_assistant = Llama3Turn("assistant"),
     .after_assistant = kLlama3End,
     .open_assistant = Llama3Turn("assistant"),
     .bos = BosRule::kOnce,
     .trim = Trim::kEnds,
     .roles = Roles::kAny,
     .stops = {"<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"}},
    {.form = ChatForm::kMistral,
     .name = "mistral",
     .before_system = {},
     .after_system = {{{"", "\n\n"}}},
     .before_user = {{{"", "[INST] "}}},
     .after_user = {{{"", " [/INST]"}}},
     .before_assistant = {{{"", " "}}},
     .after_assistant = {{{kEos, ""}}},
     .open_assistant = {},
     .system_place = SystemPlace::kInFirstUser,
     .bos = BosRule::kOnce},
    {.form = ChatForm::kMistralV3,
     .name = "mistral-v3",
     .before_system = {},
     .after_system = {{{"", "\n\n"}}},
     .before_user = {{{"[INST]", " "}}},
     .after_user = {{{"[/INST]", ""}}},
     .before_assistant = {{{"", " "}}},
     .after_assistant = {{{kEos, ""}}},
     .open_assistant = {},
     .system_place = SystemPlace::kInLastUser,
     .bos = BosRule::kOnce},
    {.form = ChatForm::kVicuna,
     .name = "vicuna",
     .before_system = {},
     .after_system = {{{"", " "}}},
     .before_user = {{{"", "USER: "}}},
     .after_user = {{{"", " "}}},
     .before_assistant = {{{"", "ASSISTANT: "}}},
     .after_assistant = {{{kEos, ""}}},
     .open_assistant = {{{"", "ASSISTANT:"}}},
     .bos = BosRule::kOnce,
     .default_system = "A chat between a curious user and an artificial intelligence assistant. The assistant gives "
                       "helpful, detailed, and polite answers to the user's questions."},
};

const FormRow& RowOf(ChatForm form) {
  return *std::find_if(std::begin(kForms), std::end(kForms), [&](const FormRow& row) { return row.form == form; });
}

// Collects ids; text is held back until a special token ends it.
class ChatWriter {
 public:
  ChatWriter(const Tokenizer& tokenizer, const FormRow& row, std::optional<int32_t> bos_id)
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
  const FormRow& row_;
  std::optional<int32_t> bos_id_;
  std::string text_;
  std::vector<int32_t> ids_;
};

Status CheckMessages(const FormRow& row, std::span<const ChatMessage> messages) {
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
size_t SystemCarrier(const FormRow& row, std::span<const ChatMessage> messages) {
  size_t carrier = messages.size();
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role != "user") continue;
    if (row.system_place == SystemPlace::kInLastUser || carrier == messages.size()) carrier = i;
  }
  return carrier;
}

Status WriteSystem(const FormRow& row, std::string_view system, ChatWriter& writer) {
  HW_RETURN_IF_ERROR(writer.Write(row.before_system));
  const bool trims = row.trim == Trim::kEnds && row.system_place == SystemPlace::kOwnTurn;
  writer.Text(trims ? TrimStart(TrimEnd(system)) : system);
  return writer.Write(row.after_system);
}

}  // namespace

Result<ChatForm> ChatFormByName(std::string_view name) {
  std::string names;
  for (const FormRow& row : kForms) {
    if (row.name == name) return row.form;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", row.name);
  }
  return Status::InvalidInput(fmt::format("chat form \"{}\", expected one of {}", name, names));
}

std::string_view ChatFormName(ChatForm form) {
  return RowOf(form).name;
}

std::optional<ChatForm> DetectChatForm(const Tokenizer& tokenizer) {
  const auto has_special = [&](std::string_view token) {
    const auto id = tokenizer.IdOf(token);
    return id && tokenizer.IsSpecial(*id);
  };
  const std::string& text = tokenizer.chat_template();
  const auto says = [&](std::string_view part) { return text.find(part) != std::string::npos; };
  if (!text.empty()) {
    if (says("<|im_start|>")) return ChatForm::kChatMl;
    if (says("<|start_header_id|>")) return ChatForm::kLlama3;
    if (says("<<SYS>>")) return ChatForm::kLlama2;
    if (says("[INST]")) return has_special("[INST]") ? ChatForm::kMistralV3 : ChatForm::kMistral;
    if (says("USER:") && says("ASSISTANT:")) return ChatForm::kVicuna;
    return std::nullopt;
  }
  if (has_special("<|start_header_id|>") && has_special("<|eot_id|>")) return ChatForm::kLlama3;
  if (has_special("<|im_start|>") && has_special("<|im_end|>")) return ChatForm::kChatMl;
  if (has_special("[INST]") && has_special("[/INST]")) return ChatForm::kMistralV3;
  return std::nullopt;
}

Result<std::vector<int32_t>> EncodeChat(const Tokenizer& tokenizer, const ChatPrompt& prompt) {
  const FormRow& row = RowOf(prompt.form);
  HW_RETURN_IF_ERROR(CheckMessages(row, prompt.messages));
  ChatWriter writer(tokenizer, row, prompt.bos_id);
  if (row.bos == BosRule::kOnce || (row.bos == BosRule::kIfGiven && prompt.bos_id)) {
    HW_RETURN_IF_ERROR(writer.Special(kBos));
  }
  const bool has_system = !prompt.messages.empty() && prompt.messages[0].role == "system";
  const std::string_view system = has_system ? std::string_view(prompt.messages[0].content) : row.default_system;
  const bool says_system = has_system || !system.empty();
  const auto messages = prompt.messages.subspan(has_system ? 1 : 0);
  size_t carrier = messages.size();
  if (says_system && row.system_place == SystemPlace::kOwnTurn) {
    HW_RETURN_IF_ERROR(WriteSystem(row, system, writer));
  } else if (says_system) {
    carrier = SystemCarrier(row, messages);
    if (carrier == messages.size()) {
      return Status::InvalidInput(
          fmt::format("chat form {}: a system message alone, expected a user message with it", row.name));
    }
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    const bool is_user = messages[i].role == "user";
    if (is_user && row.bos == BosRule::kEveryUserTurn) HW_RETURN_IF_ERROR(writer.Special(kBos));
    HW_RETURN_IF_ERROR(writer.Write(is_user ? row.before_user : row.before_assistant));
    std::string_view content = messages[i].content;
    if (row.trim == Trim::kEnds) content = TrimEnd(content);
    if (i == carrier) {
      // The two together are one message: its ends are trimmed, not the joint.
      HW_RETURN_IF_ERROR(WriteSystem(row, system, writer));
    } else if (row.trim == Trim::kEnds) {
      content = TrimStart(content);
    }
    writer.Text(content);
    HW_RETURN_IF_ERROR(writer.Write(is_user ? row.after_user : row.after_assistant));
  }
  if (prompt.end == ChatEnd::kOpenAssistantTurn) HW_RETURN_IF_ERROR(writer.Write(row.open_assistant));
  return writer.Finish();
}

Result<std::vector<int32_t>> EncodeNextTurn(const Tokenizer& tokenizer, ChatForm form, const std::string& message,
                                            AnswerEnd last_answer) {
  if (message.empty()) return Status::InvalidInput("message: is empty, expected at least one character");
  const FormRow& row = RowOf(form);
  const ChatMessage messages[] = {{.role = "user", .content = message}};
  HW_RETURN_IF_ERROR(CheckMessages(row, messages));
  ChatWriter writer(tokenizer, row, std::nullopt);
  // What stands before the end token belongs to the answer, whether the model wrote it or not.
  const std::vector<int32_t> stop_ids = ChatStopIds(tokenizer, form);
  std::span<const Mark> rest = row.after_assistant;
  for (bool is_end = false; !is_end; rest = rest.subspan(1)) {
    if (rest.empty()) {
      return Status::Unsupported("chat: in this form no token ends an answer; a conversation cannot go on after it");
    }
    const Mark& mark = rest.front();
    if (mark.special.empty()) continue;
    HW_ASSIGN_OR_RETURN(const int32_t id, writer.IdOf(mark.special));
    is_end = std::find(stop_ids.begin(), stop_ids.end(), id) != stop_ids.end();
    if (!is_end) continue;
    if (last_answer == AnswerEnd::kCut) HW_RETURN_IF_ERROR(writer.Special(mark.special));
    writer.Text(mark.text);
  }
  HW_RETURN_IF_ERROR(writer.Write(rest));
  if (row.bos == BosRule::kEveryUserTurn) HW_RETURN_IF_ERROR(writer.Special(kBos));
  HW_RETURN_IF_ERROR(writer.Write(row.before_user));
  writer.Text(row.trim == Trim::kEnds ? TrimStart(TrimEnd(message)) : std::string_view(message));
  HW_RETURN_IF_ERROR(writer.Write(row.after_user));
  HW_RETURN_IF_ERROR(writer.Write(row.open_assistant));
  return writer.Finish();
}

std::vector<int32_t> ChatStopIds(const Tokenizer& tokenizer, ChatForm form) {
  std::vector<int32_t> ids;
  const auto add = [&](std::optional<int32_t> id) {
    if (id && std::find(ids.begin(), ids.end(), *id) == ids.end()) ids.push_back(*id);
  };
  for (const std::string_view stop : RowOf(form).stops) {
    const auto id = tokenizer.IdOf(stop);
    if (id && tokenizer.IsSpecial(*id)) add(id);
  }
  add(tokenizer.eos_id());
  return ids;
}

}  // namespace headwise
