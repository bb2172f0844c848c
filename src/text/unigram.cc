#include "text/unigram.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "text/tokenizer_files.h"
#include "text/utf8.h"

namespace headwise {
namespace {

// SentencePiece's own: so much worse than the worst piece is a character without one.
constexpr double kUnknownPenalty = 10.0;
// Every place of a text is looked at once for each length up to the longest piece. Published ones end at 128 bytes.
constexpr size_t kMaxPieceBytes = 512;

}  // namespace

Result<UnigramModel> UnigramModel::FromJson(const JsonObject& model, const std::unordered_set<std::string>& reserved) {
  UnigramModel unigram;
  unigram.origin_ = model.origin();
  if (!model.Has("vocab") || !model.At("vocab").is_array()) {
    return Status::InvalidInput(fmt::format("{}: \"vocab\" is missing or not a list", unigram.origin_));
  }
  HW_RETURN_IF_ERROR(unigram.ReadPieces(model.At("vocab")));
  HW_RETURN_IF_ERROR(unigram.ReadUnknown(model));
  unigram.BuildTrie(reserved);
  HW_ASSIGN_OR_RETURN(const bool byte_fallback, model.BoolOr("byte_fallback", false));
  for (int byte = 0; byte_fallback && byte < 256; ++byte) {
    unigram.byte_ids_.push_back(unigram.Find(fmt::format("<0x{:02X}>", byte)).value_or(kNone));
  }
  return unigram;
}

Status UnigramModel::ReadPieces(const Json& vocab) {
  for (const Json& piece : vocab) {
    const size_t id = entries_.size();
    if (id > static_cast<size_t>(kMaxTokenId)) {
      return Status::InvalidInput(fmt::format("{}: vocab of {} pieces", origin_, vocab.size()));
    }
    if (!piece.is_array() || piece.size() != 2 || !piece[0].is_string() || !piece[1].is_number()) {
      return Status::InvalidInput(fmt::format("{}: vocab: piece {}, expected [\"text\", score]", origin_, id));
    }
    const auto& text = piece[0].get_ref<const std::string&>();
    const auto score = piece[1].get<double>();
    if (text.size() > kMaxPieceBytes || !std::isfinite(score)) {
      return Status::InvalidInput(
          fmt::format("{}: vocab: piece {} has {} bytes and the score {}, expected at most {} "
                      "and a finite one",
                      origin_, id, text.size(), score, kMaxPieceBytes));
    }
    entries_.push_back({text, static_cast<int32_t>(id)});
    scores_.push_back(score);
  }
  return Status::Ok();
}

Status UnigramModel::ReadUnknown(const JsonObject& model) {
  const auto least = std::min_element(scores_.begin(), scores_.end());
  unknown_score_ = (least == scores_.end() ? 0.0 : *least) - kUnknownPenalty;
  if (!model.Has("unk_id")) return Status::Ok();
  HW_ASSIGN_OR_RETURN(const int64_t id, model.Int("unk_id"));
  if (id < 0 || id >= static_cast<int64_t>(entries_.size())) {
    return Status::InvalidInput(fmt::format("{}: unk_id {} of {} pieces", origin_, id, entries_.size()));
  }
  unknown_id_ = static_cast<int32_t>(id);
  return Status::Ok();
}

void UnigramModel::BuildTrie(const std::unordered_set<std::string>& reserved) {
  std::vector<const Vocabulary::Entry*> sorted;
  for (const Vocabulary::Entry& entry : entries_) {
    if (!entry.token.empty() && !reserved.contains(entry.token)) sorted.push_back(&entry);
  }
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) { return a->token < b->token; });
  // A node is the range of pieces that begin alike, as far as it is deep.
  struct Range {
    size_t begin;
    size_t end;
    size_t depth;
  };
  std::vector<Range> ranges{{0, sorted.size(), 0}};
  nodes_.emplace_back();
  for (size_t i = 0; i < ranges.size(); ++i) {
    Range range = ranges[i];
    // The shortest come first: those that are all of what the range shares. Of equal ones the last counts.
    while (range.begin < range.end && sorted[range.begin]->token.size() == range.depth) {
      nodes_[i].id = sorted[range.begin++]->id;
    }
    nodes_[i].first_child = static_cast<uint32_t>(nodes_.size());
    while (range.begin < range.end) {
      const auto label = static_cast<unsigned char>(sorted[range.begin]->token[range.depth]);
      size_t end = range.begin + 1;
      while (end < range.end && static_cast<unsigned char>(sorted[end]->token[range.depth]) == label) ++end;
      nodes_.push_back({.label = label});
      ranges.push_back({range.begin, end, range.depth + 1});
      range.begin = end;
    }
    nodes_[i].num_children = static_cast<uint32_t>(nodes_.size()) - nodes_[i].first_child;
  }
}

