#include <headwise/tokenizer.h>

#include <utility>

#include "text/tokenizer_impl.h"

namespace headwise {

Tokenizer::Tokenizer(std::unique_ptr<const TokenizerImpl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<Tokenizer>> Tokenizer::FromParts(TokenizerParts parts) {
  HW_ASSIGN_OR_RETURN(std::unique_ptr<const TokenizerImpl> impl, TokenizerImpl::Of(std::move(parts)));
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(impl)));
}

Result<std::vector<int32_t>> Tokenizer::Encode(std::string_view text, SpecialText special) const {
  const ByteRange all[] = {{0, text.size()}};
  return special == SpecialText::kAsText ? impl_->Encode(text, all) : impl_->Encode(text, {});
}

Result<std::vector<int32_t>> Tokenizer::Encode(std::string_view text, std::span<const ByteRange> ordinary) const {
  return impl_->Encode(text, ordinary);
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, SpecialDisplay special) const {
  StreamDecoder decoder(*this, special);
  std::string text;
  for (const int32_t id : ids) text += decoder.Push(id);
  return text += decoder.Flush();
}

int32_t Tokenizer::vocab_size() const {
  return impl_->vocabulary().size();
}
std::optional<int32_t> Tokenizer::IdOf(std::string_view token) const {
  return impl_->vocabulary().IdOf(token);
}
const std::string* Tokenizer::TokenOf(int32_t id) const {
  return impl_->vocabulary().TokenOf(id);
}
bool Tokenizer::IsSpecial(int32_t id) const {
  return impl_->IsSpecial(id);
}
std::string_view Tokenizer::BytesOf(int32_t id) const {
  return TokenOf(id) == nullptr ? std::string_view() : impl_->BytesOf(id, TokenPosition::kLater);
}

std::optional<int32_t> Tokenizer::bos_id() const {
  return impl_->parts().bos_id;
}
std::optional<int32_t> Tokenizer::eos_id() const {
  return impl_->parts().eos_id;
}
bool Tokenizer::AddsBos() const {
  return impl_->parts().adds_bos.value_or(false) && impl_->parts().bos_id.has_value();
}
std::span<const int32_t> Tokenizer::start_ids() const {
  if (!AddsBos()) return {};
  const std::vector<int32_t>& ids = impl_->parts().start_ids;
  // A config may name another bos_id than the tokenizer begins texts with, and has the last word.
  const std::optional<int32_t>& bos_id = impl_->parts().bos_id;
  return !ids.empty() && ids.front() == *bos_id ? std::span<const int32_t>(ids) : std::span(&*bos_id, 1);
}
bool Tokenizer::OmitsBos() const {
  return !impl_->parts().adds_bos.value_or(true);
}
std::span<const ChatTemplateText> Tokenizer::chat_templates() const {
  return impl_->parts().chat_templates;
}
std::span<const NamedToken> Tokenizer::named_tokens() const {
  return impl_->parts().named_tokens;
}

}  // namespace headwise
