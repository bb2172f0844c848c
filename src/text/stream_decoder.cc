#include <headwise/tokenizer.h>

#include "text/tokenizer_impl.h"
#include "text/utf8.h"

namespace headwise {

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, SpecialDisplay special)
    : tokenizer_(&tokenizer), special_(special), strip_left_(tokenizer.impl_->strip().start) {
  AppendUtf8(tokenizer.impl_->strip().content, strip_text_);
}

void StreamDecoder::Emit(std::string_view character, std::string& out) {
  const bool strippable = character == strip_text_;
  if (strip_left_ > 0) {
    strip_left_ = strippable ? strip_left_ - 1 : 0;
    if (strippable) return;
  }
  if (strippable && held_ < tokenizer_->impl_->strip().stop) {
    ++held_;
    return;
  }
  // One more strip character than may be lost: the oldest is safe, and all look the same.
  if (!strippable) {
    for (; held_ > 0; --held_) out.append(strip_text_);
  }
  out.append(character);
}

std::string StreamDecoder::Push(int32_t id) {
  std::string out;
  if (tokenizer_->TokenOf(id) == nullptr) return out;
  if (special_ == SpecialDisplay::kSkip && tokenizer_->IsSpecial(id)) return out;
  pending_.append(tokenizer_->impl_->BytesOf(id, at_start_ ? TokenPosition::kFirst : TokenPosition::kLater));
  at_start_ = false;
  size_t at = 0;
  while (at < pending_.size()) {
    const std::string_view rest = std::string_view(pending_).substr(at);
    const Utf8Step step = StepUtf8(rest);
    if (step.kind == Utf8Step::Kind::kIncomplete) break;
    Emit(step.kind == Utf8Step::Kind::kCharacter ? rest.substr(0, step.size_bytes) : kReplacementCharacter, out);
    at += step.size_bytes;
  }
  pending_.erase(0, at);
  return out;
}

std::string StreamDecoder::Flush() {
  std::string out;
  // What StepUtf8 calls incomplete is one maximal prefix.
  if (!pending_.empty()) Emit(kReplacementCharacter, out);
  *this = StreamDecoder(*tokenizer_, special_);
  return out;
}

}  // namespace headwise
