// Token ids to text while they are being generated. What Push has returned is never taken back, never ends inside a
// character, and all of it together is what Tokenizer::Decode gives for the whole list.
#ifndef HEADWISE_TEXT_STREAM_DECODER_H_
#define HEADWISE_TEXT_STREAM_DECODER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "text/tokenizer.h"

namespace headwise {

class StreamDecoder {
 public:
  // Borrows the tokenizer.
  StreamDecoder(const Tokenizer& tokenizer, SpecialDisplay special);

  // The text that can be shown once `id` is there; often empty inside a character of several tokens.
  std::string Push(int32_t id);

  // What is left at the end: bytes that never became a character are U+FFFD. Ready for a new list afterwards.
  std::string Flush();

 private:
  void Emit(std::string_view character, std::string& out);

  const Tokenizer* tokenizer_;
  SpecialDisplay special_;
  TokenPosition position_ = TokenPosition::kFirst;
  std::string pending_;     // at most 3 bytes of an unfinished character
  size_t strip_left_ = 0;   // how many more strip characters the start of the text may lose
  size_t held_ = 0;         // strip characters that are lost if the text ends here
  std::string strip_text_;  // the strip character
};

}  // namespace headwise

#endif  // HEADWISE_TEXT_STREAM_DECODER_H_
