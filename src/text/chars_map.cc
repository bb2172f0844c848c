#include "text/chars_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "text/utf8.h"

namespace headwise {
namespace {

class Trie {
 public:
  // `bytes` is a multiple of 4 long.
  explicit Trie(std::string_view bytes) : bytes_(bytes) {}

  uint32_t size() const { return static_cast<uint32_t>(bytes_.size() / sizeof(uint32_t)); }
  // Bit 31 is set in values; else bits 0-7 are the label, 8 says that a value belongs to it, 10-30 are the offset, in
  // units of 256 where bit 9 is set.
  uint32_t At(uint32_t idx) const {
    uint32_t unit;
    std::memcpy(&unit, bytes_.data() + size_t{idx} * sizeof(unit), sizeof(unit));
    return unit;
  }
  static bool HasLabel(uint32_t unit, uint32_t label) { return (unit & 0x8000'00FFu) == label; }
  static bool HasValue(uint32_t unit) { return (unit >> 8 & 1) != 0; }
  static uint32_t Offset(uint32_t unit) { return (unit >> 10) << ((unit & 0x200u) >> 6); }
  static uint32_t Value(uint32_t unit) { return unit & 0x7FFF'FFFFu; }

 private:
  std::string_view bytes_;
};

// Goes down every way that a text can take. A place is where a unit's offset leads; its children are the units of the
// same block of 256, each at its label.
class TrieWalk {
 public:
  TrieWalk(const Trie& trie, std::string_view replacements)
      : trie_(trie), replacements_(replacements), most_below_(trie.size(), kNotSeen) {}

  // What is wrong with it; nothing if it is sound.
  std::optional<std::string_view> FindFault() {
    if (trie_.size() == 0) return "has no trie";
    Enter(Trie::Offset(trie_.At(0)), 0);
    while (!fault_ && !way_.empty()) {
      if (way_.back().label < 256) {
        Look(way_.back().label++);
      } else {
        Leave();
      }
    }
    return fault_;
  }

 private:
  // The most matches that the library has room for at one place of a text.
  static constexpr int kMaxMatches = 32;
  static constexpr int kNotSeen = -1;
  static constexpr int kOnTheWay = -2;

  struct Step {
    uint32_t place = 0;
    uint32_t label = 0;  // the next to look at
    int has_value = 0;   // 1 if a text that ends where this place begins is matched
    int most = 0;        // matches on any way below, as far as that is known
  };

  void Enter(uint32_t place, int has_value) {
    if ((place | 0xFFu) >= trie_.size()) {
      fault_ = "leads beyond its trie";
      return;
    }
    most_below_[place] = kOnTheWay;
    way_.push_back({.place = place, .has_value = has_value});
  }

  void Look(uint32_t label) {
    const uint32_t unit = trie_.At(way_.back().place ^ label);
    if (!Trie::HasLabel(unit, label)) return;
    const uint32_t below = way_.back().place ^ label ^ Trie::Offset(unit);
    const int has_value = Trie::HasValue(unit) ? 1 : 0;
    if (below >= trie_.size()) {
      fault_ = "leads beyond its trie";
    } else if (has_value == 1 && !IsReplacement(Trie::Value(trie_.At(below)))) {
      fault_ = "has a replacement that is too long, not UTF-8 or beyond its end";
    } else if (most_below_[below] == kOnTheWay) {
      fault_ = "leads back to where it was";
    } else if (most_below_[below] == kNotSeen) {
      Enter(below, has_value);
    } else {
      // Ways that meet have the same below them.
      Count(most_below_[below] + has_value);
    }
  }

  void Leave() {
    const Step step = way_.back();
    way_.pop_back();
    most_below_[step.place] = step.most;
    if (!way_.empty()) Count(step.most + step.has_value);
  }

  void Count(int most) {
    way_.back().most = std::max(way_.back().most, most);
    if (most > kMaxMatches) fault_ = "has too many matches within each other";
  }

  bool IsReplacement(uint32_t at) const {
    // Far above the 18 characters of the longest decomposition.
    constexpr size_t kMaxBytes = 256;
    if (at >= replacements_.size()) return false;
    const std::string_view text = replacements_.substr(at, kMaxBytes + 1);
    const size_t end = text.find('\0');
    return end != std::string_view::npos && !FindInvalidUtf8(text.substr(0, end));
  }

  const Trie& trie_;
  std::string_view replacements_;
  std::vector<int> most_below_;  // by place
  std::vector<Step> way_;
  std::optional<std::string_view> fault_;
};

// A map's two parts.
struct MapParts {
  Trie trie;
  std::string_view replacements;
};

// The length in front of the trie is not looked at again. Requires: CheckCharsMap passed.
MapParts PartsOf(std::string_view map) {
  uint32_t trie_bytes;
  std::memcpy(&trie_bytes, map.data(), sizeof(trie_bytes));
  map.remove_prefix(sizeof(trie_bytes));
  return {Trie(map.substr(0, trie_bytes)), map.substr(trie_bytes)};
}

}  // namespace

Status CheckCharsMap(std::string_view map, std::string_view origin) {
  // The largest that SentencePiece comes with has 0.3 MB.
  constexpr size_t kMaxTrieBytes = size_t{4} << 20;
  const auto broken = [&](std::string_view what) {
    return Status::InvalidInput(
        fmt::format("{}: its character map {}, expected one that SentencePiece wrote", origin, what));
  };
  uint32_t trie_bytes;
  if (map.size() < sizeof(trie_bytes)) return broken("is cut short");
  std::memcpy(&trie_bytes, map.data(), sizeof(trie_bytes));
  map.remove_prefix(sizeof(trie_bytes));
  if (trie_bytes > std::min(kMaxTrieBytes, map.size())) {
    return broken(fmt::format("says that its trie has {} of {} bytes", trie_bytes, map.size()));
  }
  const Trie trie(map.substr(0, trie_bytes));
  const auto fault = TrieWalk(trie, map.substr(trie_bytes)).FindFault();
  return fault ? broken(*fault) : Status::Ok();
}

Result<CharsMap> CharsMap::Of(std::string bytes, std::string_view origin) {
  HW_RETURN_IF_ERROR(CheckCharsMap(bytes, origin));
  return CharsMap(std::move(bytes));
}

std::optional<std::string_view> CharsMap::ShortestRule(std::string_view text) const {
  const auto [trie, replacements] = PartsOf(bytes_);
  uint32_t place = Trie::Offset(trie.At(0));
  for (const char c : text) {
    const auto label = static_cast<unsigned char>(c);
    if (label == 0) break;
    place ^= label;
    const uint32_t unit = trie.At(place);
    if (!Trie::HasLabel(unit, label)) break;
    place ^= Trie::Offset(unit);
    if (!Trie::HasValue(unit)) continue;
    const std::string_view from = replacements.substr(Trie::Value(trie.At(place)));
    return from.substr(0, from.find('\0'));
  }
  return std::nullopt;
}

}  // namespace headwise
