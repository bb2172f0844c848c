#include "text/jinja/format.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "text/jinja/interpreter.h"
#include "text/jinja/numbers.h"
#include "text/jinja/strings.h"

namespace headwise::jinja {
namespace {

// Wider fields are nobody's wish.
constexpr int64_t kMaxWidth = 1000;

struct Spec {
  char fill = ' ';
  char align = '\0';  // < > ^ or = (between sign and digits)
  bool plus = false, blank = false, alternate = false, zero = false, comma = false;
  int64_t width = 0;
  int64_t precision = -1;
  char type = '\0';
};

Status BadForm(std::string_view why) {
  return Status::InvalidInput(fmt::format("a form to fill in: {}", why));
}

Result<int64_t> TakeNumber(std::string_view& rest) {
  int64_t number = 0;
  while (!rest.empty() && rest[0] >= '0' && rest[0] <= '9') {
    number = number * 10 + (rest[0] - '0');
    if (number > kMaxWidth) return BadForm(fmt::format("a width of more than {}", kMaxWidth));
    rest.remove_prefix(1);
  }
  return number;
}

std::string WithSign(const Spec& spec, bool is_negative, std::string digits) {
  return (is_negative ? "-" : spec.plus ? "+" : spec.blank ? " " : "") + std::move(digits);
}

void AddCommas(std::string& digits) {
  const size_t end = std::min(digits.find_first_not_of("0123456789"), digits.size());
  for (size_t at = end; at > 3;) digits.insert(at -= 3, ",");
}

std::string IntegerDigits(const Spec& spec, int64_t number) {
  const uint64_t size = number < 0 ? 0 - static_cast<uint64_t>(number) : static_cast<uint64_t>(number);
  std::string digits = spec.type == 'x'   ? fmt::format("{}{:x}", spec.alternate ? "0x" : "", size)
                       : spec.type == 'X' ? fmt::format("{}{:X}", spec.alternate ? "0X" : "", size)
                       : spec.type == 'o' ? fmt::format("{}{:o}", spec.alternate ? "0o" : "", size)
                       : spec.type == 'b' ? fmt::format("{}{:b}", spec.alternate ? "0b" : "", size)
                                          : fmt::format("{}", size);
  if (spec.comma) AddCommas(digits);
  return WithSign(spec, number < 0, std::move(digits));
}

std::string FloatDigits(const Spec& spec, double number) {
  const bool is_negative = std::signbit(number) && !std::isnan(number);
  const double size = std::abs(number);
  const int precision = spec.precision < 0 ? 6 : static_cast<int>(spec.precision);
  std::string digits;
  if (!std::isfinite(size)) {
    digits = std::isnan(size) ? "nan" : "inf";
  } else if (spec.type == 'e' || spec.type == 'E') {
    digits = fmt::format("{:.{}e}", size, precision);
  } else if (spec.type == 'g' || spec.type == 'G') {
    digits = fmt::format("{:.{}g}", size, std::max(precision, 1));
  } else if (spec.type == '%') {
    digits = FloatFixed(size * 100, precision) + "%";
  } else {
    digits = FloatFixed(size, precision);
  }
  if (spec.comma) AddCommas(digits);
  if (spec.type == 'E' || spec.type == 'G') std::transform(digits.begin(), digits.end(), digits.begin(), ::toupper);
  return WithSign(spec, is_negative, std::move(digits));
}

// `text` in its field. Numbers are aligned to the right by themselves.
void AppendField(const Spec& spec, const MarkedString& text, bool is_number, MarkedBuffer& out) {
  const int64_t missing = spec.width - CountCharacters(text.view());
  const char align = spec.align ? spec.align : is_number ? '>' : '<';
  const int64_t before = missing <= 0 ? 0 : align == '>' ? missing : align == '^' ? missing / 2 : 0;
  const auto fill = [&](int64_t count) {
    if (count > 0) out.Append(std::string(static_cast<size_t>(count), spec.fill), Origin::kTemplate);
  };
  if (missing > 0 && align == '=') {
    const bool has_sign = !text.empty() && std::string_view("+- ").find(text.view()[0]) != std::string_view::npos;
    out.Append(text.Substr(0, has_sign));
    fill(missing);
    out.Append(text.Substr(has_sign, text.size()));
    return;
  }
  fill(before);
  out.Append(text);
  if (missing > 0) fill(missing - before);
}

MarkedString Prefix(const MarkedString& text, int64_t num_characters) {
  return num_characters < 0 ? text : text.Substr(0, ByteOfCharacter(text.view(), num_characters));
}

Status AppendNumber(const Spec& spec, const Value& value, MarkedBuffer& out) {
  if (value.is_undefined()) return Status::InvalidInput(value.UndefinedMessage());
  if (!value.is_number()) return BadForm(fmt::format("a {} for %{}, expected a number", value.type_name(), spec.type));
  const bool is_float = std::string_view("feEgGF%").find(spec.type) != std::string_view::npos;
  std::string digits;
  if (is_float) {
    digits = FloatDigits(spec, value.number());
  } else if (value.is_integer()) {
    digits = IntegerDigits(spec, value.integer());
  } else {
    const double whole = std::trunc(value.number());
    if (!(std::abs(whole) < 9.2e18)) return BadForm("a number beyond 64 bits");
    digits = IntegerDigits(spec, static_cast<int64_t>(whole));
  }
  AppendField(spec, MarkedString(digits, value.origin()), true, out);
  return Status::Ok();
}

// ---- '%s' % x ----

class PercentForm {
 public:
  PercentForm(Interpreter& interpreter, const MarkedString& form, const Value& values)
      : interpreter_(interpreter), form_(form), values_(values), rest_(form.view()) {}

