// A regular expression from a tokenizer file, run by PCRE2 with Unicode properties. Tokenizer files are written for
// Oniguruma's Ruby syntax: what PCRE2 would read differently is put in its words or refused (text/regex_syntax.h).
#ifndef HEADWISE_TEXT_REGEX_H_
#define HEADWISE_TEXT_REGEX_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <headwise/status.h>

struct pcre2_real_code_8;

namespace headwise {

// A half-open range of bytes.
struct TextSpan {
  size_t begin;
  size_t end;
};

// What patterns may still do to one text. Counted in characters looked at ahead of where a search stands, and in steps
// of backtracking, as far as they are more than a constant for every byte: the sum depends on pattern and text alone.
class PatternBudget {
 public:
  explicit PatternBudget(size_t text_bytes) : left_(kPerByte * text_bytes + kAtLeast) {}

  // False where it does not suffice.
  bool Spend(uint64_t work) {
    const bool suffices = work <= left_;
    left_ -= suffices ? work : left_;
    return suffices;
  }

  // Published patterns look at every character a few times. The rest is room for those that look ahead to the end of a
  // run of digits at every third of them: 10,000 digits are within it.
  static constexpr uint64_t kPerByte = 1024;
  static constexpr uint64_t kAtLeast = uint64_t{1} << 26;

 private:
  uint64_t left_;
};

// Move-only; safe to use from several threads at once.
class Regex {
 public:
  // `origin` opens every message of this object.
  static Result<Regex> Compile(std::string_view pattern, std::string_view origin);

  // Appends all matches, left to right, not overlapping. Every match may take a number of steps in proportion to the
  // text, and all of them together what `budget` has; a pattern that wants more (catastrophic backtracking, a look to
  // the end of the text from everywhere) is an error. Requires: text is valid UTF-8.
  Status FindAll(std::string_view text, PatternBudget& budget, std::vector<TextSpan>& matches) const;

 private:
  struct Free {
    void operator()(pcre2_real_code_8* code) const;
  };
  struct MatchState;
  struct Slice;
  Regex(pcre2_real_code_8* code, std::string_view pattern, std::string_view origin);
  // The first match that begins at `at` or behind; false where there is none.
  Result<bool> FindNext(std::string_view text, size_t at, const MatchState& state, PatternBudget& budget,
                        TextSpan& match) const;
  int Match(std::string_view text, const Slice& slice, const MatchState& state) const;
  Status TooMuch(std::string_view text) const;

  std::unique_ptr<pcre2_real_code_8, Free> code_;
  std::string pattern_;  // its beginning, for messages
  std::string origin_;
};

// A pattern that matches exactly `text`.
std::string EscapeForRegex(std::string_view text);

}  // namespace headwise

#endif  // HEADWISE_TEXT_REGEX_H_
