// Filters of strings and numbers.
#include <algorithm>
#include <cmath>

#include "text/jinja/filter_help.h"
#include "text/jinja/format.h"
#include "text/jinja/numbers.h"
#include "text/jinja/print.h"
#include "text/jinja/strings.h"
#include "text/utf8.h"

namespace headwise::jinja {
namespace {

// str(input), and whether it is markup.
struct Text {
  MarkedString text;
  bool is_markup;
};
Result<Text> TextOf(Interpreter& interpreter, const Value& input) {
  HW_ASSIGN_OR_RETURN(MarkedString text, interpreter.ToText(input));
  HW_RETURN_IF_ERROR(interpreter.SpendOnBytes(text.size(), 16));
  return Text{std::move(text), input.is_markup()};
}

Value Like(const Text& of, MarkedString text) {
  return of.is_markup ? Value::Markup(std::move(text)) : Value::String(std::move(text));
}

template <Case to>
Result<Value> CaseFilter(Interpreter& interpreter, const Value& input, const CallArgs& args) {
  HW_RETURN_IF_ERROR(BindNothing(args));
  HW_ASSIGN_OR_RETURN(const Text text, TextOf(interpreter, input));
  return interpreter.NewString(MapCase(text.text, to), text.is_markup);
}

Result<Value> Title(Interpreter& interpreter, const Value& input, const CallArgs& args) {
  HW_RETURN_IF_ERROR(BindNothing(args));
  HW_ASSIGN_OR_RETURN(const Text text, TextOf(interpreter, input));
  return interpreter.NewString(TitleOfWords(text.text));
}

Result<Value> Trim(Interpreter& interpreter, const Value& input, const CallArgs& args) {
  HW_ASSIGN_OR_RETURN(const auto found, Bind(args, {"chars"}, 0));
  HW_ASSIGN_OR_RETURN(const Text text, TextOf(interpreter, input));
  std::optional<std::string_view> chars;
  if (found[0] && !found[0]->is_none()) {
    if (!found[0]->is_string()) return StringArg(found[0], "chars").status();
    chars = found[0]->view();
    HW_RETURN_IF_ERROR(interpreter.SpendOnBytes(text.text.size(), chars->size()));
  }
  return Like(text, text.text.Part(Strip(text.text.view(), chars, StripSide::kBoth)));
}

Result<Value> ReplaceFilter(Interpreter& interpreter, const Value& input, const CallArgs& args) {
  HW_ASSIGN_OR_RETURN(const auto found, Bind(args, {"old", "new", "count"}, 2));
  HW_ASSIGN_OR_RETURN(const Text text, TextOf(interpreter, input));
  HW_ASSIGN_OR_RETURN(const MarkedString from, interpreter.ToText(*found[0]));
  HW_ASSIGN_OR_RETURN(const MarkedString to, interpreter.ToText(*found[1]));
  const bool is_limited = found[2] && !found[2]->is_none();
  HW_ASSIGN_OR_RETURN(const int64_t count, IntArg(is_limited ? found[2] : nullptr, "count", -1));
  HW_RETURN_IF_ERROR(interpreter.SpendOnBytes(text.text.size(), from.size()));
  const int64_t occurrences = CountPart(text.text.view(), from.view());
  const int64_t times = count < 0 ? occurrences : std::min(count, occurrences);
  HW_RETURN_IF_ERROR(interpreter.Make(static_cast<size_t>(times) * (to.size() + 2 * sizeof(size_t))));
  return interpreter.NewString(Replace(text.text, from.view(), to, count));
}

Result<Value> StringFilter(Interpreter& interpreter, const Value& input, const CallArgs& args) {
  HW_RETURN_IF_ERROR(BindNothing(args));
  HW_ASSIGN_OR_RETURN(const Text text, TextOf(interpreter, input));
  return Like(text, text.text);
}

Result<Value> Safe(Interpreter& interpreter, const Value& input, const CallArgs& args) {
  HW_RETURN_IF_ERROR(BindNothing(args));
  HW_ASSIGN_OR_RETURN(const Text text, TextOf(interpreter, input));
  return Value::Markup(text.text);
}

template <bool again>
Result<Value> Escape(Interpreter& interpreter, const Value& input, const CallArgs& args) {
  HW_RETURN_IF_ERROR(BindNothing(args));
  if (!again && input.is_markup()) return input;
  HW_ASSIGN_OR_RETURN(const Text text, TextOf(interpreter, input));
  HW_RETURN_IF_ERROR(interpreter.Make(text.text.size()));
  return interpreter.NewString(EscapeHtml(text.text), true);
}

Result<Value> Indent(Interpreter& interpreter, const Value& input, const CallArgs& args) {
  HW_ASSIGN_OR_RETURN(const auto found, Bind(args, {"width", "first", "blank"}, 0));
  if (input.is_undefined()) return Status::InvalidInput(input.UndefinedMessage());
  if (!input.is_string()) return Status::InvalidInput(fmt::format("a {}, expected str", input.type_name()));
  HW_ASSIGN_OR_RETURN(const bool indents_first, TruthArg(found[1], false));
  HW_ASSIGN_OR_RETURN(const bool indents_blank, TruthArg(found[2], false));
  MarkedString indention("    ", Origin::kTemplate);
  if (found[0] && found[0]->is_string()) {
    indention = found[0]->string();
  } else if (found[0]) {
    HW_ASSIGN_OR_RETURN(const int64_t width, IntArg(found[0], "width", 4));
    HW_RETURN_IF_ERROR(interpreter.Make(static_cast<size_t>(std::max<int64_t>(width, 0))));
    indention = MarkedString(std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' '), Origin::kTemplate);
  }
  const MarkedString& text = input.string();
  HW_RETURN_IF_ERROR(interpreter.SpendOnBytes(text.size(), 16));
  std::vector<std::string_view> lines = SplitLines(text.view(), false);
  // An end of line at the end begins one more, which is empty.
  if (text.empty() || text.view().substr(text.size() - 1) == "\n" ||
      SplitLines(text.view(), true).back().size() != lines.back().size()) {
    lines.push_back(text.view().substr(text.size()));
  }
  HW_RETURN_IF_ERROR(interpreter.Make(lines.size() * (indention.size() + sizeof(std::string_view) + sizeof(size_t))));
  MarkedBuffer out;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out.Append("\n", text.empty() ? Origin::kTemplate : text.OriginAt(0));
    if (i == 0 ? indents_first : indents_blank || !lines[i].empty()) out.Append(indention);
    out.Append(text.Part(lines[i]));
  }
  return interpreter.NewString(std::move(out), input.is_markup());
}