  Result<Value> Run() {
    while (!rest_.empty()) {
      const size_t percent = std::min(rest_.find('%'), rest_.size());
      out_.Append(form_.Part(rest_.substr(0, percent)));
      rest_.remove_prefix(percent);
      if (!rest_.empty()) HW_RETURN_IF_ERROR(Field());
    }
    if (HasValuesLeft()) return BadForm("more values than fields");
    return interpreter_.NewString(std::move(out_));
  }

 private:
  // What has items by key may be left as it is: it might have been meant for %(name)s.
  bool HasValuesLeft() const {
    switch (values_.type()) {
      case Type::kTuple:
        return !uses_names_ && next_ < values_.items().size();
      case Type::kList:
      case Type::kDict:
      case Type::kRange:
      case Type::kUndefined:
        return false;
      default:
        return !uses_names_ && next_ == 0;
    }
  }

  Result<Value> Next() {
    if (uses_names_) return named_;
    if (values_.type() == Type::kTuple) {
      if (next_ >= values_.items().size()) return BadForm("fewer values than fields");
      return values_.items()[next_++];
    }
    if (next_++ > 0) return BadForm("fewer values than fields");
    return values_;
  }

  Status Name() {
    const size_t end = rest_.find(')');
    if (end == std::string_view::npos) return BadForm("%( without )");
    if (values_.type() != Type::kDict) return BadForm("%(name) expects a dict");
    const Value* found = values_.dict().Find(rest_.substr(1, end - 1));
    if (!found) return BadForm(fmt::format("no value is called '{}'", rest_.substr(1, std::min<size_t>(end - 1, 100))));
    named_ = *found;
    uses_names_ = true;
    rest_.remove_prefix(end + 1);
    return Status::Ok();
  }

  Status Flags(Spec& spec) {
    for (; !rest_.empty(); rest_.remove_prefix(1)) {
      const char c = rest_[0];
      if (c == '-')
        spec.align = '<';
      else if (c == '+')
        spec.plus = true;
      else if (c == ' ')
        spec.blank = true;
      else if (c == '#')
        spec.alternate = true;
      else if (c == '0')
        spec.zero = true;
      else
        break;
    }
    HW_ASSIGN_OR_RETURN(spec.width, TakeNumber(rest_));
    if (rest_.substr(0, 1) == ".") {
      rest_.remove_prefix(1);
      HW_ASSIGN_OR_RETURN(spec.precision, TakeNumber(rest_));
    }
    if (spec.align != '<') spec.align = '>';
    return Status::Ok();
  }

