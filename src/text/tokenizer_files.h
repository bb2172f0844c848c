// The readers behind LoadTokenizer, one per kind of file. Inside text/ only.
#ifndef HEADWISE_TEXT_TOKENIZER_FILES_H_
#define HEADWISE_TEXT_TOKENIZER_FILES_H_

#include <cstdint>
#include <optional>
#include <string_view>

#include <headwise/status.h>

#include "base/json.h"
#include "text/tokenizer.h"

namespace headwise {

// The largest published vocabularies have about 260,000 tokens.
inline constexpr int64_t kMaxTokenId = (int64_t{1} << 30) - 1;

Result<TokenizerParts> ReadTokenizerJson(std::string_view text, std::string_view origin);

// Reads a serialized SentencePiece model through the library.
Result<TokenizerParts> ReadSentencePieceModel(std::string_view bytes, const std::vector<AddedToken>& more,
                                              std::string_view origin);

// The text of tokens that have a mark for each space and a token for each byte; with a prefix, one space in front is
// not of the text.
enum class SpacePrefix { kNone, kAdded };
Result<TokenDecoder> SentencePieceDecoder(SpacePrefix prefix, std::string_view origin);

// One entry of "added_tokens" or "added_tokens_decoder".
Result<AddedToken> ReadAddedToken(const JsonObject& object, int64_t id);

// The id of a special token, before the parts are a Tokenizer.
std::optional<int32_t> FindSpecial(const TokenizerParts& parts, std::string_view content);

// Adds the token that has this id; nothing where there is none.
void NameToken(std::string_view name, std::optional<int64_t> id, const TokenizerParts& parts,
               std::vector<NamedToken>& tokens);

// Where no file names them: the tokens that published models begin and end texts with.
void GuessBosAndEos(TokenizerParts& parts);

}  // namespace headwise

#endif  // HEADWISE_TEXT_TOKENIZER_FILES_H_
