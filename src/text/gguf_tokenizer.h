// The tokenizer of a .gguf file, from the arrays it is kept in there. Which keys they are read from is not known here:
// engine/open_tokenizer.h.
#ifndef HEADWISE_TEXT_GGUF_TOKENIZER_H_
#define HEADWISE_TEXT_GGUF_TOKENIZER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <headwise/status.h>

#include "text/tokenizer.h"

namespace headwise {

// As numbered in files. Other numbers are taken for normal.
enum class GgufTokenType : int64_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

// Borrows its arrays.
struct GgufTokenizer {
  std::string origin = {};        // opens error messages
  std::string architecture = {};  // the model's, as the file calls it: it decides what a file leaves open
  // "gpt2": byte-level BPE; "llama": SentencePiece BPE. Of others only tokenizer_json is read ("t5": Unigram).
  std::string kind = {};
  std::string splitting = {};  // gpt2: the name of how text is cut into words; may be empty
  std::span<const std::string> tokens = {};
  std::span<const int64_t> token_types = {};  // as numbered in files; empty: all normal
  std::span<const double> scores = {};        // llama
  std::span<const std::string> merges = {};   // gpt2
  std::optional<int64_t> bos_id = {};
  std::optional<int64_t> eos_id = {};
  std::optional<int64_t> unknown_id = {};
  std::optional<int64_t> padding_id = {};
  std::optional<bool> adds_bos = {};           // absent: as is usual for the kind
  std::optional<bool> adds_space_prefix = {};  // the same
  std::vector<ChatTemplateText> chat_templates = {};
  // A whole tokenizer.json, which says more than the arrays and is taken in their place; may be empty.
  std::string tokenizer_json = {};
  // Told what had to be guessed; may be empty.
  std::function<void(std::string_view)> on_warning = {};
};

Result<std::unique_ptr<Tokenizer>> MakeGgufTokenizer(const GgufTokenizer& file);

}  // namespace headwise

#endif  // HEADWISE_TEXT_GGUF_TOKENIZER_H_
