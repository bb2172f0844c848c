// Tokenizer files write their patterns for Oniguruma. What that reads in another way than PCRE2 is put in PCRE2's words
// here, and refused where it has none.
#ifndef HEADWISE_TEXT_REGEX_SYNTAX_H_
#define HEADWISE_TEXT_REGEX_SYNTAX_H_

#include <string>
#include <string_view>

#include <headwise/status.h>

namespace headwise {

// Set operations inside brackets, \G and what depends on a search's beginning are kUnsupported. A pattern that is no
// pattern stays so: PCRE2 says what is wrong with it.
Result<std::string> ToPcreSyntax(std::string_view pattern, std::string_view origin);

}  // namespace headwise

#endif  // HEADWISE_TEXT_REGEX_SYNTAX_H_
