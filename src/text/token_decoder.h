// The "decoder" of a tokenizer.json: what text a token stands for. It works token by token, so that a stream and a
// whole list give the same text: a decoder step that would need to see several tokens at once is refused.
#ifndef HEADWISE_TEXT_TOKEN_DECODER_H_
#define HEADWISE_TEXT_TOKEN_DECODER_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <headwise/status.h>

#include "base/json.h"

namespace headwise {

enum class TokenPosition { kFirst, kLater };

class TokenDecoder {
 public:
  // How many characters `content` to remove at both ends of the whole decoded text.
  struct Strip {
    char32_t content = 0;
    size_t start = 0;
    size_t stop = 0;
  };

  // `value` is the decoder object; null joins tokens by spaces.
  static Result<TokenDecoder> FromJson(const Json& value, std::string_view origin);

  // The bytes that a token adds to the text. They may be part of a character only. Requires: token is valid UTF-8.
  Result<std::string> BytesOf(std::string_view token, TokenPosition position) const;

  // Whether BytesOf depends on the position for some token.
  bool first_differs() const { return first_differs_; }
  const Strip& strip() const { return strip_; }

 private:
  enum class Kind { kReplace, kStrip, kMetaspace, kByteFallback, kByteLevel };
  struct Step {
    Kind kind;
    std::string pattern = {};       // kReplace; kMetaspace: the mark
    std::string content = {};       // kReplace
    Strip strip = {};               // kStrip, per token
    bool drops_first_mark = false;  // kMetaspace
  };

  Status Add(const Json& value, std::string_view origin, int depth);
  Status AddReplace(const JsonObject& object);
  Status AddStrip(const JsonObject& object);
  Status AddMetaspace(const JsonObject& object);

  std::vector<Step> steps_;
  Strip strip_;
  bool fused_ = false;
  bool joins_by_space_ = false;
  bool first_differs_ = false;
  std::string origin_;
};

}  // namespace headwise

#endif  // HEADWISE_TEXT_TOKEN_DECODER_H_
