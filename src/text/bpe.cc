#include "text/bpe.h"

#include <fmt/format.h>

#include <limits>
#include <queue>
#include <utility>

#include "text/tokenizer_files.h"
#include "text/utf8.h"

namespace headwise {
namespace {

uint64_t PairKey(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

Status ReadVocabulary(const JsonObject& model, BpeParts& parts) {
  HW_ASSIGN_OR_RETURN(const JsonObject vocab, model.Object("vocab"));
  for (const auto& [token, value] : model.At("vocab").items()) {
    if (!value.is_number_integer() || value < 0 || value > kMaxTokenId) {
      return Status::InvalidInput(fmt::format("{}: token \"{}\" has the id {}, expected 0 to {}", vocab.origin(), token,
                                              value.dump(-1, ' ', false, Json::error_handler_t::replace), kMaxTokenId));
    }
    parts.entries.push_back({token, value.get<int32_t>()});
  }
  return Status::Ok();
}

Status ReadOptions(const JsonObject& model, BpeParts& parts) {
  // Dropout is for training; encoding with it would not even be repeatable.
  HW_ASSIGN_OR_RETURN(const double dropout, model.DoubleOr("dropout", 0.0));
  if (dropout != 0.0) return Status::Unsupported(fmt::format("{}: dropout {}, expected none", parts.origin, dropout));
  HW_ASSIGN_OR_RETURN(parts.continuing_prefix, model.StringOr("continuing_subword_prefix", ""));
  HW_ASSIGN_OR_RETURN(parts.end_of_word_suffix, model.StringOr("end_of_word_suffix", ""));
  // Put around every character of a text.
  constexpr size_t kMaxAffixBytes = 64;
  if (parts.continuing_prefix.size() > kMaxAffixBytes || parts.end_of_word_suffix.size() > kMaxAffixBytes) {
    return Status::InvalidInput(
        fmt::format("{}: continuing_subword_prefix of {} bytes and end_of_word_suffix of {}, expected at most {}",
                    parts.origin, parts.continuing_prefix.size(), parts.end_of_word_suffix.size(), kMaxAffixBytes));
  }
  HW_ASSIGN_OR_RETURN(parts.fuse_unknown, model.BoolOr("fuse_unk", false));
  HW_ASSIGN_OR_RETURN(parts.ignore_merges, model.BoolOr("ignore_merges", false));
  HW_ASSIGN_OR_RETURN(parts.byte_fallback, model.BoolOr("byte_fallback", false));
  if (!model.Has("unk_token")) return Status::Ok();
  HW_ASSIGN_OR_RETURN(const std::string unknown, model.String("unk_token"));
  for (const Vocabulary::Entry& entry : parts.entries) {
    if (entry.token == unknown) parts.unknown_id = entry.id;
  }
  if (parts.unknown_id) return Status::Ok();
  return Status::InvalidInput(fmt::format("{}: unk_token \"{}\" is not in the vocabulary", parts.origin, unknown));
}

Status ReadMerges(const JsonObject& model, BpeParts& parts) {
  if (!model.Has("merges") || !model.At("merges").is_array()) {
    return Status::InvalidInput(fmt::format("{}: \"merges\" is missing or not a list", parts.origin));
  }
  for (const Json& merge : model.At("merges")) {
    const auto rank = static_cast<uint32_t>(parts.merges.size());
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      parts.merges.push_back({merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>(), rank});
    } else if (merge.is_string()) {
      HW_ASSIGN_OR_RETURN(BpeParts::Merge cut, CutMerge(merge.get_ref<const std::string&>(), rank, parts.origin));
      parts.merges.push_back(cut);
    } else {
      return Status::InvalidInput(
          fmt::format("{}: merge {} is neither \"a b\" nor [\"a\", \"b\"]", parts.origin, rank));
    }
  }
  return Status::Ok();
}

}  // namespace

Result<BpeParts::Merge> CutMerge(std::string_view text, uint32_t rank, std::string_view origin) {
  const size_t space = text.find(' ');
  if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
    return Status::InvalidInput(
        fmt::format("{}: merge {} is \"{}\", expected two tokens and a space", origin, rank, text));
  }
  return BpeParts::Merge{text.substr(0, space), text.substr(space + 1), rank};
}

