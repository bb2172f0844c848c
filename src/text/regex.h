// A regular expression from a tokenizer file, run by PCRE2 with Unicode properties. Tokenizer files are written for
// Oniguruma's Ruby syntax: what PCRE2 would read differently (set operations inside brackets) is refused, not guessed.
#ifndef HEADWISE_TEXT_REGEX_H_
#define HEADWISE_TEXT_REGEX_H_

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

// Move-only; safe to use from several threads at once.
class Regex {
 public:
  // `origin` opens every message of this object.
  static Result<Regex> Compile(std::string_view pattern, std::string_view origin);

  // Appends all matches, left to right, not overlapping. Every match may take a number of steps in proportion to the
  // text; a pattern that wants more (catastrophic backtracking) is an error. Requires: text is valid UTF-8.
  Status FindAll(std::string_view text, std::vector<TextSpan>& matches) const;

 private:
  struct Free {
    void operator()(pcre2_real_code_8* code) const;
  };
  Regex(pcre2_real_code_8* code, std::string origin) : code_(code), origin_(std::move(origin)) {}

  std::unique_ptr<pcre2_real_code_8, Free> code_;
  std::string origin_;
};

// A pattern that matches exactly `text`.
std::string EscapeForRegex(std::string_view text);

}  // namespace headwise

#endif  // HEADWISE_TEXT_REGEX_H_
