#include "text/jinja/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "text/jinja/strings.h"
#include "text/utf8.h"

namespace headwise::jinja {
namespace {

bool IsDigit(char c) {
  return c >= '0' && c <= '9';
}

bool IsHexDigit(char c) {
  return IsDigit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f');
}

// One kind of line end, and none at the end of the template.
std::string WithPlainLineEnds(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      text += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      text += source[i];
    }
  }
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

size_t SizeOfSpace(std::string_view text) {
  return text.size() - Strip(text, std::nullopt, StripSide::kLeft).size();
}

// Backslash sequences as in Python's string literals.
class Unescaper {
 public:
  explicit Unescaper(std::string_view literal) : rest_(literal) {}

  Result<std::string> Run() {
    while (!rest_.empty()) {
      const char c = Take();
      if (c == '\\' && !rest_.empty()) {
        HW_RETURN_IF_ERROR(Escape(Take()));
      } else {
        out_ += c;
      }
    }
    return std::move(out_);
  }

 private:
  char Take() {
    const char c = rest_[0];
    rest_.remove_prefix(1);
    return c;
  }

  Status Escape(char c) {
    static constexpr std::string_view kLetters = "\\'\"abfnrtv";
    static constexpr std::string_view kMeanings = "\\'\"\a\b\f\n\r\t\v";
    if (const size_t at = kLetters.find(c); at != std::string_view::npos) {
      out_ += kMeanings[at];
    } else if (c == 'x') {
      return Code(2, 2, 16);
    } else if (c == 'u') {
      return Code(4, 4, 16);
    } else if (c == 'U') {
      return Code(8, 8, 16);
    } else if (c >= '0' && c <= '7') {
      rest_ = {rest_.data() - 1, rest_.size() + 1};
      return Code(1, 3, 8);
    } else if (c == 'N') {
      return Status::InvalidInput("\\N in a string: characters by name are not supported, expected \\u");
    } else if (c != '\n') {
      // Not a sequence: both characters stay.
      out_ += '\\';
      out_ += c;
    }
    return Status::Ok();
  }

  Status Code(size_t min_digits, size_t max_digits, int base) {
    char32_t code = 0;
    size_t size = 0;
    for (; size < max_digits && size < rest_.size() && IsHexDigit(rest_[size]); ++size) {
      const char c = rest_[size];
      const int digit = IsDigit(c) ? c - '0' : (c | 0x20) - 'a' + 10;
      if (digit >= base) break;
      code = code * static_cast<char32_t>(base) + static_cast<char32_t>(digit);
    }
    if (size < min_digits) return Status::InvalidInput("a string with an incomplete \\x, \\u or \\U");
    if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) {
      return Status::InvalidInput(
          fmt::format("a string with \\u of {:x}, expected a character", static_cast<uint32_t>(code)));
    }
    rest_.remove_prefix(size);
    AppendUtf8(code, out_);
    return Status::Ok();
  }

