// A template cut into tokens, under trim_blocks and lstrip_blocks: the white space that goes is gone here.
#ifndef HEADWISE_TEXT_JINJA_LEXER_H_
#define HEADWISE_TEXT_JINJA_LEXER_H_

#include <headwise/status.h>

#include <string>
#include <string_view>
#include <vector>

namespace headwise::jinja {

enum class TokenKind : uint8_t {
  kText,           // between tags
  kBlockBegin,     // {%
  kBlockEnd,       // %}
  kVariableBegin,  // {{
  kVariableEnd,    // }}
  kName,
  kString,  // `text` is what the literal says
  kInteger,
  kFloat,     // `text` as written, without _
  kOperator,  // `text` is the operator: + == | and so on
  kEnd,
};

struct Token {
  TokenKind kind;
  int line;
  std::string text;
};

// The last token is kEnd. Requires: source is valid UTF-8.
Result<std::vector<Token>> Tokenize(std::string_view source);

// For errors: "'endif'", "end of template".
std::string Describe(const Token& token);

}  // namespace headwise::jinja

#endif  // HEADWISE_TEXT_JINJA_LEXER_H_
