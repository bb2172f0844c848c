// Reads the input as a tokenizer.json; when it is one, encodes and decodes short texts with it. An input may begin with
// a text of its own, ended by a zero byte. Besides crashes it looks for broken promises: a stream and a whole list give
// the same text, and text taken as text never becomes a special token.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/check.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace headwise {
namespace {

void CheckText(const Tokenizer& tokenizer, std::string_view text) {
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

}  // namespace
}  // namespace headwise

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  std::string_view text;
  if (const size_t zero = input.find('\0'); zero != std::string_view::npos && zero <= 256) {
    text = input.substr(0, zero);
    input.remove_prefix(zero + 1);
  }
  const auto tokenizer = headwise::ParseTokenizerJson(input, "fuzz");
  if (!tokenizer.ok()) return 0;
  for (const std::string_view one : {text, std::string_view("Hello  world\n 123 <s>a\u0301\U0001F600</s>")}) {
    headwise::CheckText(**tokenizer, one);
  }
  return 0;
}
