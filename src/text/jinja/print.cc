#include "text/jinja/print.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "text/jinja/call_args.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/numbers.h"
#include "text/jinja/strings.h"
#include "text/utf8.h"

namespace headwise::jinja {
namespace {

Status TooLong(size_t max_bytes) {
  return Status::InvalidInput(fmt::format("a value as text has more than {} bytes", max_bytes));
}

// repr of a string without its quotes: `quote` is escaped.
void AppendEscaped(std::string_view text, char quote, Origin origin, MarkedBuffer& out) {
  std::string escaped;
  while (!text.empty()) {
    const Utf8Character character = FirstCharacter(text);
    const auto code = static_cast<uint32_t>(character.code);
    if (character.code == static_cast<char32_t>(quote) || code == '\\') {
      escaped += '\\';
      escaped += static_cast<char>(code);
    } else if (code == '\n') {
      escaped += "\\n";
    } else if (code == '\r') {
      escaped += "\\r";
    } else if (code == '\t') {
      escaped += "\\t";
    } else if (IsPrintable(character.code)) {
      escaped += text.substr(0, character.size_bytes);
    } else if (code < 0x100) {
      escaped += fmt::format("\\x{:02x}", code);
    } else if (code < 0x10000) {
      escaped += fmt::format("\\u{:04x}", code);
    } else {
      escaped += fmt::format("\\U{:08x}", code);
    }
    text.remove_prefix(character.size_bytes);
  }
  out.Append(escaped, origin);
}

void AppendStringRepr(const Value& value, MarkedBuffer& out) {
  const std::string_view text = value.view();
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  const Origin origin = value.string().empty() ? Origin::kTemplate : value.string().OriginAt(0);
  if (value.is_markup()) out.Append("Markup(", origin);
  out.Append({&quote, 1}, origin);
  value.string().ForEachRun([&](std::string_view run, Origin of) { AppendEscaped(run, quote, of, out); });
  out.Append({&quote, 1}, origin);
  if (value.is_markup()) out.Append(")", origin);
}

class Printer {
 public:
  Printer(size_t max_bytes, MarkedBuffer& out) : max_bytes_(max_bytes), begin_(out.size()), out_(out) {}

  Status Repr(const Value& value, int depth = 0) {
    if (depth > 2 * kMaxValueDepth) return Status::InvalidInput("values nested too deeply to be printed");
    if (out_.size() - begin_ > max_bytes_) return TooLong(max_bytes_);
    const Origin origin = value.is_string() ? Origin::kTemplate : value.origin();
    switch (value.type()) {
      case Type::kUndefined:
        return Put("Undefined", origin);
      case Type::kNone:
        return Put("None", origin);
      case Type::kBool:
        return Put(value.boolean() ? "True" : "False", origin);
      case Type::kInt:
        return Put(fmt::format("{}", value.integer()), origin);
      case Type::kFloat:
        return Put(FloatRepr(value.number()), origin);
      case Type::kString:
        AppendStringRepr(value, out_);
        return out_.size() - begin_ > max_bytes_ ? TooLong(max_bytes_) : Status::Ok();
      case Type::kList:
        return Items("[", value.items(), "]", origin, depth);
      case Type::kTuple:
        return Items("(", value.items(), value.items().size() == 1 ? ",)" : ")", origin, depth);
      case Type::kDict:
        return Entries(value.dict(), origin, depth);
      case Type::kNamespace:
        HW_RETURN_IF_ERROR(Put("<Namespace ", origin));
        HW_RETURN_IF_ERROR(Entries(value.dict(), origin, depth));
        return Put(">", origin);
      case Type::kRange: {
        const auto& range = value.as<RangeObject>();
        const std::string step = range.step == 1 ? "" : fmt::format(", {}", range.step);
        return Put(fmt::format("range({}, {}{})", range.start, range.stop, step), origin);
      }
      case Type::kDictView: {
        const auto& view = value.as<DictViewObject>();
        static constexpr std::string_view kNames[] = {"dict_keys([", "dict_values([", "dict_items(["};
        return Items(kNames[static_cast<size_t>(view.part)], view.Items(), "])", origin, depth);
      }
      case Type::kLoop: {
        const auto& loop = value.as<LoopObject>();
        return Put(fmt::format("<LoopContext {}/{}>", loop.position + 1, loop.source.size()), origin);
      }
      case Type::kMacro: {
        const auto& macro = value.as<MacroObject>().statement;
        return Put(macro.name_id == 0 ? "<Macro anonymous>" : fmt::format("<Macro '{}'>", macro.name), origin);
      }
      default:
        return Put(fmt::format("<{}>", value.type_name()), origin);
    }
  }