Result<Value> Center(Interpreter& interpreter, const Value& input, const CallArgs& args) {
  HW_ASSIGN_OR_RETURN(const auto found, Bind(args, {"width"}, 0));
  HW_ASSIGN_OR_RETURN(const Text text, TextOf(interpreter, input));
  CallArgs width;
  width.values.push_back(found[0] ? *found[0] : Value::Int(80));
  return FindMethod(Type::kString, "center")(interpreter, Like(text, text.text), width);
}

Result<Value> Truncate(Interpreter& interpreter, const Value& input, const CallArgs& args) {
  HW_ASSIGN_OR_RETURN(const auto found, Bind(args, {"length", "killwords", "end", "leeway"}, 0));
  HW_ASSIGN_OR_RETURN(const int64_t length, IntArg(found[0], "length", 255));
  HW_ASSIGN_OR_RETURN(const bool kills_words, TruthArg(found[1], false));
  MarkedString end("...", Origin::kTemplate);
  if (found[2]) {
    HW_ASSIGN_OR_RETURN(end, StringArg(found[2], "end"));
  }
  HW_ASSIGN_OR_RETURN(const int64_t leeway, IntArg(found[3] && !found[3]->is_none() ? found[3] : nullptr, "leeway", 5));
  HW_ASSIGN_OR_RETURN(const int64_t input_length, interpreter.Length(input));
  const int64_t end_size = CountCharacters(end.view());
  if (length < end_size || leeway < 0) return Status::InvalidInput("a length shorter than what is put at the end");
  if (length >= INT64_MAX - leeway || input_length <= length + leeway) return input;
  if (!input.is_string()) return Status::InvalidInput(fmt::format("a {}, expected str", input.type_name()));
  const MarkedString& text = input.string();
  std::string_view kept = text.view().substr(0, ByteOfCharacter(text.view(), length - end_size));
  if (!kills_words) kept = kept.substr(0, std::min(kept.rfind(' '), kept.size()));
  HW_RETURN_IF_ERROR(interpreter.Make(kept.size() + end.size()));
  MarkedBuffer out;
  out.Append(text.Part(kept));
  out.Append(input.is_markup() ? MarkedString(EscapeHtml(end)) : end);
  return interpreter.NewString(std::move(out), input.is_markup());
}

Result<Value> WordCount(Interpreter& interpreter, const Value& input, const CallArgs& args) {
  HW_RETURN_IF_ERROR(BindNothing(args));
  HW_ASSIGN_OR_RETURN(const Text text, TextOf(interpreter, input));
  int64_t count = 0;
  bool in_word = false;
  for (std::string_view rest = text.text.view(); !rest.empty();) {
    const Utf8Character character = FirstCharacter(rest);
    rest.remove_prefix(character.size_bytes);
    const std::string_view one(rest.data() - character.size_bytes, character.size_bytes);
    const bool is_word = AreAll(one, CharacterClass::kAlnum) || character.code == '_';
    count += is_word && !in_word;
    in_word = is_word;
  }
  return Value::Int(count);
}

