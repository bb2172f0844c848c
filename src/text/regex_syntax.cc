#include "text/regex_syntax.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>
#include <vector>

namespace headwise {
namespace {

// Members of a class. White space is spelled out, which every version of PCRE2 takes and matches fastest; what PCRE2
// calls \s has U+180E too, which left Unicode's White_Space long ago.
constexpr std::string_view kSpaces =
    R"(\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
// Oniguruma's words have the superscripts and fractions of Latin-1, and no other numbers than digits.
constexpr std::string_view kWords = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE})";
constexpr std::string_view kHexDigits = "0-9A-Fa-f";

using Names = std::pair<std::string_view, std::string_view>;
constexpr Names kPosixClasses[] = {
    {"alnum", R"(\p{Alphabetic}\p{Nd})"},
    {"alpha", R"(\p{Alphabetic})"},
    {"ascii", R"(\x00-\x7F)"},
    {"blank", R"(\t\p{Zs})"},
    {"cntrl", R"(\p{Cc})"},
    {"digit", R"(\p{Nd})"},
    {"lower", R"(\p{Lowercase})"},
    {"punct", R"(\p{P}\p{S})"},
    {"space", kSpaces},
    {"upper", R"(\p{Uppercase})"},
    {"word", kWords},
    {"xdigit", kHexDigits},
};
// A bare script's name is in PCRE2 also what only occurs in that script's texts, such as the ideographic full stop.
constexpr std::string_view kScripts[] = {"Arabic", "Bengali",  "Cyrillic", "Devanagari", "Greek", "Han", "Hangul",
                                         "Hebrew", "Hiragana", "Katakana", "Latin",      "Tamil", "Thai"};

bool IsDigit(char c) {
  return c >= '0' && c <= '9';
}

class Translation {
 public:
  Translation(std::string_view pattern, std::string_view origin) : pattern_(pattern), origin_(origin) {}

  Result<std::string> Run() {
    while (at_ < pattern_.size()) HW_RETURN_IF_ERROR(Step());
    return std::move(out_);
  }

 private:
  static constexpr size_t kNone = std::string_view::npos;

