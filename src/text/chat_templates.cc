// Conversations as a model's own chat template writes them.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <map>
#include <span>
#include <utility>

#include "base/json.h"
#include "text/chat_encoder.h"
#include "text/jinja/template.h"
#include "text/utf8.h"

namespace headwise {
namespace {

using jinja::MarkedText;
using jinja::OrderedJson;

constexpr std::string_view kDefault = "default";
constexpr std::string_view kToolUse = "tool_use";

// The roles that published templates know. Some put markers together from them ('<|' + message.role + '|>'), which they
// may from these words and from no others.
constexpr std::string_view kRoles[] = {"system",   "developer",   "user",    "assistant", "tool",
                                       "function", "observation", "ipython", "documents", "available_tools"};
// What ChatPrompt says by other means.
constexpr std::string_view kOwnVariables[] = {"messages", "tools", "documents", "add_generation_prompt"};

// In the order in which it stands there: templates print it so. `what` opens the message.
Result<OrderedJson> ParseOrdered(std::string_view text, std::string_view what) {
  HW_RETURN_IF_ERROR(ParseJson(text, what).status());
  return OrderedJson::parse(text, nullptr, false);
}

Result<OrderedJson> MessagesJson(std::span<const ChatMessage> messages) {
  OrderedJson list = OrderedJson::array();
  for (const ChatMessage& message : messages) {
    if (message.json.empty()) {
      list.push_back({{"role", message.role}, {"content", message.content}});
      continue;
    }
    const std::string what = fmt::format("message {}", list.size());
    HW_ASSIGN_OR_RETURN(OrderedJson json, ParseOrdered(message.json, what));
    if (!json.is_object() || json.value("role", OrderedJson()) != message.role) {
      return Status::InvalidInput(fmt::format("{}: its JSON is no object with the role \"{}\"", what, message.role));
    }
    list.push_back(std::move(json));
  }
  return list;
}

std::tm LocalTime() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return local;
}

// The ranges from `begin` on, counted from there.
std::vector<ByteRange> RangesFrom(std::span<const ByteRange> ranges, size_t begin) {
  std::vector<ByteRange> rest;
  for (const ByteRange& range : ranges) {
    if (range.end > begin) rest.push_back({std::max(range.begin, begin) - begin, range.end - begin});
  }
  return rest;
}

bool IsIn(std::span<const ByteRange> ranges, size_t at) {
  const auto range = std::ranges::upper_bound(ranges, at, {}, &ByteRange::end);
  return range != ranges.end() && range->begin <= at;
}

// Behind the white space that begins at `at` and is the template's, or is not.
size_t SkipSpace(const MarkedText& text, size_t at, bool is_templates) {
  while (at < text.text.size() && IsIn(text.from_context, at) != is_templates) {
    const Utf8Character character = FirstCharacter(std::string_view(text.text).substr(at));
    if (!IsWhitespace(character.code)) break;
    at += character.size_bytes;
  }
  return at;
}

// Where `whole` goes on behind the answer, if it begins with `before` and the answer as it was; nothing otherwise.
std::optional<size_t> EndOfAnswer(const MarkedText& whole, const MarkedText& before, std::string_view answer) {
  const size_t opened = before.text.size();
  if (!whole.text.starts_with(before.text)) return std::nullopt;
  std::vector<ByteRange> ranges;
  for (const ByteRange& range : whole.from_context) {
    if (range.begin < opened) ranges.push_back({range.begin, std::min(range.end, opened)});
  }
  if (ranges != before.from_context) return std::nullopt;
  const std::string_view core = TrimStart(TrimEnd(answer));
  std::string_view rest = std::string_view(whole.text).substr(opened);
  if (core.empty()) return SkipSpace(whole, opened, false);
  rest = TrimStart(rest);
  if (!rest.starts_with(core)) return std::nullopt;
  const size_t end = SkipSpace(whole, whole.text.size() - rest.size() + core.size(), false);
  // The answer was a part of something.
  if (end < whole.text.size() && IsIn(whole.from_context, end)) return std::nullopt;
  return end;
}

class TemplateEncoder : public ChatEncoder {
 public:
  static Result<std::shared_ptr<const ChatEncoder>> Make(const Tokenizer& tokenizer, const ChatFormatOptions& options,
                                                         std::vector<ChatTemplateText> templates);

