#include "text/tokenizer_impl.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "text/utf8.h"

namespace headwise {

TokenizerImpl::TokenizerImpl(TokenizerParts parts, Vocabulary vocabulary)
    : parts_(std::move(parts)), vocabulary_(std::move(vocabulary)) {}

Result<std::unique_ptr<const TokenizerImpl>> TokenizerImpl::Of(TokenizerParts parts) {
  std::vector<Vocabulary::Entry> entries = std::move(parts.entries);
  std::unordered_map<std::string_view, int32_t> model_ids;
  model_ids.reserve(entries.size());
  for (const Vocabulary::Entry& entry : entries) model_ids.emplace(entry.token, entry.id);
  // An added token that the model knows has the model's id, whatever the list says.
  std::unordered_map<std::string, int32_t> new_ids;
  for (AddedToken& token : parts.added_tokens) {
    const auto known = model_ids.find(token.content);
    token.id = known != model_ids.end() ? known->second : new_ids.emplace(token.content, token.id).first->second;
  }
  for (const auto& [content, id] : new_ids) entries.push_back({content, id});
  HW_ASSIGN_OR_RETURN(Vocabulary vocabulary, Vocabulary::Of(entries, parts.origin));

  std::unique_ptr<TokenizerImpl> tokenizer(new TokenizerImpl(std::move(parts), std::move(vocabulary)));
  HW_RETURN_IF_ERROR(tokenizer->BuildTables());
  return std::unique_ptr<const TokenizerImpl>(std::move(tokenizer));
}

Status TokenizerImpl::BuildTables() {
  special_.resize(static_cast<size_t>(vocabulary_.size()));
  std::vector<AddedToken> raw, normalized;
  std::vector<std::string> raw_patterns, normalized_patterns;
  std::unordered_map<int32_t, std::string> shown;
  size_t token_bytes = 0;
  size_t pattern_bytes = 0;
  for (const AddedToken& token : parts_.added_tokens) {
    if (token.special) special_[static_cast<size_t>(token.id)] = true;
    if (token.normalized) {
      HW_ASSIGN_OR_RETURN(std::string pattern, parts_.normalizer.Apply(token.content));
      token_bytes += token.content.size();
      pattern_bytes += pattern.size();
      HW_RETURN_IF_ERROR(CheckGrowth(pattern_bytes, token_bytes, parts_.origin + ": added_tokens"));
      normalized.push_back(token);
      shown.insert_or_assign(token.id, pattern);
      normalized_patterns.push_back(std::move(pattern));
    } else {
      raw.push_back(token);
      raw_patterns.push_back(token.content);
    }
  }
  raw_matcher_ = AddedTokenMatcher(std::move(raw), std::move(raw_patterns));
  normalized_matcher_ = AddedTokenMatcher(std::move(normalized), std::move(normalized_patterns));
  return BuildPieces(shown);
}

Status TokenizerImpl::BuildPieces(const std::unordered_map<int32_t, std::string>& shown) {
  const auto size = static_cast<size_t>(vocabulary_.size());
  pieces_.resize(size);
  if (parts_.decoder.first_differs()) first_pieces_.resize(size);
  size_t token_bytes = 0;
  size_t piece_bytes = 0;
  for (int32_t id = 0; id < vocabulary_.size(); ++id) {
    const std::string* token = vocabulary_.TokenOf(id);
    if (token == nullptr) continue;
    // What stands in a normalized text is shown as it was found there: with its space mark, say.
    if (const auto it = shown.find(id); it != shown.end()) token = &it->second;
    const auto at = static_cast<size_t>(id);
    HW_ASSIGN_OR_RETURN(pieces_[at], parts_.decoder.BytesOf(*token, TokenPosition::kLater));
    // All together too: each token may grow by some bytes, and there may be a million of them.
    token_bytes += token->size();
    piece_bytes += pieces_[at].size();
    HW_RETURN_IF_ERROR(CheckGrowth(piece_bytes, token_bytes, parts_.origin + ": decoder"));
    if (first_pieces_.empty()) continue;
    HW_ASSIGN_OR_RETURN(first_pieces_[at], parts_.decoder.BytesOf(*token, TokenPosition::kFirst));
  }
  return Status::Ok();
}

bool TokenizerImpl::IsSpecial(int32_t id) const {
  return id >= 0 && id < vocabulary_.size() && special_[static_cast<size_t>(id)];
}

Result<std::vector<int32_t>> TokenizerImpl::Encode(std::string_view text, std::span<const ByteRange> ordinary) const {
  if (const auto at = FindInvalidUtf8(text)) {
    return Status::InvalidInput(fmt::format("invalid UTF-8 at byte {} of the prompt", *at));
  }
  std::vector<int32_t> ids;
  size_t next = 0;  // of the ranges that end behind the segment's beginning
  for (const TextSegment& segment : raw_matcher_.Split(text, ordinary)) {
    if (segment.id != TextSegment::kText) {
      ids.push_back(segment.id);
      continue;
    }
    const auto position = segment.begin == 0 ? TextPosition::kStartOfText : TextPosition::kLater;
    std::vector<ByteRange> inside;
    while (next < ordinary.size() && ordinary[next].end <= segment.begin) ++next;
    for (size_t i = next; i < ordinary.size() && ordinary[i].begin < segment.end; ++i) {
      inside.push_back({std::max(ordinary[i].begin, segment.begin) - segment.begin,
                        std::min(ordinary[i].end, segment.end) - segment.begin});
    }
    HW_RETURN_IF_ERROR(
        EncodeText(text.substr(segment.begin, segment.end - segment.begin), std::move(inside), position, ids));
  }
  return ids;
}

Status TokenizerImpl::EncodeText(std::string_view text, std::vector<ByteRange> ordinary, TextPosition position,
                                 std::vector<int32_t>& ids) const {
  // Where nothing special is left to find, what is whose does not matter.
  const bool is_all_ordinary = ordinary.size() == 1 && ordinary[0] == ByteRange{0, text.size()};
  const bool may_find = normalized_matcher_.has_special() && !is_all_ordinary;
  bool drops_start = false;
  HW_ASSIGN_OR_RETURN(const std::string normalized,
                      parts_.normalizer.Apply(std::string(text), may_find ? &ordinary : nullptr, &drops_start));
  // For the pre-tokenizer a text begins where the first character of the original is.
  if (drops_start) position = TextPosition::kLater;
  if (!may_find) ordinary.assign(1, {0, normalized.size()});
  for (const TextSegment& segment : normalized_matcher_.Split(normalized, ordinary)) {
    if (segment.id != TextSegment::kText) {
      ids.push_back(segment.id);
      continue;
    }
    const auto segment_position = segment.begin == 0 ? position : TextPosition::kLater;
    HW_ASSIGN_OR_RETURN(
        const Words words,
        parts_.pre_tokenizer.Split(normalized.substr(segment.begin, segment.end - segment.begin), segment_position));
    for (size_t i = 0; i < words.spans.size(); ++i) {
      HW_RETURN_IF_ERROR(parts_.word_encoder->Encode(words.At(i), ids));
    }
  }
  return Status::Ok();
}

std::string_view TokenizerImpl::BytesOf(int32_t id, TokenPosition position) const {
  if (id < 0 || id >= vocabulary_.size()) return {};
  const bool first = position == TokenPosition::kFirst && !first_pieces_.empty();
  return (first ? first_pieces_ : pieces_)[static_cast<size_t>(id)];
}

}  // namespace headwise