const UnigramModel::Node* UnigramModel::ChildOf(const Node& node, unsigned char label) const {
  const Node* begin = nodes_.data() + node.first_child;
  const Node* end = begin + node.num_children;
  const Node* child = std::lower_bound(begin, end, label, [](const Node& n, unsigned char l) { return n.label < l; });
  return child != end && child->label == label ? child : nullptr;
}

std::optional<int32_t> UnigramModel::Find(std::string_view piece) const {
  const Node* node = nodes_.data();
  for (size_t at = 0; node != nullptr && at < piece.size(); ++at) {
    node = ChildOf(*node, static_cast<unsigned char>(piece[at]));
  }
  return node == nullptr || node->id == kNone ? std::nullopt : std::optional(node->id);
}

Status UnigramModel::FindBest(std::string_view word, std::vector<Best>& best) const {
  const auto offer = [&best](size_t begin, size_t end, double score, int32_t id) {
    Best& there = best[end];
    const double sum = best[begin].score + score;
    // Of equal ways the one found first, whose last piece is the longest.
    if (there.size_bytes == 0 || sum > there.score) there = {sum, static_cast<uint32_t>(end - begin), id};
  };
  for (size_t at = 0; at < word.size();) {
    const size_t character_end = at + FirstCharacter(word.substr(at)).size_bytes;
    bool has_character = false;
    const Node* node = nodes_.data();
    for (size_t end = at; end < word.size();) {
      node = ChildOf(*node, static_cast<unsigned char>(word[end++]));
      if (node == nullptr) break;
      if (node->id == kNone) continue;
      offer(at, end, scores_[static_cast<size_t>(node->id)], node->id);
      has_character = has_character || end == character_end;
    }
    if (!has_character) {
      if (!unknown_id_) {
        return Status::InvalidInput(fmt::format("{}: no piece for \"{}\", and none for unknown text", origin_,
                                                word.substr(at, character_end - at)));
      }
      offer(at, character_end, unknown_score_, *unknown_id_);
    }
    at = character_end;
  }
  return Status::Ok();
}

void UnigramModel::AppendUnknown(std::string_view text, std::vector<int32_t>& ids) const {
  const auto id_of = [&](char c) { return byte_ids_[static_cast<unsigned char>(c)]; };
  const bool falls_back =
      !byte_ids_.empty() && std::all_of(text.begin(), text.end(), [&](char c) { return id_of(c) != kNone; });
  if (falls_back) {
    for (const char c : text) ids.push_back(id_of(c));
  } else {
    ids.push_back(*unknown_id_);
  }
}

Status UnigramModel::Encode(std::string_view word, std::vector<int32_t>& ids) const {
  std::vector<Best> best(word.size() + 1);
  HW_RETURN_IF_ERROR(FindBest(word, best));
  std::vector<std::string_view> pieces;  // from the end
  bool after_unknown = false;
  for (size_t end = word.size(); end > 0;) {
    const Best& last = best[end];
    const std::string_view piece = word.substr(end - last.size_bytes, last.size_bytes);
    const bool is_unknown = last.id == unknown_id_;
    if (is_unknown && after_unknown) {
      // A run of what is unknown is one piece.
      pieces.back() = {piece.data(), piece.size() + pieces.back().size()};
    } else {
      pieces.push_back(piece);
    }
    after_unknown = is_unknown;
    end -= last.size_bytes;
  }
  for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece) {
    if (const auto id = Find(*piece)) {
      ids.push_back(*id);
    } else {
      AppendUnknown(*piece, ids);
    }
  }
  return Status::Ok();
}

}  // namespace headwise
