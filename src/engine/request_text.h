// The text of a request as its tokens come: decoded, and cut before the first stop string.
#ifndef HEADWISE_ENGINE_REQUEST_TEXT_H_
#define HEADWISE_ENGINE_REQUEST_TEXT_H_

#include <headwise/tokenizer.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/stop_matcher.h"

namespace headwise {

class RequestText {
 public:
  // Without a tokenizer there is no text. Requires: ValidateStops(stops).ok().
  RequestText(const Tokenizer* tokenizer, std::vector<std::string> stops) : stops_(std::move(stops)) {
    if (tokenizer != nullptr) decoder_.emplace(*tokenizer, SpecialDisplay::kSkip);
  }

  // What can be shown once `id` is there: never half a character, never the beginning of a stop string.
  std::string Push(int32_t id) { return decoder_ ? stops_.Push(decoder_->Push(id)) : std::string(); }
  // What was held back until the end; nothing behind a stop string.
  std::string Flush() {
    if (!decoder_ || stops_.stopped()) return {};
    std::string text = stops_.Push(decoder_->Flush());
    return text + stops_.Flush();
  }
  bool stopped() const { return stops_.stopped(); }

 private:
  std::optional<StreamDecoder> decoder_;
  StopMatcher stops_;
};

}  // namespace headwise

#endif  // HEADWISE_ENGINE_REQUEST_TEXT_H_
