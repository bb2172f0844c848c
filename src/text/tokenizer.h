// Text to token ids and back, as the model's own files define it: tokenizer.json (byte-level BPE, or
// SentencePiece-style BPE with byte fallback) or tokenizer.model. It is held to the ids that Hugging Face's
// implementation gives. Where it differs on purpose: text that cannot be encoded is an error instead of being dropped,
// and a run of byte tokens that is not UTF-8 shows one U+FFFD per maximal invalid prefix, whatever follows, so that a
// stream never takes text back.
#ifndef HEADWISE_TEXT_TOKENIZER_H_
#define HEADWISE_TEXT_TOKENIZER_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <headwise/status.h>

#include "text/added_tokens.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/token_decoder.h"
#include "text/vocabulary.h"
#include "text/word_encoder.h"

namespace headwise {

enum class SpecialDisplay { kShow, kSkip };

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
  bool adds_bos = false;
  std::string chat_template;
};

// Safe to use from several threads at once.
class Tokenizer {
 public:
  static Result<std::unique_ptr<Tokenizer>> FromParts(TokenizerParts parts);

  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // The ids of `text`; nothing is put in front or behind (see AddsBos). An error if the text is not UTF-8, or has a
  // character for which the vocabulary has no token at all.
  Result<std::vector<int32_t>> Encode(std::string_view text, SpecialText special) const;

  // The text of `ids`; bytes that are not UTF-8 become U+FFFD, ids without a token become nothing.
  std::string Decode(std::span<const int32_t> ids, SpecialDisplay special) const;

  // One more than the largest id. A model's vocabulary may be padded beyond it.
  int32_t vocab_size() const { return vocabulary_.size(); }
  std::optional<int32_t> IdOf(std::string_view token) const { return vocabulary_.IdOf(token); }
  // Null for an id that has no token.
  const std::string* TokenOf(int32_t id) const { return vocabulary_.TokenOf(id); }
  bool IsSpecial(int32_t id) const;

  std::optional<int32_t> bos_id() const { return parts_.bos_id; }
  std::optional<int32_t> eos_id() const { return parts_.eos_id; }
  // Whether the files say that a text for the model begins with bos_id().
  bool AddsBos() const { return parts_.adds_bos && parts_.bos_id.has_value(); }
  // The chat template's source, for telling which form it is; it is never run. Empty if there is none.
  const std::string& chat_template() const { return parts_.chat_template; }

 private:
  friend class StreamDecoder;

  Tokenizer(TokenizerParts parts, Vocabulary vocabulary);
  Status BuildTables();
  // `shown`: tokens whose text is another than their name.
  Status BuildPieces(const std::unordered_map<int32_t, std::string>& shown);
  Status EncodeText(std::string_view text, SpecialText special, TextPosition position, std::vector<int32_t>& ids) const;

  // For StreamDecoder: the bytes that an id adds.
  std::string_view BytesOf(int32_t id, TokenPosition position) const;
  const TokenDecoder::Strip& strip() const { return parts_.decoder.strip(); }

  TokenizerParts parts_;
  Vocabulary vocabulary_;  // with added tokens
  std::vector<bool> special_;
  AddedTokenMatcher raw_matcher_;
  AddedTokenMatcher normalized_matcher_;
  // By id. Made once, when the file is read, so that decoding cannot fail.
  std::vector<std::string> pieces_;
  std::vector<std::string> first_pieces_;  // empty where the position does not matter
};

// Reads `text` as a tokenizer.json. `origin` is the file's name, or what else the text came from.
Result<std::unique_ptr<Tokenizer>> ParseTokenizerJson(std::string_view text, std::string_view origin);

// Reads tokenizer.json, or tokenizer.model where there is none, and what tokenizer_config.json adds to it.
Result<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::filesystem::path& model_folder);

}  // namespace headwise

#endif  // HEADWISE_TEXT_TOKENIZER_H_
