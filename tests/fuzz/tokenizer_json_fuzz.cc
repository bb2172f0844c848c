// Reads the input as a tokenizer.json; when it is one, encodes and decodes short texts with it. An input may begin with
// a text of its own, ended by a zero byte. Besides crashes it looks for broken promises: a stream and a whole list give
// the same text, and text taken as text never becomes a special token.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "fuzz/check_text.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  std::string_view text;
  if (const size_t zero = input.find('\0'); zero != std::string_view::npos && zero <= 256) {
    text = input.substr(0, zero);
    input.remove_prefix(zero + 1);
  }
  const auto tokenizer = headwise::ParseTokenizerJson(input, "fuzz");
  if (!tokenizer.ok()) return 0;
  for (const std::string_view one : {text, headwise::kFuzzText}) {
    headwise::CheckText(**tokenizer, one);
  }
  return 0;
}