 private:
  Status Put(std::string_view text, Origin origin) {
    out_.Append(text, origin);
    return Status::Ok();
  }

  Status Items(std::string_view open, const std::vector<Value>& items, std::string_view close, Origin origin,
               int depth) {
    HW_RETURN_IF_ERROR(Put(open, origin));
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) HW_RETURN_IF_ERROR(Put(", ", origin));
      HW_RETURN_IF_ERROR(Repr(items[i], depth + 1));
    }
    return Put(close, origin);
  }

  Status Entries(const DictObject& dict, Origin origin, int depth) {
    HW_RETURN_IF_ERROR(Put("{", origin));
    for (size_t i = 0; i < dict.entries.size(); ++i) {
      if (i > 0) HW_RETURN_IF_ERROR(Put(", ", origin));
      HW_RETURN_IF_ERROR(Repr(dict.entries[i].first, depth + 1));
      HW_RETURN_IF_ERROR(Put(": ", origin));
      HW_RETURN_IF_ERROR(Repr(dict.entries[i].second, depth + 1));
    }
    return Put("}", origin);
  }

  const size_t max_bytes_;
  const size_t begin_;
  MarkedBuffer& out_;
};

void AppendJsonEscaped(std::string_view text, bool ensures_ascii, Origin origin, MarkedBuffer& out) {
  std::string escaped;
  escaped.reserve(text.size());
  const auto unit = [&](uint32_t code) { escaped += fmt::format("\\u{:04x}", code); };
  static constexpr std::string_view kEscaped = "\"\\\n\r\t\f\b", kLetters = "\"\\nrtfb";
  for (size_t at = 0; at < text.size();) {
    const auto byte = static_cast<unsigned char>(text[at]);
    if (byte >= 0x80 && ensures_ascii) {
      const Utf8Character character = FirstCharacter(text.substr(at));
      const auto code = static_cast<uint32_t>(character.code);
      if (code >= 0x10000) {
        unit(0xD800 + ((code - 0x10000) >> 10));
        unit(0xDC00 + ((code - 0x10000) & 0x3FF));
      } else {
        unit(code);
      }
      at += character.size_bytes;
      continue;
    }
    if (const size_t special = kEscaped.find(text[at]); special != std::string_view::npos) {
      escaped += '\\';
      escaped += kLetters[special];
    } else if (byte < 0x20) {
      unit(byte);
    } else {
      escaped += text[at];
    }
    ++at;
  }
  out.Append(escaped, origin);
}

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, size_t max_bytes, MarkedBuffer& out)
      : style_(style), max_bytes_(max_bytes), begin_(out.size()), out_(out) {}

  Status Write(const Value& value, size_t depth = 0) {
    if (out_.size() - begin_ > max_bytes_) return TooLong(max_bytes_);
    const Origin origin = value.is_string() ? Origin::kTemplate : value.origin();
    switch (value.type()) {
      case Type::kNone:
      case Type::kBool:
      case Type::kInt:
      case Type::kFloat:
        out_.Append(Scalar(value), origin);
        return Status::Ok();
      case Type::kString:
        String(value.string());
        return out_.size() - begin_ > max_bytes_ ? TooLong(max_bytes_) : Status::Ok();
      case Type::kList:
      case Type::kTuple:
        return List(value.items(), origin, depth);
      case Type::kDict:
        return Dict(value.dict(), origin, depth);
      default:
        return Status::InvalidInput(value.is_undefined()
                                        ? fmt::format("{}, which JSON has no word for", value.UndefinedMessage())
                                        : fmt::format("a {} cannot be JSON", value.type_name()));
    }
  }

 private:
  static std::string Scalar(const Value& value) {
    switch (value.type()) {
      case Type::kNone:
        return "null";
      case Type::kBool:
        return value.boolean() ? "true" : "false";
      case Type::kInt:
        return fmt::format("{}", value.integer());
      default:
        break;
    }
    const double number = value.number();
    if (std::isnan(number)) return "NaN";
    if (std::isinf(number)) return number > 0 ? "Infinity" : "-Infinity";
    return FloatRepr(number);
  }

  void String(const MarkedString& text) {
    const Origin origin = text.empty() ? Origin::kTemplate : text.OriginAt(0);
    out_.Append("\"", origin);
    text.ForEachRun([&](std::string_view run, Origin of) { AppendJsonEscaped(run, style_.ensures_ascii, of, out_); });
    out_.Append("\"", origin);
  }

  Status Key(const Value& key) {
    if (key.is_string()) {
      String(key.string());
      return Status::Ok();
    }
    if (!key.is_number() && !key.is_none()) {
      return Status::InvalidInput(fmt::format("a {} as key cannot be JSON", key.type_name()));
    }
    out_.Append("\"" + Scalar(key) + "\"", key.origin());
    return Status::Ok();
  }

  void NewLine(size_t depth, Origin origin) {
    if (!style_.indent) return;
    out_.Append("\n", origin);
    for (size_t i = 0; i < depth; ++i) out_.Append(style_.indent->view(), origin);
  }

  Status List(const std::vector<Value>& items, Origin origin, size_t depth) {
    out_.Append("[", origin);
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_.Append(style_.item_separator.view(), origin);
      NewLine(depth + 1, origin);
      HW_RETURN_IF_ERROR(Write(items[i], depth + 1));
    }
    if (!items.empty()) NewLine(depth, origin);
    out_.Append("]", origin);
    return Status::Ok();
  }

  Status Dict(const DictObject& dict, Origin origin, size_t depth) {
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : dict.entries) entries.push_back(&entry);
    if (style_.sorts_keys) {
      Status status;
      std::stable_sort(entries.begin(), entries.end(), [&](const auto* a, const auto* b) {
        auto order = Compare(a->first, b->first);
        if (!order.ok()) status = std::move(order).status();
        return order.ok() && *order == -1;
      });
      HW_RETURN_IF_ERROR(std::move(status));
    }
    out_.Append("{", origin);
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) out_.Append(style_.item_separator.view(), origin);
      NewLine(depth + 1, origin);
      HW_RETURN_IF_ERROR(Key(entries[i]->first));
      out_.Append(style_.key_separator.view(), origin);
      HW_RETURN_IF_ERROR(Write(entries[i]->second, depth + 1));
    }
    if (!entries.empty()) NewLine(depth, origin);
    out_.Append("}", origin);
    return Status::Ok();
  }

  const JsonStyle& style_;
  const size_t max_bytes_;
  const size_t begin_;
  MarkedBuffer& out_;
};

}  // namespace