Result<Value> FormatFilter(Interpreter& interpreter, const Value& input, const CallArgs& args) {
  HW_ASSIGN_OR_RETURN(const Text text, TextOf(interpreter, input));
  if (!args.values.empty() && !args.named.empty()) return Status::InvalidInput("arguments with and without names");
  if (args.named.empty()) {
    HW_ASSIGN_OR_RETURN(const Value values, interpreter.NewTuple(args.values));
    return FormatPercent(interpreter, text.text, values);
  }
  std::vector<std::pair<Value, Value>> entries;
  for (const auto& [name, value] : args.named) entries.emplace_back(Value::String(name), value);
  HW_ASSIGN_OR_RETURN(const Value values, interpreter.NewDict(std::move(entries)));
  return FormatPercent(interpreter, text.text, values);
}

Result<Value> ToJson(Interpreter& interpreter, const Value& input, const CallArgs& args) {
  HW_ASSIGN_OR_RETURN(const auto found, Bind(args, {"ensure_ascii", "indent", "separators", "sort_keys"}, 0));
  JsonStyle style;
  HW_ASSIGN_OR_RETURN(style.ensures_ascii, TruthArg(found[0], false));
  HW_ASSIGN_OR_RETURN(style.sorts_keys, TruthArg(found[3], false));
  // Every line may begin with many of them.
  constexpr size_t kMaxIndent = 1000;
  if (found[1] && found[1]->is_string()) {
    style.indent = found[1]->string();
  } else if (found[1] && !found[1]->is_none()) {
    HW_ASSIGN_OR_RETURN(const int64_t width, IntArg(found[1], "indent", 0));
    const auto size = static_cast<size_t>(std::clamp<int64_t>(width, 0, kMaxIndent + 1));
    style.indent = MarkedString(std::string(size, ' '), input.is_string() ? Origin::kTemplate : input.origin());
  }
  if (style.indent && style.indent->size() > kMaxIndent) {
    return Status::InvalidInput(fmt::format("an indent of more than {} characters", kMaxIndent));
  }
  style.item_separator = MarkedString(style.indent ? "," : ", ", Origin::kTemplate);
  style.key_separator = MarkedString(": ", Origin::kTemplate);
  if (found[2] && !found[2]->is_none()) {
    HW_ASSIGN_OR_RETURN(const std::vector<Value> both, interpreter.Iterate(*found[2]));
    if (both.size() != 2 || !both[0].is_string() || !both[1].is_string()) {
      return Status::InvalidInput("parameter 'separators': expected two str");
    }
    style.item_separator = both[0].string();
    style.key_separator = both[1].string();
  }
  MarkedBuffer json;
  HW_RETURN_IF_ERROR(interpreter.SpendOn(input));
  HW_RETURN_IF_ERROR(interpreter.AppendJsonText(input, style, json));
  return interpreter.NewString(std::move(json));
}

// ---- Numbers. ----

Result<Value> Int(Interpreter& interpreter, const Value& input, const CallArgs& args) {
  HW_ASSIGN_OR_RETURN(const auto found, Bind(args, {"default", "base"}, 0));
  HW_ASSIGN_OR_RETURN(const int64_t base, IntArg(found[1], "base", 10));
  const Value otherwise = found[0] ? *found[0] : Value::Int(0);
  if (input.is_undefined()) return Status::InvalidInput(input.UndefinedMessage());
  if (input.is_integer()) return Value::Int(input.integer(), input.origin());
  std::optional<double> number;
  if (input.is_string()) {
    HW_RETURN_IF_ERROR(interpreter.SpendOnBytes(input.string().size(), 16));
    if (base == 0 || (base >= 2 && base <= 36)) {
      const ParsedInt parsed = ParseInt(input.view(), static_cast<int>(base));
      if (parsed.overflows) return Status::InvalidInput("an integer of more than 64 bits, which are not supported");
      if (parsed.value) return Value::Int(*parsed.value, input.origin());
    }
    number = ParseFloat(input.view());
  } else if (input.type() == Type::kFloat) {
    number = input.number();
  }
  if (!number || !std::isfinite(*number)) return otherwise;
  if (std::abs(*number) >= 9223372036854775808.0) {
    return Status::InvalidInput("an integer of more than 64 bits, which are not supported");
  }
  return Value::Int(static_cast<int64_t>(*number), input.origin());
}

