#include "server/tool_syntax.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <random>
#include <utility>

#include "base/json.h"

namespace headwise {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::string_view kBeginCall = "<tool_call>";
constexpr std::string_view kEndCall = "</tool_call>";
constexpr std::string_view kSpaces = " \t\r\n";

bool HasAny(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::ranges::any_of(words, [&](std::string_view word) { return text.find(word) != text.npos; });
}

bool IsHermes(ToolSyntax syntax) {
  return syntax == ToolSyntax::kHermes || syntax == ToolSyntax::kGeneric;
}

std::string_view MarkerOf(ToolSyntax syntax) {
  return syntax == ToolSyntax::kMistral ? kMistralMarker : kBeginCall;
}

// In front of the arguments, the name between them.
constexpr std::string_view kHeaderBegin = "{\"name\": \"";
std::string HeaderEnd(ToolSyntax syntax) {
  return fmt::format("\", \"{}\": ", syntax == ToolSyntax::kLlama ? "parameters" : "arguments");
}

std::string BeginOf(ToolSyntax syntax, const ApiTool& tool) {
  const std::string begin = fmt::format("{}{}{}", kHeaderBegin, tool.name, HeaderEnd(syntax));
  return IsHermes(syntax) ? fmt::format("{}\n{}", kBeginCall, begin) : begin;
}

// Mistral's templates take ids of nine letters and digits alone.
std::string NewCallId(ToolSyntax syntax) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
  const bool is_short = syntax == ToolSyntax::kMistral;
  std::string id = is_short ? "" : "call_";
  std::random_device random;
  for (size_t i = 0; i < (is_short ? 9 : 24); ++i) id += kLetters[random() % kLetters.size()];
  return id;
}

// How much of the end of `text` may be the beginning of `word`.
size_t OpenEnd(std::string_view text, std::string_view word) {
  for (size_t size = std::min(text.size(), word.size() - 1); size > 0; --size) {
    if (text.ends_with(word.substr(0, size))) return size;
  }
  return 0;
}

void OpenArguments(OrderedJson& message) {
  if (!message.contains("tool_calls") || !message["tool_calls"].is_array()) return;
  for (OrderedJson& call : message["tool_calls"]) {
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object()) continue;
    OrderedJson& function = call["function"];
    if (!function.contains("arguments") || !function["arguments"].is_string()) continue;
    const auto text = function["arguments"].get<std::string>();
    // Parsed with bounds first: what a client sends is as deep as he likes.
    if (!ParseJson(text, "arguments").ok()) continue;
    auto arguments = OrderedJson::parse(text, nullptr, false);
    if (arguments.is_object()) function["arguments"] = std::move(arguments);
  }
}

// A call or a result as the generic form has it.
std::string PlainText(const OrderedJson& message) {
  std::string text =
      message.contains("content") && message["content"].is_string() ? message["content"].get<std::string>() : "";
  if (message["role"] == "tool") return fmt::format("<tool_response>\n{}\n</tool_response>", text);
  if (!message.contains("tool_calls") || !message["tool_calls"].is_array()) return text;
  for (const OrderedJson& call : message["tool_calls"]) {
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object()) continue;
    const OrderedJson& function = call["function"];
    const auto field = [&](const char* name) { return function.contains(name) ? function[name].dump() : "{}"; };
    text += fmt::format("{}{}\n{{\"name\": {}, \"arguments\": {}}}\n{}", text.empty() ? "" : "\n", kBeginCall,
                        field("name"), field("arguments"), kEndCall);
  }
  return text;
}

std::string Instruction(const std::string& tools_json) {
  std::string text = "You can call functions. These are there, each with a JSON schema of its arguments:\n";
  for (const OrderedJson& tool : OrderedJson::parse(tools_json, nullptr, false)) {
    text += tool["function"].dump() + "\n";
  }
  return text + fmt::format(
                    "To call one, write its name and its arguments as JSON:\n{}\n{{\"name\": \"...\", \"arguments\": "
                    "{{...}}}}\n{}\nIts result follows between <tool_response> and </tool_response>.",
                    kBeginCall, kEndCall);
}

std::vector<ChatMessage> InPlainText(const std::vector<ChatMessage>& messages, const std::string& tools_json) {
  std::vector<ChatMessage> plain;
  bool was_tool = false;
  for (const ChatMessage& message : messages) {
    ChatMessage next = {.role = message.role, .content = message.content};
    const bool is_tool = message.role == "tool";
    if (!message.json.empty()) {
      OrderedJson json = OrderedJson::parse(message.json, nullptr, false);
      OpenArguments(json);
      const bool is_call = message.role == "assistant" && json.contains("tool_calls");
      if (is_tool || is_call) {
        next.content = PlainText(json);
      } else {
        next.json = message.json;
      }
    } else if (is_tool) {
      next.content = PlainText({{"role", "tool"}, {"content", message.content}});
    }
    if (is_tool) next.role = "user";
    // Most forms want users and assistants in turn.
    if (was_tool && next.role == "user" && next.json.empty()) {
      plain.back().content += "\n" + next.content;
    } else {
      plain.push_back(std::move(next));
    }
    was_tool = is_tool || (was_tool && message.role == "user");
  }
  if (tools_json.empty()) return plain;
  const bool has_system = !plain.empty() && plain.front().role == "system" && plain.front().json.empty();
  if (!has_system) plain.insert(plain.begin(), {.role = "system", .content = ""});
  std::string& system = plain.front().content;
  system += (system.empty() ? "" : "\n\n") + Instruction(tools_json);
  return plain;
}

}  // namespace

