// Templates to programs.
#ifndef HEADWISE_TEXT_JINJA_PARSER_H_
#define HEADWISE_TEXT_JINJA_PARSER_H_

#include <headwise/status.h>

#include <string_view>

#include "text/jinja/ast.h"

namespace headwise::jinja {

// An error says the line, what was found and what was expected. Requires: source is valid UTF-8.
Result<Program> ParseProgram(std::string_view source);

}  // namespace headwise::jinja

#endif  // HEADWISE_TEXT_JINJA_PARSER_H_
