// The parser's place in its tokens, and its errors.
#ifndef HEADWISE_TEXT_JINJA_TOKEN_STREAM_H_
#define HEADWISE_TEXT_JINJA_TOKEN_STREAM_H_

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/lexer.h"

namespace headwise::jinja {

class TokenStream {
 public:
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& current() const { return tokens_[at_]; }
  const Token& next() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  int line() const { return current().line; }

  // The token is gone from the stream.
  Token Take() {
    Token token = std::move(tokens_[at_]);
    // The last one stays, whoever runs into it.
    tokens_[at_] = Token{token.kind, token.line, ""};
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }

  static bool Is(const Token& token, TokenKind kind, std::string_view text) {
    return token.kind == kind && token.text == text;
  }
  bool AtOperator(std::string_view text) const { return Is(current(), TokenKind::kOperator, text); }
  bool AtName(std::string_view text) const { return Is(current(), TokenKind::kName, text); }
  bool At(TokenKind kind) const { return current().kind == kind; }

  bool SkipOperator(std::string_view text) { return AtOperator(text) && (Take(), true); }
  bool SkipName(std::string_view text) { return AtName(text) && (Take(), true); }

  Status ExpectOperator(std::string_view text) {
    return SkipOperator(text) ? Status::Ok() : Unexpected(fmt::format("'{}'", text));
  }
  Status Expect(TokenKind kind, std::string_view what) {
    if (!At(kind)) return Unexpected(what);
    Take();
    return Status::Ok();
  }
  Result<std::string> ExpectName(std::string_view what) {
    if (!At(TokenKind::kName)) return Unexpected(what);
    return Take().text;
  }

  Status Unexpected(std::string_view expected) const {
    return Fail(line(), fmt::format("{}, expected {}", Describe(current()), expected));
  }
  static Status Fail(int line, std::string_view what) {
    return Status::InvalidInput(fmt::format("line {}: {}", line, what));
  }

 private:
  std::vector<Token> tokens_;
  size_t at_ = 0;
};

}  // namespace headwise::jinja

#endif  // HEADWISE_TEXT_JINJA_TOKEN_STREAM_H_
