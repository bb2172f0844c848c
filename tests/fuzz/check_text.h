// What a tokenizer of any origin promises of a text.
#ifndef HEADWISE_TESTS_FUZZ_CHECK_TEXT_H_
#define HEADWISE_TESTS_FUZZ_CHECK_TEXT_H_

#include <string>
#include <string_view>

#include "base/check.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace headwise {

inline constexpr std::string_view kFuzzText = "Hello  world\n 123 <s>a\u0301\U0001F600</s>";

// Ids are in range, and a stream and a whole list give the same text.
inline void CheckText(const Tokenizer& tokenizer, std::string_view text) {
  for (const SpecialText special : {SpecialText::kParse, SpecialText::kAsText}) {
    const auto ids = tokenizer.Encode(text, special);
    if (!ids.ok()) continue;
    StreamDecoder stream(tokenizer, SpecialDisplay::kSkip);
    std::string streamed;
    for (const int32_t id : *ids) {
      HW_CHECK(id >= 0 && id < tokenizer.vocab_size(), "id {}", id);
      const std::string part = stream.Push(id);
      HW_CHECK(!FindInvalidUtf8(part), "a character was split");
      streamed += part;
    }
    streamed += stream.Flush();
    HW_CHECK(streamed == tokenizer.Decode(*ids, SpecialDisplay::kSkip));
  }
}

}  // namespace headwise

#endif  // HEADWISE_TESTS_FUZZ_CHECK_TEXT_H_
