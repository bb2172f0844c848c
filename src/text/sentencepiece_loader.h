// A serialized SentencePiece model, looked through before the library has it.
#ifndef HEADWISE_TEXT_SENTENCEPIECE_LOADER_H_
#define HEADWISE_TEXT_SENTENCEPIECE_LOADER_H_

#include <headwise/status.h>
#include <sentencepiece_processor.h>

#include <memory>
#include <string_view>

namespace headwise {

// A model's precompiled character map: the length of a trie in bytes (u32), the trie as a double array (Darts) over
// what is to be replaced, then the replacements, each ended by a zero byte, at the offsets that the trie's values are.
// The library follows all of these numbers without a look at where they lead. An error unless every one that a text
// can reach lies inside, as do the replacements, none of which is longer than any rule of Unicode needs.
Status CheckCharsMap(std::string_view map, std::string_view origin);

// An error for what is no SentencePiece model, and for one whose character map is not sound.
Result<std::unique_ptr<sentencepiece::SentencePieceProcessor>> LoadSentencePiece(std::string_view bytes,
                                                                                 std::string_view origin);

}  // namespace headwise

#endif  // HEADWISE_TEXT_SENTENCEPIECE_LOADER_H_
