// Reads the input as a tokenizer.model, a serialized SentencePiece model, character map and all; when it is one,
// encodes and decodes short texts with it. The input's first byte is the length of a text of its own, which follows it.
// What is looked for is what a library that trusts its file would follow out of memory, and the promises of every
// tokenizer.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "fuzz/check_text.h"
#include "text/tokenizer_files.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  std::string_view text;
  if (!input.empty()) {
    text = input.substr(1, std::min<size_t>(data[0], size - 1));
    input.remove_prefix(1 + text.size());
  }
  auto parts = headwise::ReadSentencePieceModel(input, {}, "fuzz");
  HW_CHECK(parts.ok() || parts.status().message().starts_with("fuzz"), "{}", parts.status().message());
  if (!parts.ok()) return 0;
  const auto tokenizer = headwise::Tokenizer::FromParts(*std::move(parts));
  if (!tokenizer.ok()) return 0;
  for (const std::string_view one : {text, headwise::kFuzzText}) headwise::CheckText(**tokenizer, one);
  return 0;
}
