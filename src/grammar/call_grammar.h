// Answers that call functions, as templates write them: text, and calls in a syntax of their own.
#ifndef HEADWISE_GRAMMAR_CALL_GRAMMAR_H_
#define HEADWISE_GRAMMAR_CALL_GRAMMAR_H_

#include <headwise/grammar.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace headwise {

struct CallGrammar {
  // One function: begin, JSON that the schema accepts, end.
  struct Call {
    std::string begin;
    std::string schema;  // normalised (grammar/schema_check.h)
    std::string end;
  };
  std::vector<Call> calls;  // at least one
  std::string open;         // in front of the first call
  std::string separator;    // between two
  std::string close;        // behind the last one
  bool several = true;      // more than one call

  enum class Text {
    kNone,    // the answer is calls and nothing else
    kBefore,  // text, and calls wherever `trigger` begins them: how `open` begins, or where that is empty every call
    kOr,      // calls, or a text that does not begin as they do: with "{"
    kForm,    // calls, or a text that `form` has: which of the two is seen from how it begins
  };
  Text text = Text::kNone;
  std::string trigger = {};
  GrammarSource form = {};
  // A token that comes before `open` and cannot be written as text. With kBefore anything may come until it does.
  std::optional<int32_t> marker = std::nullopt;
};

}  // namespace headwise

#endif  // HEADWISE_GRAMMAR_CALL_GRAMMAR_H_