  std::string_view name() const override { return templates_.front().origin; }
  bool is_template() const override { return true; }
  const std::vector<int32_t>& stop_ids() const override { return stop_ids_; }
  Result<std::vector<int32_t>> Encode(const ChatPrompt& prompt) const override;
  Result<NextTurn> EncodeNextTurn(const ChatPrompt& prompt, AnswerEnd last_answer) const override;

 private:
  struct Named {
    std::string name;
    std::string origin;
    Result<jinja::Template> parsed;
  };

  explicit TemplateEncoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  // As transformers chooses.
  Result<const Named*> Choose(const ChatPrompt& prompt) const;
  Result<jinja::Context> ContextOf(const ChatPrompt& prompt, const jinja::Template& parsed) const;
  Result<MarkedText> Render(const ChatPrompt& prompt, const std::tm& now) const;
  Result<std::vector<int32_t>> EncodeFrom(const MarkedText& text, size_t begin) const;
  // What the template writes behind an answer, if it lets itself be asked.
  std::optional<int32_t> EndOfTurn() const;

  const Tokenizer& tokenizer_;
  std::vector<Named> templates_;  // the default one first, if there is one
  std::vector<int32_t> stop_ids_;
};

Result<std::shared_ptr<const ChatEncoder>> TemplateEncoder::Make(const Tokenizer& tokenizer,
                                                                 const ChatFormatOptions& options,
                                                                 std::vector<ChatTemplateText> templates) {
  std::stable_partition(templates.begin(), templates.end(),
                        [](const ChatTemplateText& each) { return each.name == kDefault; });
  std::shared_ptr<TemplateEncoder> encoder(new TemplateEncoder(tokenizer));
  for (const ChatTemplateText& each : templates) {
    Result<jinja::Template> parsed = jinja::Template::Parse(each.source);
    if (!parsed.ok()) {
      parsed = Status(parsed.status().code(), fmt::format("{}: {}; --chat-form names a built-in form to take instead",
                                                          each.origin, parsed.status().message()));
      // Another one is missed when it is asked for.
      if (each.name == kDefault) return std::move(parsed).status();
    }
    encoder->templates_.push_back({each.name, each.origin, std::move(parsed)});
  }
  AddStopId(encoder->EndOfTurn(), encoder->stop_ids_);
  AddStopId(tokenizer.eos_id(), encoder->stop_ids_);
  for (const int32_t id : options.eos_ids) AddStopId(id, encoder->stop_ids_);
  return std::shared_ptr<const ChatEncoder>(std::move(encoder));
}

Result<const TemplateEncoder::Named*> TemplateEncoder::Choose(const ChatPrompt& prompt) const {
  std::string names;
  const Named* found = nullptr;
  for (const Named& each : templates_) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", each.name);
    if (each.name == kDefault || (each.name == kToolUse && !prompt.tools.empty())) found = &each;
  }
  if (found == nullptr) {
    return Status::InvalidInput(
        fmt::format("the model's chat templates are named {}, expected one named {}", names, kDefault));
  }
  if (!found->parsed.ok()) return found->parsed.status();
  return found;
}

Result<jinja::Context> TemplateEncoder::ContextOf(const ChatPrompt& prompt, const jinja::Template& parsed) const {
  jinja::Context context;
  for (const NamedToken& token : tokenizer_.named_tokens()) context.SetTrusted(token.name, token.token);
  HW_ASSIGN_OR_RETURN(const OrderedJson messages, MessagesJson(prompt.messages));
  HW_RETURN_IF_ERROR(context.SetMessages(messages, kRoles));
  context.Set("add_generation_prompt", jinja::Value::Bool(prompt.end == ChatEnd::kOpenAssistantTurn));
  const auto check_read = [&](const std::string& name) {
    if (parsed.Reads(name)) return Status::Ok();
    return Status::InvalidInput(fmt::format("{}: the template has no use for it", name));
  };
  for (const auto& [name, text] : {std::pair("tools", prompt.tools), std::pair("documents", prompt.documents)}) {
    context.Set(name, jinja::Value::None());
    if (text.empty()) continue;
    HW_ASSIGN_OR_RETURN(const OrderedJson json, ParseOrdered(text, name));
    if (!json.is_array()) {
      return Status::InvalidInput(fmt::format("{}: found {}, expected a list", name, json.type_name()));
    }
    HW_RETURN_IF_ERROR(check_read(name));
    HW_RETURN_IF_ERROR(context.SetJson(name, json));
  }
  if (prompt.variables.empty()) return context;
  HW_ASSIGN_OR_RETURN(const OrderedJson variables, ParseOrdered(prompt.variables, "variables"));
  if (!variables.is_object()) {
    return Status::InvalidInput(fmt::format("variables: found {}, expected an object", variables.type_name()));
  }
  for (const auto& [name, value] : variables.items()) {
    if (std::ranges::find(kOwnVariables, name) != std::end(kOwnVariables)) {
      return Status::InvalidInput(fmt::format("variables: \"{}\" is given by other means", name));
    }
    HW_RETURN_IF_ERROR(check_read(name));
    HW_RETURN_IF_ERROR(context.SetJson(name, value));
  }
  return context;
}

