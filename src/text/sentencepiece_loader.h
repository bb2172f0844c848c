// A serialized SentencePiece model, looked through before the library has it.
#ifndef HEADWISE_TEXT_SENTENCEPIECE_LOADER_H_
#define HEADWISE_TEXT_SENTENCEPIECE_LOADER_H_

#include <headwise/status.h>
#include <sentencepiece_processor.h>

#include <memory>
#include <string_view>

namespace headwise {

// An error for what is no SentencePiece model, and for one whose character map is not sound.
Result<std::unique_ptr<sentencepiece::SentencePieceProcessor>> LoadSentencePiece(std::string_view bytes,
                                                                                 std::string_view origin);

}  // namespace headwise

#endif  // HEADWISE_TEXT_SENTENCEPIECE_LOADER_H_