Result<Value> Float(Interpreter& interpreter, const Value& input, const CallArgs& args) {
  HW_ASSIGN_OR_RETURN(const auto found, Bind(args, {"default"}, 0));
  if (input.is_undefined()) return Status::InvalidInput(input.UndefinedMessage());
  if (input.is_number()) return Value::Float(input.number(), input.origin());
  if (input.is_string()) {
    HW_RETURN_IF_ERROR(interpreter.SpendOnBytes(input.string().size(), 16));
    if (const auto number = ParseFloat(input.view())) return Value::Float(*number, input.origin());
  }
  return found[0] ? *found[0] : Value::Float(0.0);
}

Status ExpectNumber(const Value& input) {
  if (input.is_undefined()) return Status::InvalidInput(input.UndefinedMessage());
  if (input.is_number()) return Status::Ok();
  return Status::InvalidInput(fmt::format("a {}, expected a number", input.type_name()));
}

Result<Value> Abs(Interpreter& interpreter, const Value& input, const CallArgs& args) {
  HW_RETURN_IF_ERROR(BindNothing(args));
  HW_RETURN_IF_ERROR(ExpectNumber(input));
  if (!input.is_integer()) return Value::Float(std::abs(input.number()), input.origin());
  if (input.integer() >= 0) return Value::Int(input.integer(), input.origin());
  return interpreter.Binary(BinaryOp::kSub, Value::Int(0), input);
}

// Python's round(): to even where it lies in the middle.
Result<Value> RoundCommon(const Value& input, int64_t precision) {
  if (!input.is_integer()) {
    const double number = input.number();
    if (!std::isfinite(number) || precision > 300) return input;
    if (precision >= 0) {
      return Value::Float(ParseFloat(FloatFixed(number, static_cast<int>(precision))).value_or(number), input.origin());
    }
    if (precision < -308) return Value::Float(std::copysign(0.0, number), input.origin());
    const double unit = std::pow(10.0, static_cast<double>(-precision));
    return Value::Float(std::nearbyint(number / unit) * unit, input.origin());
  }
  if (precision >= 0) return Value::Int(input.integer(), input.origin());
  if (precision < -18) return Value::Int(0, input.origin());
  int64_t unit = 1;
  for (int64_t i = precision; i < 0; ++i) unit *= 10;
  int64_t rest = input.integer() % unit;
  if (rest < 0) rest += unit;
  int64_t rounded = 0;
  const bool overflows = __builtin_sub_overflow(input.integer(), rest, &rounded);
  const bool is_odd = rounded / unit % 2 != 0;
  const bool goes_up = rest > unit - rest || (rest == unit - rest && is_odd);
  if (overflows || (goes_up && __builtin_add_overflow(rounded, unit, &rounded))) {
    return Status::InvalidInput("an integer of more than 64 bits, which are not supported");
  }
  return Value::Int(rounded, input.origin());
}

Result<Value> Round(Interpreter&, const Value& input, const CallArgs& args) {
  HW_ASSIGN_OR_RETURN(const auto found, Bind(args, {"precision", "method"}, 0));
  HW_ASSIGN_OR_RETURN(const int64_t precision, IntArg(found[0], "precision", 0));
  std::string_view method = "common";
  if (found[1]) {
    if (!found[1]->is_string()) return StringArg(found[1], "method").status();
    method = found[1]->view();
  }
  HW_RETURN_IF_ERROR(ExpectNumber(input));
  if (method == "common") return RoundCommon(input, precision);
  if (method != "ceil" && method != "floor") {
    return Status::InvalidInput(fmt::format("method '{}', expected common, ceil or floor", method.substr(0, 100)));
  }
  const double unit = std::pow(10.0, static_cast<double>(precision));
  const double number = input.number() * unit;
  if (!std::isfinite(number) || unit == 0) return Status::InvalidInput("a number too great to be rounded");
  return Value::Float((method == "ceil" ? std::ceil(number) : std::floor(number)) / unit, input.origin());
}

}  // namespace

const Filters& StringFilters() {
  static const Filters kFilters = {
      {"upper", CaseFilter<Case::kUpper>},
      {"lower", CaseFilter<Case::kLower>},
      {"capitalize", CaseFilter<Case::kCapitalize>},
      {"title", Title},
      {"trim", Trim},
      {"replace", ReplaceFilter},
      {"string", StringFilter},
      {"safe", Safe},
      {"e", Escape<false>},
      {"escape", Escape<false>},
      {"forceescape", Escape<true>},
      {"indent", Indent},
      {"center", Center},
      {"truncate", Truncate},
      {"wordcount", WordCount},
      {"format", FormatFilter},
      {"tojson", ToJson},
      {"int", Int},
      {"float", Float},
      {"abs", Abs},
      {"round", Round},
  };
  return kFilters;
}

}  // namespace headwise::jinja