struct BpeModel::Candidate {
  uint32_t rank;
  int32_t position;
  int32_t id;

  // The best candidate is the lowest rank, then the leftmost.
  friend bool operator<(const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
  }
};

Result<BpeModel> BpeModel::FromJson(const JsonObject& model, std::unordered_set<std::string> reserved) {
  BpeParts parts;
  parts.origin = model.origin();
  parts.reserved = std::move(reserved);
  HW_RETURN_IF_ERROR(ReadVocabulary(model, parts));
  HW_RETURN_IF_ERROR(ReadOptions(model, parts));
  HW_RETURN_IF_ERROR(ReadMerges(model, parts));
  return FromParts(std::move(parts));
}

Result<BpeModel> BpeModel::FromParts(BpeParts parts) {
  BpeModel bpe;
  bpe.origin_ = std::move(parts.origin);
  bpe.entries_ = std::move(parts.entries);
  HW_ASSIGN_OR_RETURN(const Vocabulary all, Vocabulary::Of(bpe.entries_, bpe.origin_));
  std::vector<Vocabulary::Entry> text_entries;
  for (const Vocabulary::Entry& entry : bpe.entries_) {
    if (!parts.reserved.contains(entry.token)) text_entries.push_back(entry);
  }
  HW_ASSIGN_OR_RETURN(bpe.text_vocabulary_, Vocabulary::Of(text_entries, bpe.origin_));
  bpe.unknown_id_ = parts.unknown_id;
  bpe.fuse_unknown_ = parts.fuse_unknown;
  bpe.ignore_merges_ = parts.ignore_merges;
  bpe.continuing_prefix_ = std::move(parts.continuing_prefix);
  bpe.end_of_word_suffix_ = std::move(parts.end_of_word_suffix);
  if (parts.byte_fallback) {
    for (int byte = 0; byte < 256; ++byte) {
      bpe.byte_ids_.push_back(bpe.text_vocabulary_.IdOf(fmt::format("<0x{:02X}>", byte)).value_or(-1));
    }
  }
  bpe.merges_.reserve(parts.merges.size());
  for (const BpeParts::Merge& merge : parts.merges) HW_RETURN_IF_ERROR(bpe.AddMerge(merge, all));
  return bpe;
}

Status BpeModel::AddMerge(const BpeParts::Merge& merge, const Vocabulary& all) {
  // The right part of a pair is inside a word and carries the prefix; the merged token carries only the left one's.
  std::string_view tail = merge.right;
  if (!continuing_prefix_.empty() && tail.starts_with(continuing_prefix_))
    tail.remove_prefix(continuing_prefix_.size());
  const std::string merged = std::string(merge.left).append(tail);
  const auto left_id = text_vocabulary_.IdOf(merge.left);
  const auto right_id = text_vocabulary_.IdOf(merge.right);
  const auto merged_id = text_vocabulary_.IdOf(merged);
  if (left_id && right_id && merged_id) {
    merges_.insert_or_assign(PairKey(*left_id, *right_id), Merge{merge.rank, *merged_id});
    return Status::Ok();
  }
  // A reserved token is in the file but not for text: the merge is not for text either.
  for (const std::string_view token : {merge.left, merge.right, std::string_view(merged)}) {
    if (all.IdOf(token)) continue;
    return Status::InvalidInput(
        fmt::format("{}: merge {} needs the token \"{}\", which is not in the vocabulary", origin_, merge.rank, token));
  }
  return Status::Ok();
}

const BpeModel::Merge* BpeModel::FindMerge(int32_t left, int32_t right) const {
  const auto it = merges_.find(PairKey(left, right));
  return it == merges_.end() ? nullptr : &it->second;
}