Result<MarkedText> TemplateEncoder::Render(const ChatPrompt& prompt, const std::tm& now) const {
  HW_ASSIGN_OR_RETURN(const Named* named, Choose(prompt));
  Result<jinja::Context> context = ContextOf(prompt, *named->parsed);
  if (!context.ok()) return std::move(context).status().Annotate(named->origin);
  Result<MarkedText> text = named->parsed->Render(*context, {.limits = {}, .now = now});
  if (!text.ok()) return std::move(text).status().Annotate(named->origin);
  if (text->text.empty()) {
    return Status::InvalidInput(fmt::format("{}: the template wrote nothing of this conversation", named->origin));
  }
  return text;
}

Result<std::vector<int32_t>> TemplateEncoder::EncodeFrom(const MarkedText& text, size_t begin) const {
  return tokenizer_.Encode(std::string_view(text.text).substr(begin), RangesFrom(text.from_context, begin));
}

Result<std::vector<int32_t>> TemplateEncoder::Encode(const ChatPrompt& prompt) const {
  HW_ASSIGN_OR_RETURN(const MarkedText text, Render(prompt, LocalTime()));
  return EncodeFrom(text, 0);
}

std::optional<int32_t> TemplateEncoder::EndOfTurn() const {
  const ChatMessage exchange[] = {{.role = "user", .content = "Question?"},
                                  {.role = "assistant", .content = "Answer."}};
  const auto text = Render({.messages = exchange, .end = ChatEnd::kAsGiven}, LocalTime());
  if (!text.ok()) return std::nullopt;
  const size_t answer = text->text.rfind(exchange[1].content);
  if (answer == std::string::npos || !IsIn(text->from_context, answer)) return std::nullopt;
  const auto ids = EncodeFrom(*text, SkipSpace(*text, answer + exchange[1].content.size(), true));
  return ids.ok() && !ids->empty() && tokenizer_.IsSpecial(ids->front()) ? std::optional(ids->front()) : std::nullopt;
}

Result<NextTurn> TemplateEncoder::EncodeNextTurn(const ChatPrompt& prompt, AnswerEnd last_answer) const {
  // One time for both: a clock that goes on changes nothing of what was read.
  const std::tm now = LocalTime();
  HW_ASSIGN_OR_RETURN(const MarkedText whole, Render(prompt, now));
  const size_t num_before = prompt.messages.size() - 2;
  const ChatMessage& answer = prompt.messages[num_before];
  ChatPrompt prompt_before = prompt;
  prompt_before.messages = prompt.messages.first(num_before);
  const Result<MarkedText> before = Render(prompt_before, now);
  // Of an answer that has more than a text, nobody knows how the model wrote the rest.
  const std::optional<size_t> end =
      before.ok() && answer.json.empty() ? EndOfAnswer(whole, *before, answer.content) : std::nullopt;
  NextTurn turn{.goes_on = end.has_value(), .ids = {}};
  if (!end) {
    HW_ASSIGN_OR_RETURN(turn.ids, EncodeFrom(whole, 0));
    return turn;
  }
  // What stands before the end token belongs to the answer, whether the model wrote it or not.
  HW_ASSIGN_OR_RETURN(turn.ids, EncodeFrom(whole, SkipSpace(whole, *end, true)));
  const bool is_ended = !turn.ids.empty() && std::ranges::find(stop_ids_, turn.ids.front()) != stop_ids_.end();
  if (!is_ended) {
    HW_ASSIGN_OR_RETURN(turn.ids, EncodeFrom(whole, *end));
  } else if (last_answer == AnswerEnd::kClosed) {
    turn.ids.erase(turn.ids.begin());
  }
  return turn;
}

}  // namespace

Result<std::shared_ptr<const ChatEncoder>> MakeTemplateEncoder(const Tokenizer& tokenizer,
                                                               const ChatFormatOptions& options,
                                                               std::vector<ChatTemplateText> templates) {
  return TemplateEncoder::Make(tokenizer, options, std::move(templates));
}

}  // namespace headwise