ToolSyntax FindToolSyntax(std::string_view chat_template) {
  if (!HasAny(chat_template, {"tools"})) return ToolSyntax::kGeneric;
  if (HasAny(chat_template, {kMistralMarker})) {
    // Later ones write the name in front of its arguments, outside JSON.
    return HasAny(chat_template, {"[ARGS]", "[CALL_ID]"}) ? ToolSyntax::kGeneric : ToolSyntax::kMistral;
  }
  if (HasAny(chat_template, {kBeginCall})) {
    // Calls of XML stand between the same words.
    return HasAny(chat_template, {"<arg_key>", "<function="}) ? ToolSyntax::kGeneric : ToolSyntax::kHermes;
  }
  return HasAny(chat_template, {"\"parameters\": ", "<|python_tag|>"}) && HasAny(chat_template, {"ipython"})
             ? ToolSyntax::kLlama
             : ToolSyntax::kGeneric;
}

std::optional<int32_t> CallMarker(ToolSyntax syntax, const Tokenizer& tokenizer) {
  if (syntax != ToolSyntax::kMistral) return std::nullopt;
  const auto id = tokenizer.IdOf(kMistralMarker);
  return id && tokenizer.IsSpecial(*id) ? id : std::nullopt;
}

CallGrammar MakeCallGrammar(ToolSyntax syntax, const ApiTools& tools, std::optional<int32_t> marker,
                            const GrammarSource* form) {
  CallGrammar calls;
  for (const ApiTool& tool : tools.tools) {
    const std::string end = IsHermes(syntax) ? fmt::format("}}\n{}", kEndCall) : "}";
    calls.calls.push_back({.begin = BeginOf(syntax, tool), .schema = tool.schema, .end = end});
  }
  calls.several = tools.several;
  calls.marker = marker;
  if (IsHermes(syntax)) {
    calls.separator = "\n";
    calls.trigger = kBeginCall;
    calls.text = CallGrammar::Text::kBefore;
  } else if (syntax == ToolSyntax::kLlama) {
    calls.several = false;
    calls.text = CallGrammar::Text::kOr;
  } else {
    calls.open = "[";
    calls.separator = ", ";
    calls.close = "]";
    calls.text = CallGrammar::Text::kBefore;
    if (!marker) {
      calls.open = fmt::format("{}[", kMistralMarker);
      calls.trigger = calls.open;
    }
  }
  if (tools.must_call) {
    calls.text = CallGrammar::Text::kNone;
  } else if (form != nullptr) {
    calls.text = CallGrammar::Text::kForm;
    calls.form = *form;
  }
  return calls;
}

std::vector<std::string> CallBeginnings(ToolSyntax syntax, const ApiTools& tools) {
  if (syntax == ToolSyntax::kMistral) return {std::string(kMistralMarker)};
  std::vector<std::string> beginnings;
  for (const ApiTool& tool : tools.tools) beginnings.push_back(BeginOf(syntax, tool));
  return beginnings;
}

std::vector<ChatMessage> MessagesWithTools(ToolSyntax syntax, const std::vector<ChatMessage>& messages,
                                           const std::string& tools_json) {
  const bool has_calls = std::ranges::any_of(messages, [](const ChatMessage& message) {
    return message.role == "tool" || message.json.find("\"tool_calls\"") != std::string::npos;
  });
  if (syntax == ToolSyntax::kGeneric && (has_calls || !tools_json.empty())) return InPlainText(messages, tools_json);
  std::vector<ChatMessage> opened = messages;
  for (ChatMessage& message : opened) {
    if (message.json.empty()) continue;
    OrderedJson json = OrderedJson::parse(message.json, nullptr, false);
    OpenArguments(json);
    message.json = json.dump();
  }
  return opened;
}

void ToolCallReader::Show(std::string_view text, Piece& piece) {
  const size_t last = text.find_last_not_of(kSpaces);
  if (last != text.npos) {
    piece.text += space_;
    piece.text += text.substr(0, last + 1);
    space_.clear();
  }
  space_ += text.substr(last == text.npos ? 0 : last + 1);
}