  std::string_view rest_;
  std::string out_;
};

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  Result<std::vector<Token>> Run() {
    while (at_ < source_.size()) {
      if (Status status = Text(); !status.ok()) return std::move(status).Annotate(fmt::format("line {}", line_));
    }
    Push(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  enum class Tag { kNone, kBlock, kVariable, kComment };

  std::string_view Rest() const { return std::string_view(source_).substr(at_); }
  bool Starts(std::string_view with) const { return Rest().substr(0, with.size()) == with; }

  void Push(TokenKind kind, std::string_view text) { tokens_.push_back({kind, line_, std::string(text)}); }

  // Passes over so many bytes.
  void Advance(size_t size_bytes) {
    const std::string_view passed = Rest().substr(0, size_bytes);
    line_ += static_cast<int>(std::count(passed.begin(), passed.end(), '\n'));
    if (!passed.empty()) at_line_start_ = passed.back() == '\n';
    at_ += passed.size();
  }

  void PushText(std::string_view text) {
    if (!text.empty()) Push(TokenKind::kText, text);
  }

  // What of the text in front of a tag stays, by the sign behind the tag's opening.
  std::string_view Kept(std::string_view text, char sign, bool may_lstrip) const {
    if (sign == '-') return Strip(text, std::nullopt, StripSide::kRight);
    if (sign == '+' || !may_lstrip) return text;
    const size_t line_end = text.rfind('\n');
    const size_t line = line_end == std::string_view::npos ? 0 : line_end + 1;
    if (line == 0 && !at_line_start_) return text;
    return SizeOfSpace(text.substr(line)) == text.size() - line ? text.substr(0, line) : text;
  }

  // Text up to the next tag, and that tag.
  Status Text() {
    size_t begin = at_;
    Tag tag = Tag::kNone;
    for (; begin + 1 < source_.size(); ++begin) {
      if (source_[begin] != '{') continue;
      const char next = source_[begin + 1];
      tag = next == '%' ? Tag::kBlock : next == '{' ? Tag::kVariable : next == '#' ? Tag::kComment : Tag::kNone;
      if (tag != Tag::kNone) break;
    }
    if (tag == Tag::kNone) {
      PushText(Rest());
      Advance(Rest().size());
      return Status::Ok();
    }
    const char next = begin + 2 < source_.size() ? source_[begin + 2] : '\0';
    const char sign = next == '-' || next == '+' ? next : '\0';
    PushText(Kept(Rest().substr(0, begin - at_), sign, tag != Tag::kVariable));
    Advance(begin - at_);
    if (tag == Tag::kBlock) {
      if (const size_t size = SizeOfRawBegin()) {
        Advance(size);
        return Raw();
      }
    }
    const size_t begin_size = 2 + (sign != '\0');
    if (tag == Tag::kComment) {
      Advance(begin_size);
      return Comment();
    }
    Push(tag == Tag::kBlock ? TokenKind::kBlockBegin : TokenKind::kVariableBegin, Rest().substr(0, 2));
    Advance(begin_size);
    return Inside(tag);
  }

  // `%}` of that kind here, and the white space that it takes along; 0 if there is none.
  size_t SizeOfEnd(std::string_view end, bool may_plus, bool trims) const {
    const std::string_view rest = Rest();
    const bool has_sign = !rest.empty() && (rest[0] == '-' || (may_plus && rest[0] == '+'));
    if (rest.substr(has_sign, 2) != end) return 0;
    const size_t size = 2 + has_sign;
    if (has_sign) return rest[0] == '-' ? size + SizeOfSpace(rest.substr(size)) : size;
    return size + (trims && rest.substr(size, 1) == "\n");
  }

  // `{% NAME` here, for raw and endraw: up to behind the name. 0 if it is another tag.
  size_t SizeOfTagName(std::string_view name, char* sign) const {
    const std::string_view rest = Rest();
    if (rest.substr(0, 2) != "{%") return 0;
    size_t size = 2;
    *sign = size < rest.size() && (rest[size] == '-' || rest[size] == '+') ? rest[size] : '\0';
    size += *sign != '\0';
    size += SizeOfSpace(rest.substr(size));
    if (rest.substr(size, name.size()) != name) return 0;
    size += name.size();
    return size + SizeOfSpace(rest.substr(size));
  }

  size_t SizeOfRawBegin() {
    char sign = '\0';
    const size_t name = SizeOfTagName("raw", &sign);
    if (name == 0) return 0;
    const size_t before = at_;
    at_ += name;
    const size_t end = SizeOfEnd("%}", false, false);
    at_ = before;
    return end == 0 ? 0 : name + end;
  }

  Status Raw() {
    const size_t begin = at_;
    const int begin_line = line_;
    for (size_t found = begin; (found = source_.find("{%", found)) != std::string::npos; found += 2) {
      at_ = found;
      char sign = '\0';
      const size_t name = SizeOfTagName("endraw", &sign);
      if (name == 0) continue;
      at_ = found + name;
      const size_t end = SizeOfEnd("%}", true, true);
      if (end == 0) continue;
      at_ = begin;
      PushText(Kept(Rest().substr(0, found - begin), sign, true));
      Advance(found - begin + name + end);
      return Status::Ok();
    }
    line_ = begin_line;
    return Status::InvalidInput("{% raw %} has no end, expected {% endraw %}");
  }

  Status Comment() {
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos) return Status::InvalidInput("a comment has no end, expected #}");
    const char sign = end > at_ && (source_[end - 1] == '-' || source_[end - 1] == '+') ? source_[end - 1] : '\0';
    Advance(end - (sign != '\0') - at_);
    Advance(SizeOfEnd("#}", true, true));
    return Status::Ok();
  }

  Status Inside(Tag tag) {
    std::string open_brackets;
    while (true) {
      Advance(SizeOfSpace(Rest()));
      if (at_ >= source_.size()) return Status::Ok();  // the parser says what was expected
      const size_t end = !open_brackets.empty() ? 0
                         : tag == Tag::kBlock   ? SizeOfEnd("%}", true, true)
                                                : SizeOfEnd("}}", false, false);
      if (end > 0) {
        Push(tag == Tag::kBlock ? TokenKind::kBlockEnd : TokenKind::kVariableEnd, tag == Tag::kBlock ? "%}" : "}}");
        Advance(end);
        return Status::Ok();
      }
      HW_RETURN_IF_ERROR(One(open_brackets));
    }
  }

  Status One(std::string& open_brackets) {
    const std::string_view rest = Rest();
    if (IsDigit(rest[0]) || (rest[0] == '.' && rest.size() > 1 && IsDigit(rest[1]) && FloatSize(rest) > 0)) {
      Number();
      return Status::Ok();
    }
    if (rest[0] == '"' || rest[0] == '\'') return String();
    if (const size_t size = NameSize(rest)) {
      Push(TokenKind::kName, rest.substr(0, size));
      Advance(size);
      return Status::Ok();
    }
    return Operator(open_brackets);
  }

  static size_t NameSize(std::string_view rest) {
    size_t size = 0;
    while (size < rest.size()) {
      const Utf8Character character = FirstCharacter(rest.substr(size));
      if (!IsWord(character.code) || (size == 0 && IsDigit(rest[0]))) break;
      size += character.size_bytes;
    }
    return size;
  }

  // Digits with single _ between them.
  static size_t DigitsSize(std::string_view text) {
    size_t size = 0;
    while (size < text.size() && (IsDigit(text[size]) || (size > 0 && text[size] == '_' && text[size - 1] != '_' &&
                                                          size + 1 < text.size() && IsDigit(text[size + 1])))) {
      ++size;
    }
    return size;
  }

  // 0 if what is here is no float.
  size_t FloatSize(std::string_view rest) const {
    if (at_ > 0 && source_[at_ - 1] == '.') return 0;
    const size_t whole = DigitsSize(rest);
    if (whole == 0) return 0;
    size_t size = whole;
    if (rest.substr(size, 1) == ".") {
      const size_t fraction = DigitsSize(rest.substr(size + 1));
      if (fraction > 0) size += 1 + fraction;
    }
    if (size < rest.size() && (rest[size] == 'e' || rest[size] == 'E')) {
      const bool has_sign = size + 1 < rest.size() && (rest[size + 1] == '+' || rest[size + 1] == '-');
      const size_t exponent = DigitsSize(rest.substr(size + 1 + has_sign));
      if (exponent > 0) return size + 1 + has_sign + exponent;
    }
    return size > whole ? size : 0;
  }

  static size_t IntegerSize(std::string_view rest) {
    const char letter = rest.size() > 1 && rest[0] == '0' ? static_cast<char>(rest[1] | 0x20) : '\0';
    if (letter == 'x' || letter == 'o' || letter == 'b') {
      const auto fits = [&](char c) {
        return letter == 'x' ? IsHexDigit(c) : c >= '0' && c <= (letter == 'o' ? '7' : '1');
      };
      size_t size = 2;
      while (size < rest.size() &&
             (fits(rest[size]) || (rest[size] == '_' && size + 1 < rest.size() && fits(rest[size + 1])))) {
        ++size;
      }
      if (size > 2) return size;
    }
    const size_t digits = DigitsSize(rest);
    if (rest[0] != '0') return digits;
    return std::min(digits, rest.find_first_not_of("0_"));  // 07 is a zero and a seven
  }

  void Number() {
    const std::string_view rest = Rest();
    const size_t float_size = FloatSize(rest);
    const size_t size = float_size > 0 ? float_size : IntegerSize(rest);
    std::string digits(rest.substr(0, size));
    std::erase(digits, '_');
    Push(float_size > 0 ? TokenKind::kFloat : TokenKind::kInteger, digits);
    Advance(size);
  }

  Status String() {
    const std::string_view rest = Rest();
    size_t end = 1;
    while (end < rest.size() && rest[end] != rest[0]) end += rest[end] == '\\' ? 2 : 1;
    if (end >= rest.size()) return Status::InvalidInput(fmt::format("a string has no end, expected {}", rest[0]));
    HW_ASSIGN_OR_RETURN(const std::string text, Unescaper(rest.substr(1, end - 1)).Run());
    Push(TokenKind::kString, text);
    Advance(end + 1);
    return Status::Ok();
  }

  Status Operator(std::string& open_brackets) {
    static constexpr std::array<std::string_view, 26> kOperators = {"**", "//", "==", "!=", ">=", "<=", "+", "-", "/",
                                                                    "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                                    ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
    const auto found = std::find_if(kOperators.begin(), kOperators.end(), [&](auto one) { return Starts(one); });
    if (found == kOperators.end()) {
      return Status::InvalidInput(
          fmt::format("unexpected character '{}'", Rest().substr(0, FirstCharacter(Rest()).size_bytes)));
    }
    static constexpr std::string_view kOpening = "([{", kClosing = ")]}";
    if (kOpening.find((*found)[0]) != std::string_view::npos) open_brackets += (*found)[0];
    if (const size_t closes = kClosing.find((*found)[0]); closes != std::string_view::npos) {
      if (open_brackets.empty() || open_brackets.back() != kOpening[closes]) {
        return Status::InvalidInput(fmt::format(
            "unexpected '{}'{}", *found,
            open_brackets.empty() ? ""
                                  : fmt::format(", expected '{}'", kClosing[kOpening.find(open_brackets.back())])));
      }
      open_brackets.pop_back();
    }
    Push(TokenKind::kOperator, *found);
    Advance(found->size());
    return Status::Ok();
  }

  const std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool at_line_start_ = true;  // the last tag took the line's end along, or nothing came yet
  std::vector<Token> tokens_;
};

}  // namespace

Result<std::vector<Token>> Tokenize(std::string_view source) {
  return Lexer(WithPlainLineEnds(source)).Run();
}

std::string Describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::kEnd:
      return "the end of the template";
    case TokenKind::kString:
      return "a string";
    case TokenKind::kText:
      return "text";
    default:
      return "'" + token.text + "'";
  }
}

}  // namespace headwise::jinja