  Status Field() {
    rest_.remove_prefix(1);
    Spec spec;
    if (rest_.substr(0, 1) == "(") HW_RETURN_IF_ERROR(Name());
    HW_RETURN_IF_ERROR(Flags(spec));
    if (rest_.empty()) return BadForm("ends behind %");
    spec.type = rest_[0];
    rest_.remove_prefix(1);
    if (spec.type == '%') {
      out_.Append("%", Origin::kTemplate);
      return Status::Ok();
    }
    if (std::string_view("srdixXofFeEgGuc").find(spec.type) == std::string_view::npos) {
      return BadForm(fmt::format("%{} is unknown", spec.type));
    }
    HW_ASSIGN_OR_RETURN(const Value value, Next());
    if (spec.type == 's' || spec.type == 'r' || spec.type == 'c') return Text(spec, value);
    if (spec.zero && spec.align != '<') {
      spec.align = '=';
      spec.fill = '0';
    }
    return AppendNumber(spec, value, out_);
  }

  Status Text(const Spec& spec, const Value& value) {
    MarkedString text;
    if (spec.type == 'r') {
      MarkedBuffer repr;
      HW_RETURN_IF_ERROR(interpreter_.AppendReprText(value, repr));
      HW_RETURN_IF_ERROR(interpreter_.Make(repr.num_bytes()));
      text = MarkedString(std::move(repr));
    } else {
      HW_ASSIGN_OR_RETURN(text, interpreter_.ToText(value));
    }
    HW_RETURN_IF_ERROR(interpreter_.Make(text.size()));
    AppendField(spec, Prefix(text, spec.precision), false, out_);
    return Status::Ok();
  }

  Interpreter& interpreter_;
  const MarkedString& form_;
  const Value& values_;
  std::string_view rest_;
  MarkedBuffer out_;
  size_t next_ = 0;
  bool uses_names_ = false;
  Value named_;
};

// ---- '{}'.format(x) ----

class BracesForm {
 public:
  BracesForm(Interpreter& interpreter, const MarkedString& form, const CallArgs& args)
      : interpreter_(interpreter), form_(form), args_(args), rest_(form.view()) {}

  Result<Value> Run() {
    while (!rest_.empty()) {
      const size_t brace = std::min(rest_.find_first_of("{}"), rest_.size());
      out_.Append(form_.Part(rest_.substr(0, brace)));
      rest_.remove_prefix(brace);
      if (rest_.empty()) break;
      if (rest_.size() > 1 && rest_[1] == rest_[0]) {
        out_.Append(form_.Part(rest_.substr(0, 1)));
        rest_.remove_prefix(2);
        continue;
      }
      const size_t end = rest_.find('}');
      if (rest_[0] == '}' || end == std::string_view::npos) return BadForm("a single brace");
      HW_RETURN_IF_ERROR(Field(rest_.substr(1, end - 1)));
      rest_.remove_prefix(end + 1);
    }
    return interpreter_.NewString(std::move(out_));
  }

 private:
  Result<Value> Named(std::string_view name) {
    if (name.find_first_not_of("0123456789") == std::string_view::npos) {
      size_t at = next_;
      if (!name.empty()) {
        HW_ASSIGN_OR_RETURN(const int64_t number, TakeNumber(name));
        at = static_cast<size_t>(number);
      } else {
        ++next_;
      }
      if (at >= args_.values.size()) return BadForm("fewer values than fields");
      return args_.values[at];
    }
    for (const auto& [known, value] : args_.named) {
      if (known == name) return value;
    }
    return BadForm(fmt::format("no value is called '{}'", name.substr(0, 100)));
  }

  Result<Value> Found(std::string_view path) {
    const size_t name_end = std::min(path.find_first_of(".["), path.size());
    HW_ASSIGN_OR_RETURN(Value value, Named(path.substr(0, name_end)));
    path.remove_prefix(name_end);
    while (!path.empty()) {
      if (path[0] == '.') {
        const size_t end = std::min(path.find_first_of(".[", 1), path.size());
        HW_ASSIGN_OR_RETURN(value, interpreter_.Attribute(value, path.substr(1, end - 1)));
        path.remove_prefix(end);
      } else {
        const size_t end = path.find(']');
        if (path[0] != '[' || end == std::string_view::npos) return BadForm("[ without ]");
        const std::string_view key = path.substr(1, end - 1);
        const ParsedInt index = ParseInt(key, 10);
        HW_ASSIGN_OR_RETURN(value,
                            interpreter_.Item(value, index.value ? Value::Int(*index.value) : Value::String(key)));
        path.remove_prefix(end + 1);
      }
      if (value.is_undefined()) return Status::InvalidInput(value.UndefinedMessage());
    }
    return value;
  }