void ToolCallReader::ReadText(Piece& piece) {
  if (syntax_ == ToolSyntax::kLlama) {
    Show(std::exchange(rest_, {}), piece);
    return;
  }
  const std::string_view marker = MarkerOf(syntax_);
  const size_t at = rest_.find(marker);
  if (at != std::string::npos) {
    Show(std::string_view(rest_).substr(0, at), piece);
    space_.clear();
    rest_.erase(0, at + marker.size());
    state_ = State::kHeader;
    return;
  }
  const size_t num_held = OpenEnd(rest_, marker);
  Show(std::string_view(rest_).substr(0, rest_.size() - num_held), piece);
  rest_.erase(0, rest_.size() - num_held);
}

bool ToolCallReader::ReadHeader(Piece& piece) {
  const size_t begin = rest_.find(kHeaderBegin);
  if (begin == std::string::npos) return false;
  const size_t name = begin + kHeaderBegin.size();
  const std::string header_end = HeaderEnd(syntax_);
  const size_t end = rest_.find(header_end, name);
  // With the first byte of the arguments: before it there are none.
  if (end == std::string::npos || end + header_end.size() == rest_.size()) return false;
  piece.calls.push_back({.index = num_calls_++, .id = NewCallId(syntax_), .name = rest_.substr(name, end - name)});
  rest_.erase(0, end + header_end.size());
  state_ = State::kArguments;
  depth_ = 0;
  in_string_ = false;
  is_escaped_ = false;
  return true;
}

void ToolCallReader::ReadArguments(Piece& piece) {
  size_t end = 0;
  for (; end < rest_.size() && state_ == State::kArguments; ++end) {
    const char c = rest_[end];
    if (in_string_) {
      in_string_ = is_escaped_ || c != '"';
      is_escaped_ = !is_escaped_ && c == '\\';
    } else if (c == '"') {
      in_string_ = true;
    } else if (c == '{' || c == '[') {
      ++depth_;
    } else if (c == '}' || c == ']') {
      if (depth_ == 0) {  // what the arguments stand in: they were no object
        state_ = State::kAfter;
        break;
      }
      if (--depth_ == 0) state_ = State::kAfter;
    }
  }
  const std::string arguments = rest_.substr(0, end);
  rest_.erase(0, end);
  if (arguments.empty()) return;
  if (piece.calls.empty() || piece.calls.back().index + 1 != num_calls_) {
    piece.calls.push_back({.index = num_calls_ - 1});
  }
  piece.calls.back().arguments += arguments;
}

// The end of a call: whether there is more to look at.
bool ToolCallReader::ReadAfter() {
  if (IsHermes(syntax_)) {
    const size_t at = rest_.find(kEndCall);
    if (at == std::string::npos) return false;
    rest_.erase(0, at + kEndCall.size());
    state_ = State::kText;
    return true;
  }
  const size_t at = rest_.find_first_of(",]");
  if (syntax_ == ToolSyntax::kMistral && at == std::string::npos) return false;
  state_ = syntax_ == ToolSyntax::kMistral && rest_[at] == ',' ? State::kHeader : State::kOver;
  return true;
}

std::optional<ToolCallReader::State> ToolCallReader::ReadBegin() const {
  const State call = syntax_ == ToolSyntax::kLlama ? State::kHeader : State::kText;
  if (beginnings_.empty()) {
    const size_t first = rest_.find_first_not_of(kSpaces);
    if (first == std::string::npos) return std::nullopt;
    return rest_[first] == '{' ? call : State::kText;
  }
  const auto begins = [&](const std::string& beginning) { return rest_.starts_with(beginning); };
  if (std::ranges::any_of(beginnings_, begins)) return call;
  const auto may_begin = [&](const std::string& beginning) { return beginning.starts_with(rest_); };
  return std::ranges::any_of(beginnings_, may_begin) ? std::nullopt : std::optional(State::kForm);
}

ToolCallReader::Piece ToolCallReader::Push(std::string_view text) {
  Piece piece;
  rest_ += text;
  bool goes_on = true;
  while (goes_on && !rest_.empty()) {
    switch (state_) {
      case State::kBegin: {
        const std::optional<State> next = ReadBegin();
        goes_on = next.has_value();
        if (next) state_ = *next;
        break;
      }
      case State::kForm:
        piece.text += std::exchange(rest_, {});
        break;
      case State::kText:
        ReadText(piece);
        goes_on = state_ != State::kText;
        break;
      case State::kHeader:
        goes_on = ReadHeader(piece);
        break;
      case State::kArguments:
        ReadArguments(piece);
        break;
      case State::kAfter:
        goes_on = ReadAfter();
        break;
      case State::kOver:
        rest_.clear();
        break;
    }
  }
  return piece;
}

ToolCallReader::Piece ToolCallReader::Finish() {
  Piece piece;
  const bool is_text = state_ == State::kBegin || state_ == State::kText;
  if (is_text && num_calls_ == 0) piece.text = space_ + rest_;
  if (is_text && num_calls_ > 0 && rest_.find_first_not_of(kSpaces) != std::string::npos) piece.text = space_ + rest_;
  space_.clear();
  rest_.clear();
  return piece;
}

}  // namespace headwise
