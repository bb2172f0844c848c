// What turns one word into ids: our BPE, or the SentencePiece library.
#ifndef HEADWISE_TEXT_WORD_ENCODER_H_
#define HEADWISE_TEXT_WORD_ENCODER_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include <headwise/status.h>

namespace headwise {

// Safe to use from several threads at once.
class WordEncoder {
 public:
  virtual ~WordEncoder() = default;
  // Appends the ids of `word`. Never appends a special token, except the one for unknown text. Requires: word is valid
  // UTF-8 and not empty.
  virtual Status Encode(std::string_view word, std::vector<int32_t>& ids) const = 0;
};

}  // namespace headwise

#endif  // HEADWISE_TEXT_WORD_ENCODER_H_