  char Look(size_t ahead = 0) const { return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0'; }
  void Copy(size_t count) {
    count = std::min(count, pattern_.size() - at_);
    out_.append(pattern_.substr(at_, count));
    at_ += count;
  }
  Status Unsupported(std::string_view what) const {
    return Status::Unsupported(fmt::format("{}: pattern with {}: {}", origin_, what, pattern_));
  }

  void SetAtom(size_t begin) {
    atom_ = begin;
    is_repeated_ = false;
  }
  // Before a quantifier. What has one already is repeated as a whole, for which PCRE2 wants a group.
  void Repeat() {
    if (is_repeated_ && atom_ != kNone) {
      out_.insert(atom_, "(?:");
      out_.push_back(')');
    }
    is_repeated_ = true;
  }

  Status Step() {
    const char c = Look();
    if (c == '(') return Open();
    if (c == '{') return Interval();
    if (c == '*' || c == '+' || c == '?') {
      Repeat();
      Copy(Look(1) == '+' || Look(1) == '?' ? 2 : 1);  // possessive, or lazy
      return Status::Ok();
    }
    if (c == ')') {
      Copy(1);
      SetAtom(groups_.empty() ? kNone : groups_.back());
      if (!groups_.empty()) groups_.pop_back();
      return Status::Ok();
    }
    if (c == '|') {
      Copy(1);
      SetAtom(kNone);
      return Status::Ok();
    }
    SetAtom(out_.size());
    if (c == '[') return Class();
    if (c == '\\') return Escape(Place::kOutside);
    Copy(1);
    while ((static_cast<unsigned char>(Look()) & 0xC0) == 0x80) Copy(1);
    return Status::Ok();
  }

  Status Open() {
    if (Look(1) == '?' && Look(2) == '#') {
      const size_t end = pattern_.find(')', at_);
      at_ = end == kNone ? pattern_.size() : end + 1;
      return Status::Ok();
    }
    const size_t begin = out_.size();
    if (Look(1) != '?') {
      Copy(1);
    } else {
      const size_t letters = at_ + 2;
      const size_t end = std::min(pattern_.size(), pattern_.find_first_not_of("imx-", letters));
      const bool is_options = end > letters && end < pattern_.size() && (pattern_[end] == ':' || pattern_[end] == ')');
      if (is_options) return Options(pattern_.substr(letters, end - letters), end);
      Copy(Look(2) == '<' ? 4 : 3);  // (?<= and (?<!, or a name's first letter
    }
    groups_.push_back(begin);
    SetAtom(kNone);
    inside_ = out_.size();
    return Status::Ok();
  }

  // (?i) and (?i:, where m is for what PCRE2 calls s.
  Status Options(std::string_view letters, size_t end) {
    if (letters.find('x') != kNone) return Unsupported("extended syntax");
    const bool is_group = pattern_[end] == ':';
    // In the midst of a group these would reach over its alternatives.
    const bool begins = out_.empty() || (!groups_.empty() && inside_ == out_.size());
    if (!is_group && !begins) return Unsupported("options in the midst of a group");
    if (is_group) groups_.push_back(out_.size());
    out_ += "(?";
    for (const char letter : letters) out_.push_back(letter == 'm' ? 's' : letter);
    out_.push_back(pattern_[end]);
    at_ = end + 1;
    SetAtom(kNone);
    inside_ = out_.size();
    return Status::Ok();
  }

  // {2}, {2,}, {,3}, {2,3}; all else is text. A + behind one, and behind one number a ?, is a repetition of its own.
  Status Interval() {
    const size_t end = pattern_.find('}', at_);
    const std::string_view inside = pattern_.substr(at_ + 1, end == kNone ? kNone : end - at_ - 1);
    const size_t comma = inside.find(',');
    const bool is_interval = atom_ != kNone && end != kNone && inside.size() > (comma == kNone ? 0u : 1u) &&
                             std::all_of(inside.begin(), inside.end(), [](char c) { return IsDigit(c) || c == ','; }) &&
                             std::count(inside.begin(), inside.end(), ',') <= 1;
    if (!is_interval) {
      SetAtom(out_.size());
      out_ += "\\{";
      ++at_;
      return Status::Ok();
    }
    Repeat();
    out_ += comma == 0 ? "{0" : "{";
    out_.append(inside).push_back('}');
    at_ = end + 1;
    if (Look() == '?' && comma != kNone) Copy(1);  // lazy
    return Status::Ok();
  }

  enum class Place { kOutside, kInside };  // of brackets

  Status Escape(Place place) {
    const char c = Look(1);
    const bool is_outside = place == Place::kOutside;
    switch (c) {
      case 'G':
        return is_outside ? Unsupported("\\G, the beginning of a search") : (Copy(2), Status::Ok());
      case 's':
      case 'S':
        return Members(kSpaces, R"(\P{White_Space})", c == 'S', place);
      case 'w':
      case 'W':
        return Members(kWords, {}, c == 'W', place);
      case 'h':
      case 'H':
        return Members(kHexDigits, {}, c == 'H', place);
      case 'p':
      case 'P':
        Property();
        return Status::Ok();
      case 'u':
        out_ += fmt::format("\\x{{{}}}", pattern_.substr(std::min(at_ + 2, pattern_.size()), 4));
        at_ = std::min(at_ + 6, pattern_.size());
        return Status::Ok();
      default:
        break;
    }
    const size_t end = Look(2) == '{' ? pattern_.find('}', at_) : kNone;
    Copy(end != kNone && (c == 'x' || c == 'k' || c == 'g' || c == 'o') ? end + 1 - at_ : 2);
    while ((static_cast<unsigned char>(Look()) & 0xC0) == 0x80) Copy(1);
    return Status::Ok();
  }

  // A class by its members; `others` are those that it lacks, as members, where they have a name.
  Status Members(std::string_view members, std::string_view others, bool is_negated, Place place) {
    if (place == Place::kOutside) {
      out_.append(is_negated ? "[^" : "[").append(members).push_back(']');
    } else if (!is_negated) {
      out_ += members;
    } else if (!others.empty()) {
      out_ += others;
    } else {
      return Unsupported(fmt::format("{} inside brackets", pattern_.substr(at_, 2)));
    }
    at_ += 2;
    return Status::Ok();
  }

  void Property() {
    const size_t end = Look(2) == '{' ? pattern_.find('}', at_) : kNone;
    if (end == kNone) return Copy(2);
    std::string_view name = pattern_.substr(at_ + 3, end - at_ - 3);
    Copy(3);
    if (name.starts_with('^')) {
      Copy(1);
      name.remove_prefix(1);
    }
    if (std::find(std::begin(kScripts), std::end(kScripts), name) != std::end(kScripts)) out_ += "sc:";
    Copy(name.size() + 1);
  }

  Status Class() {
    Copy(Look(1) == '^' ? 2 : 1);
    // No class is empty.
    if (Look() == ']' && pattern_.find(']', at_ + 1) != kNone) {
      out_.push_back('\\');
      Copy(1);
    }
    while (at_ < pattern_.size()) {
      const char c = Look();
      if (c == '\\') {
        HW_RETURN_IF_ERROR(Escape(Place::kInside));
      } else if (c == '[' && Look(1) == ':') {
        HW_RETURN_IF_ERROR(PosixClass());
      } else if (c == '[' || (c == '&' && Look(1) == '&')) {
        return Unsupported("a set operation inside brackets");
      } else {
        Copy(1);
        if (c == ']') break;
      }
    }
    return Status::Ok();
  }

  Status PosixClass() {
    const size_t end = pattern_.find(":]", at_ + 2);
    if (end == kNone) return Unsupported("a set operation inside brackets");
    const std::string_view name = pattern_.substr(at_ + 2, end - at_ - 2);
    const auto* known = std::find_if(std::begin(kPosixClasses), std::end(kPosixClasses),
                                     [&](const Names& n) { return n.first == name; });
    if (known != std::end(kPosixClasses)) {
      out_ += known->second;
    } else if (name == "^space") {
      out_ += R"(\P{White_Space})";
    } else {
      return Unsupported(fmt::format("the class [:{}:]", name));
    }
    at_ = end + 2;
    return Status::Ok();
  }

  std::string_view pattern_;
  std::string_view origin_;
  size_t at_ = 0;
  std::string out_;
  size_t atom_ = kNone;         // where in `out_` begins what a quantifier would repeat
  bool is_repeated_ = false;    // whether a quantifier is there already
  std::vector<size_t> groups_;  // where in `out_` those begin that are open
  size_t inside_ = 0;           // where in `out_` the last group's inside begins
};

}  // namespace

Result<std::string> ToPcreSyntax(std::string_view pattern, std::string_view origin) {
  return Translation(pattern, origin).Run();
}

}  // namespace headwise
