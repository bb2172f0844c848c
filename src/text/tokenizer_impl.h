// The inside of a Tokenizer: its parts and the tables made of them when the file is read, so that decoding cannot fail.
#ifndef HEADWISE_TEXT_TOKENIZER_IMPL_H_
#define HEADWISE_TEXT_TOKENIZER_IMPL_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/tokenizer.h"

namespace headwise {

class TokenizerImpl {
 public:
  static Result<std::unique_ptr<const TokenizerImpl>> Of(TokenizerParts parts);

  // Special tokens are looked for outside `ordinary`, which is as Tokenizer::Encode wants it.
  Result<std::vector<int32_t>> Encode(std::string_view text, std::span<const ByteRange> ordinary) const;
  bool IsSpecial(int32_t id) const;
  // The bytes that an id adds.
  std::string_view BytesOf(int32_t id, TokenPosition position) const;

  const TokenizerParts& parts() const { return parts_; }
  const Vocabulary& vocabulary() const { return vocabulary_; }
  const TokenDecoder::Strip& strip() const { return parts_.decoder.strip(); }

 private:
  TokenizerImpl(TokenizerParts parts, Vocabulary vocabulary);
  Status BuildTables();
  // `shown`: tokens whose text is another than their name.
  Status BuildPieces(const std::unordered_map<int32_t, std::string>& shown);
  Status EncodeText(std::string_view text, std::vector<ByteRange> ordinary, TextPosition position,
                    std::vector<int32_t>& ids) const;

  TokenizerParts parts_;
  Vocabulary vocabulary_;  // with added tokens
  std::vector<bool> special_;
  AddedTokenMatcher raw_matcher_;
  AddedTokenMatcher normalized_matcher_;
  // By id.
  std::vector<std::string> pieces_;
  std::vector<std::string> first_pieces_;  // empty where the position does not matter
};

}  // namespace headwise

#endif  // HEADWISE_TEXT_TOKENIZER_IMPL_H_
