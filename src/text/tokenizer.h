// How a tokenizer comes about: read from a model's files, or put together from parts. What it does for whom has one
// says <headwise/tokenizer.h>.
#ifndef HEADWISE_TEXT_TOKENIZER_H_
#define HEADWISE_TEXT_TOKENIZER_H_

#include <headwise/tokenizer.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/added_tokens.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/token_decoder.h"
#include "text/vocabulary.h"
#include "text/word_encoder.h"

namespace headwise {

// What a tokenizer is made of, whichever file it comes from.
struct TokenizerParts {
  std::string origin;                      // opens error messages
  std::vector<Vocabulary::Entry> entries;  // of the model; added tokens may be among them
  std::vector<AddedToken> added_tokens;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::unique_ptr<WordEncoder> word_encoder;
  TokenDecoder decoder;
  std::optional<int32_t> bos_id;
  std::optional<int32_t> eos_id;
  // Whether a text begins with bos_id; absent: no file says.
  std::optional<bool> adds_bos;
  // All that a text begins with, where it is bos_id and more.
  std::vector<int32_t> start_ids;
  std::vector<ChatTemplateText> chat_templates;
  std::vector<NamedToken> named_tokens;
};

// Reads `text` as a tokenizer.json. `origin` is the file's name, or what else the text came from.
Result<std::unique_ptr<Tokenizer>> ParseTokenizerJson(std::string_view text, std::string_view origin);

// Reads tokenizer.json, or tokenizer.model where there is none, and what tokenizer_config.json adds to it.
Result<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::filesystem::path& model_folder);

}  // namespace headwise

#endif  // HEADWISE_TEXT_TOKENIZER_H_