  static Result<Spec> ParseSpec(std::string_view text) {
    Spec spec;
    static constexpr std::string_view kAligns = "<>^=";
    if (text.size() > 1 && kAligns.find(text[1]) != std::string_view::npos) {
      spec.fill = text[0];
      spec.align = text[1];
      text.remove_prefix(2);
    } else if (!text.empty() && kAligns.find(text[0]) != std::string_view::npos) {
      spec.align = text[0];
      text.remove_prefix(1);
    }
    for (; !text.empty() && std::string_view("+- #0").find(text[0]) != std::string_view::npos; text.remove_prefix(1)) {
      spec.plus |= text[0] == '+';
      spec.blank |= text[0] == ' ';
      spec.alternate |= text[0] == '#';
      if (text[0] == '0') {
        spec.zero = true;
        break;
      }
    }
    if (spec.zero && !spec.align) {
      spec.fill = '0';
      spec.align = '=';
    }
    HW_ASSIGN_OR_RETURN(spec.width, TakeNumber(text));
    if (text.substr(0, 1) == ",") {
      spec.comma = true;
      text.remove_prefix(1);
    }
    if (text.substr(0, 1) == ".") {
      text.remove_prefix(1);
      HW_ASSIGN_OR_RETURN(spec.precision, TakeNumber(text));
    }
    if (!text.empty()) {
      spec.type = text[0];
      text.remove_prefix(1);
    }
    if (!text.empty() || (spec.type && std::string_view("sdxXobfFeEgG%").find(spec.type) == std::string_view::npos)) {
      return BadForm("an unknown way to write a value");
    }
    return spec;
  }

  Status Field(std::string_view field) {
    const size_t colon = std::min(field.find(':'), field.size());
    std::string_view path = field.substr(0, colon);
    char conversion = '\0';
    if (path.size() >= 2 && path[path.size() - 2] == '!') {
      conversion = path.back();
      path.remove_suffix(2);
    }
    HW_ASSIGN_OR_RETURN(Value value, Found(path));
    if (conversion == 'r') {
      MarkedBuffer repr;
      HW_RETURN_IF_ERROR(interpreter_.AppendReprText(value, repr));
      HW_ASSIGN_OR_RETURN(value, interpreter_.NewString(std::move(repr)));
    } else if (conversion == 's') {
      HW_ASSIGN_OR_RETURN(const MarkedString text, interpreter_.ToText(value));
      value = Value::String(text);
    } else if (conversion) {
      return BadForm(fmt::format("!{} is unknown", conversion));
    }
    HW_ASSIGN_OR_RETURN(Spec spec, ParseSpec(colon < field.size() ? field.substr(colon + 1) : ""));
    const bool is_text = value.is_string() || (spec.type == '\0' && spec.precision < 0 && !spec.comma);
    if (!is_text) {
      if (!spec.type) spec.type = value.is_integer() ? 'd' : 'g';
      return AppendNumber(spec, value, out_);
    }
    if (spec.type && spec.type != 's') return BadForm(fmt::format("a str for '{}'", spec.type));
    if (value.is_string() && spec.align == '=') return BadForm("'=' aligns numbers alone");
    HW_ASSIGN_OR_RETURN(const MarkedString text, interpreter_.ToText(value));
    HW_RETURN_IF_ERROR(interpreter_.Make(text.size()));
    AppendField(spec, Prefix(text, spec.precision), value.is_number(), out_);
    return Status::Ok();
  }

  Interpreter& interpreter_;
  const MarkedString& form_;
  const CallArgs& args_;
  std::string_view rest_;
  MarkedBuffer out_;
  size_t next_ = 0;
};

}  // namespace

Result<Value> FormatPercent(Interpreter& interpreter, const MarkedString& form, const Value& values) {
  return PercentForm(interpreter, form, values).Run();
}

Result<Value> FormatBraces(Interpreter& interpreter, const MarkedString& form, const CallArgs& args) {
  return BracesForm(interpreter, form, args).Run();
}

}  // namespace headwise::jinja
