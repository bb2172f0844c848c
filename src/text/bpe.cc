#include "text/bpe.h"

#include <fmt/format.h>

#include <limits>
#include <queue>

#include "text/utf8.h"

namespace headwise {
namespace {

uint64_t PairKey(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

}  // namespace

struct BpeModel::Candidate {
  uint32_t rank;
  int32_t position;
  int32_t id;

  // The best candidate is the lowest rank, then the leftmost.
  friend bool operator<(const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
  }
};

Result<BpeModel> BpeModel::FromJson(const JsonObject& model, const std::unordered_set<std::string>& reserved) {
  BpeModel bpe;
  bpe.origin_ = model.origin();
  HW_RETURN_IF_ERROR(bpe.ReadVocabulary(model, reserved));
  HW_RETURN_IF_ERROR(bpe.ReadOptions(model));
  HW_RETURN_IF_ERROR(bpe.ReadMerges(model));
  return bpe;
}

Status BpeModel::ReadVocabulary(const JsonObject& model, const std::unordered_set<std::string>& reserved) {
  HW_ASSIGN_OR_RETURN(const JsonObject vocab, model.Object("vocab"));
  std::vector<Vocabulary::Entry> text_entries;
  for (const auto& [token, value] : model.At("vocab").items()) {
    if (!value.is_number_integer() || value.get<double>() < 0 ||
        value.get<double>() > std::numeric_limits<int32_t>::max() / 2) {
      return Status::InvalidInput(fmt::format("{}: token \"{}\" has no id that could be one", vocab.origin(), token));
    }
    entries_.push_back({token, value.get<int32_t>()});
    if (!reserved.contains(token)) text_entries.push_back(entries_.back());
  }
  // Once for all tokens, so that errors are about the file and not about a part of it.
  HW_RETURN_IF_ERROR([&] {
    auto all = Vocabulary::Of(entries_, vocab.origin());
    return all.ok() ? Status::Ok() : std::move(all).status();
  }());
  HW_ASSIGN_OR_RETURN(text_vocabulary_, Vocabulary::Of(text_entries, vocab.origin()));
  return Status::Ok();
}

Status BpeModel::ReadOptions(const JsonObject& model) {
  // Dropout is for training; encoding with it would not even be repeatable.
  HW_ASSIGN_OR_RETURN(const double dropout, model.DoubleOr("dropout", 0.0));
  if (dropout != 0.0) return Status::Unsupported(fmt::format("{}: dropout {}, expected none", origin_, dropout));
  HW_ASSIGN_OR_RETURN(continuing_prefix_, model.StringOr("continuing_subword_prefix", ""));
  HW_ASSIGN_OR_RETURN(end_of_word_suffix_, model.StringOr("end_of_word_suffix", ""));
  HW_ASSIGN_OR_RETURN(fuse_unknown_, model.BoolOr("fuse_unk", false));
  HW_ASSIGN_OR_RETURN(ignore_merges_, model.BoolOr("ignore_merges", false));
  if (model.Has("unk_token")) {
    HW_ASSIGN_OR_RETURN(const std::string unknown, model.String("unk_token"));
    for (const Vocabulary::Entry& entry : entries_) {
      if (entry.token == unknown) unknown_id_ = entry.id;
    }
    if (!unknown_id_) {
      return Status::InvalidInput(fmt::format("{}: unk_token \"{}\" is not in the vocabulary", origin_, unknown));
    }
  }
  HW_ASSIGN_OR_RETURN(const bool byte_fallback, model.BoolOr("byte_fallback", false));
  if (byte_fallback) {
    for (int byte = 0; byte < 256; ++byte) {
      byte_ids_.push_back(text_vocabulary_.IdOf(fmt::format("<0x{:02X}>", byte)).value_or(-1));
    }
  }
  return Status::Ok();
}

Status BpeModel::ReadMerges(const JsonObject& model) {
  if (!model.Has("merges") || !model.At("merges").is_array()) {
    return Status::InvalidInput(fmt::format("{}: \"merges\" is missing or not a list", origin_));
  }
  const Json& merges = model.At("merges");
  merges_.reserve(merges.size());
  uint32_t rank = 0;
  for (const Json& merge : merges) {
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      HW_RETURN_IF_ERROR(
          AddMerge(merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>(), rank));
    } else if (merge.is_string()) {
      const std::string_view text = merge.get_ref<const std::string&>();
      const size_t space = text.find(' ');
      if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
        return Status::InvalidInput(
            fmt::format("{}: merge {} is \"{}\", expected two tokens and a space", origin_, rank, text));
      }
      HW_RETURN_IF_ERROR(AddMerge(text.substr(0, space), text.substr(space + 1), rank));
    } else {
      return Status::InvalidInput(fmt::format("{}: merge {} is neither \"a b\" nor [\"a\", \"b\"]", origin_, rank));
    }
    ++rank;
  }
  return Status::Ok();
}

Status BpeModel::AddMerge(std::string_view left, std::string_view right, uint32_t rank) {
  // The right part of a pair is inside a word and carries the prefix; the merged token carries only the left one's.
  std::string_view tail = right;
  if (!continuing_prefix_.empty() && tail.starts_with(continuing_prefix_))
    tail.remove_prefix(continuing_prefix_.size());
  const std::string merged = std::string(left).append(tail);
  const auto known = [&](std::string_view token) { return text_vocabulary_.IdOf(token); };
  const auto left_id = known(left);
  const auto right_id = known(right);
  const auto merged_id = known(merged);
  if (left_id && right_id && merged_id) {
    merges_.insert_or_assign(PairKey(*left_id, *right_id), Merge{rank, *merged_id});
    return Status::Ok();
  }
  for (const std::string_view token : {left, right, std::string_view(merged)}) {
    bool exists = known(token).has_value();
    // A reserved token is in the file but not for text: the merge is not for text either.
    for (size_t i = 0; !exists && i < entries_.size(); ++i) exists = entries_[i].token == token;
    if (!exists) {
      return Status::InvalidInput(
          fmt::format("{}: merge {} needs the token \"{}\", which is not in the vocabulary", origin_, rank, token));
    }
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