Status BpeModel::SplitIntoSymbols(std::string_view word, std::vector<Symbol>& symbols) const {
  bool after_unknown = false;
  std::string decorated;
  for (size_t at = 0; at < word.size();) {
    const size_t size_bytes = FirstCharacter(word.substr(at)).size_bytes;
    std::string_view character = word.substr(at, size_bytes);
    const bool takes_prefix = at > 0 && !continuing_prefix_.empty();
    const bool takes_suffix = at + size_bytes == word.size() && !end_of_word_suffix_.empty();
    if (takes_prefix || takes_suffix) {
      decorated = takes_prefix ? continuing_prefix_ : "";
      decorated.append(character);
      if (takes_suffix) decorated.append(end_of_word_suffix_);
      character = decorated;
    }
    at += size_bytes;

    if (const auto id = text_vocabulary_.IdOf(character)) {
      symbols.push_back({*id, 0, 0});
      after_unknown = false;
      continue;
    }
    bool falls_back = !byte_ids_.empty();
    for (const char c : character) falls_back = falls_back && byte_ids_[static_cast<unsigned char>(c)] >= 0;
    if (falls_back) {
      for (const char c : character) symbols.push_back({byte_ids_[static_cast<unsigned char>(c)], 0, 0});
      after_unknown = false;
      continue;
    }
    if (!unknown_id_) {
      return Status::InvalidInput(
          fmt::format("{}: no token for \"{}\", and none for unknown text", origin_, character));
    }
    if (!after_unknown || !fuse_unknown_) symbols.push_back({*unknown_id_, 0, 0});
    after_unknown = true;
  }
  return Status::Ok();
}

void BpeModel::MergeSymbols(std::vector<Symbol>& symbols) const {
  const auto count = static_cast<int32_t>(symbols.size());
  const auto at = [&](int32_t i) -> Symbol& { return symbols[static_cast<size_t>(i)]; };
  std::vector<Candidate> initial;
  for (int32_t i = 0; i < count; ++i) {
    at(i).previous = i - 1;
    at(i).next = i + 1 < count ? i + 1 : -1;
    if (i + 1 == count) break;
    if (const Merge* merge = FindMerge(at(i).id, at(i + 1).id)) initial.push_back({merge->rank, i, merge->id});
  }
  std::priority_queue<Candidate> queue(std::less<Candidate>(), std::move(initial));
  const auto offer = [&](int32_t left, int32_t right) {
    if (left < 0 || right < 0) return;
    if (const Merge* merge = FindMerge(at(left).id, at(right).id)) queue.push({merge->rank, left, merge->id});
  };
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = at(best.position);
    if (left.id < 0 || left.next < 0) continue;
    Symbol& right = at(left.next);
    // Neighbours may have changed since the candidate was queued.
    const Merge* merge = FindMerge(left.id, right.id);
    if (merge == nullptr || merge->id != best.id) continue;
    left.id = merge->id;
    right.id = -1;
    left.next = right.next;
    if (left.next >= 0) at(left.next).previous = best.position;
    offer(left.previous, best.position);
    offer(best.position, left.next);
  }
}

Status BpeModel::Encode(std::string_view word, std::vector<int32_t>& ids) const {
  if (ignore_merges_) {
    if (const auto id = text_vocabulary_.IdOf(word)) {
      ids.push_back(*id);
      return Status::Ok();
    }
  }
  if (word.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return Status::InvalidInput(fmt::format("{}: a word of {} bytes, expected less than 2 GiB", origin_, word.size()));
  }
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  HW_RETURN_IF_ERROR(SplitIntoSymbols(word, symbols));
  MergeSymbols(symbols);
  for (const Symbol& symbol : symbols) {
    if (symbol.id >= 0) ids.push_back(symbol.id);
  }
  return Status::Ok();
}

}  // namespace headwise
