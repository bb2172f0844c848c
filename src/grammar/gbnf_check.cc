#include "grammar/gbnf_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace headwise {
namespace {

constexpr size_t kMaxBytes = 64 << 10;
constexpr size_t kMaxDepth = 64;
// Of one part of the text, repetitions inside others multiplied.
constexpr int64_t kMaxCopies = 4096;
// Of all parts.
constexpr int64_t kMaxTotalCopies = 65536;

// Where the quoted text or the class that begins at `at` ends: behind its last character.
size_t EndOfQuoted(std::string_view text, size_t at) {
  const char end = text[at] == '[' ? ']' : text[at];
  for (++at; at < text.size() && text[at] != end; ++at) at += text[at] == '\\' ? 1 : 0;
  return std::min(at + 1, text.size());
}

// The larger number of "{m,n}" at `at`, or nothing where that is no repetition.
std::optional<int64_t> Repetition(std::string_view text, size_t at) {
  int64_t largest = 0;
  int64_t number = 0;
  bool has_digit = false;
  for (++at; at < text.size() && text[at] != '}'; ++at) {
    const char c = text[at];
    if (c == ',' || c == ' ') {
      number = 0;
    } else if (std::isdigit(static_cast<unsigned char>(c)) != 0) {
      has_digit = true;
      number = std::min(number * 10 + (c - '0'), kMaxCopies * kMaxCopies);
      largest = std::max(largest, number);
    } else {
      return std::nullopt;
    }
  }
  return has_digit && at < text.size() ? std::optional(std::max<int64_t>(largest, 1)) : std::nullopt;
}

// Reads an expression once. A group's number of copies is the most that any of its parts has.
class RepetitionReader {
 public:
  RepetitionReader(std::string_view text, std::string_view what, bool has_quotes)
      : text_(text), what_(what), has_quotes_(has_quotes) {}

  Status Read() {
    for (size_t i = 0; i < text_.size();) {
      const char c = text_[i];
      if (c == '\\') {
        i += 2;
        last_ = 1;
      } else if (c == '[' || (c == '"' && has_quotes_)) {
        i = EndOfQuoted(text_, i);
        last_ = 1;
      } else if (c == '#' && has_quotes_) {
        while (i < text_.size() && text_[i] != '\n') ++i;
      } else {
        HW_RETURN_IF_ERROR(ReadSign(i));
        ++i;
      }
    }
    return Status::Ok();
  }

 private:
  Status ReadSign(size_t at) {
    const char c = text_[at];
    if (c == '(') {
      if (open_.size() == kMaxDepth) {
        return Status::InvalidInput(fmt::format("{}: byte {}: brackets nest deeper than {}", what_, at, kMaxDepth));
      }
      open_.push_back(most_);
      most_ = 1;
    } else if (c == ')' && !open_.empty()) {
      last_ = most_;
      most_ = std::max(most_, open_.back());
      open_.pop_back();
    } else if (c == '{') {
      const auto times = Repetition(text_, at);
      if (!times) return Status::Ok();
      last_ *= *times;
      most_ = std::max(most_, last_);
      total_ += last_;
      if (last_ > kMaxCopies || total_ > kMaxTotalCopies) {
        return Status::InvalidInput(
            fmt::format("{}: byte {}: repetitions make more than {} copies of what they "
                        "repeat, or {} in all",
                        what_, at, kMaxCopies, kMaxTotalCopies));
      }
      last_ = 1;
    } else if (c != '}' && c != ',' && std::isspace(static_cast<unsigned char>(c)) == 0 &&
               std::isdigit(static_cast<unsigned char>(c)) == 0) {
      last_ = 1;
    }
    return Status::Ok();
  }

  std::string_view text_;
  std::string_view what_;
  bool has_quotes_;
  std::vector<int64_t> open_;  // copies in the groups that are open, before them
  int64_t most_ = 1;           // in the group that is open now
  int64_t last_ = 1;           // of what was read last
  int64_t total_ = 0;
};

// Options between a rule's name and its "::=" say how it is matched, which llama.cpp's grammars have not.
std::optional<size_t> FindRuleOptions(std::string_view text) {
  for (size_t at = text.find("::="); at != std::string_view::npos; at = text.find("::=", at + 3)) {
    const size_t before = text.substr(0, at).find_last_not_of(" \t\r\n");
    if (before != std::string_view::npos && text[before] == ']') {
      const size_t line = text.substr(0, before).rfind('\n');
      const std::string_view head = text.substr(line + 1, before - line - 1);
      const bool is_name =
          !head.empty() && (std::isalpha(static_cast<unsigned char>(head.front())) != 0 || head.front() == '_');
      if (is_name && head.find_first_of("\"#") == std::string_view::npos) return before;
    }
  }
  return std::nullopt;
}

}  // namespace

Status CheckRepetition(std::string_view text, std::string_view what) {
  return RepetitionReader(text, what, false).Read();
}

Status CheckGbnf(std::string_view text) {
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) {
    return Status::InvalidInput("grammar: is empty, expected rules with the root \"root\"");
  }
  if (text.size() > kMaxBytes) {
    return Status::InvalidInput(fmt::format("grammar: has {} bytes, expected at most {}", text.size(), kMaxBytes));
  }
  if (const auto at = FindRuleOptions(text)) {
    return Status::InvalidInput(
        fmt::format("grammar: byte {}: a rule has options in front of its \"::=\", which are not supported", *at));
  }
  return RepetitionReader(text, "grammar", true).Read();
}

}  // namespace headwise