Status AppendRepr(const Value& value, size_t max_bytes, MarkedBuffer& out) {
  return Printer(max_bytes, out).Repr(value);
}

Status AppendStr(const Value& value, size_t max_bytes, MarkedBuffer& out) {
  if (value.is_undefined()) return Status::Ok();
  if (!value.is_string()) return AppendRepr(value, max_bytes, out);
  if (value.string().size() > max_bytes) return TooLong(max_bytes);
  out.Append(value.string());
  return Status::Ok();
}

Status AppendJson(const Value& value, const JsonStyle& style, size_t max_bytes, MarkedBuffer& out) {
  return JsonWriter(style, max_bytes, out).Write(value);
}

Status Interpreter::AppendText(const Value& value, MarkedBuffer& out) {
  return AppendStr(value, static_cast<size_t>(bytes_left_), out);
}

Status Interpreter::AppendReprText(const Value& value, MarkedBuffer& out) {
  return AppendRepr(value, static_cast<size_t>(bytes_left_), out);
}

Status Interpreter::AppendJsonText(const Value& value, const JsonStyle& style, MarkedBuffer& out) {
  return AppendJson(value, style, static_cast<size_t>(bytes_left_), out);
}

Result<MarkedString> Interpreter::ToText(const Value& value) {
  if (value.is_string()) return value.string();
  MarkedBuffer text;
  HW_RETURN_IF_ERROR(AppendText(value, text));
  HW_RETURN_IF_ERROR(Make(text.num_bytes()));
  return MarkedString(std::move(text));
}

}  // namespace headwise::jinja
