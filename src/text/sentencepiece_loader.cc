#include "text/sentencepiece_loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <optional>
#include <span>
#include <vector>

namespace headwise {
namespace {

// ---- The fields of a protocol buffer, as far as they lead to character maps. ----

// Reads front to back; nothing where the bytes are no field.
class Fields {
 public:
  explicit Fields(std::string_view bytes) : rest_(bytes) {}

  bool done() const { return rest_.empty(); }

  struct Field {
    uint64_t number = 0;
    std::string_view bytes;  // of a string or a message, empty for numbers
  };
  std::optional<Field> Next() {
    const auto tag = Varint();
    if (!tag || *tag >> 32 != 0 || *tag >> 3 == 0) return std::nullopt;
    Field field{.number = *tag >> 3, .bytes = {}};
    constexpr uint64_t kVarint = 0, k64Bits = 1, kBytes = 2, k32Bits = 5;
    uint64_t size = 0;
    switch (*tag & 7) {
      case kVarint:
        return Varint() ? std::optional(field) : std::nullopt;
      case k64Bits:
        size = 8;
        break;
      case k32Bits:
        size = 4;
        break;
      case kBytes: {
        const auto length = Varint();
        if (!length || *length > rest_.size()) return std::nullopt;
        field.bytes = rest_.substr(0, *length);
        size = *length;
        break;
      }
      default:
        return std::nullopt;
    }
    if (size > rest_.size()) return std::nullopt;
    rest_.remove_prefix(size);
    return field;
  }

 private:
  std::optional<uint64_t> Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
    return std::nullopt;
  }

  std::string_view rest_;
};

// What every field of that number holds, at the end of a path of numbers: each of them is merged into one message, the
// last value of which counts, so that all may come to be used.
Status CollectBytes(std::string_view message, std::span<const uint64_t> path, std::string_view origin,
                    std::vector<std::string_view>& found) {
  for (Fields fields(message); !fields.done();) {
    const auto field = fields.Next();
    if (!field) return Status::InvalidInput(fmt::format("{}: not a SentencePiece model: a malformed field", origin));
    if (field->number != path.front()) continue;
    if (path.size() == 1) {
      found.push_back(field->bytes);
    } else {
      HW_RETURN_IF_ERROR(CollectBytes(field->bytes, path.subspan(1), origin, found));
    }
  }
  return Status::Ok();
}

// ---- The double array. ----

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
      fault_ = "has a replacement that is too long or beyond its end";
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
    return at < replacements_.size() && replacements_.substr(at, kMaxBytes + 1).find('\0') != std::string_view::npos;
  }

  const Trie& trie_;
  std::string_view replacements_;
  std::vector<int> most_below_;  // by place
  std::vector<Step> way_;
  std::optional<std::string_view> fault_;
};

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

Result<std::unique_ptr<sentencepiece::SentencePieceProcessor>> LoadSentencePiece(std::string_view bytes,
                                                                                 std::string_view origin) {
  // ModelProto's normalizer and denormalizer; a NormalizerSpec's map.
  constexpr uint64_t kPaths[][2] = {{3, 2}, {5, 2}};
  std::vector<std::string_view> maps;
  for (const auto& path : kPaths) HW_RETURN_IF_ERROR(CollectBytes(bytes, path, origin, maps));
  for (const std::string_view map : maps) {
    if (!map.empty()) HW_RETURN_IF_ERROR(CheckCharsMap(map, origin));
  }
  auto processor = std::make_unique<sentencepiece::SentencePieceProcessor>();
  try {
    const auto status = processor->LoadFromSerializedProto(absl::string_view(bytes.data(), bytes.size()));
    if (status.ok()) return processor;
    return Status::InvalidInput(fmt::format("{}: not a SentencePiece model: {}", origin, status.ToString()));
  } catch (const std::exception& error) {  // of its tries over the vocabulary
    return Status::InvalidInput(fmt::format("{}: not a SentencePiece model: {}", origin, error.what()));
  }
}

}  // namespace headwise
