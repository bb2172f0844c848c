// The character maps that SentencePiece precompiles, in its own models and in the "Precompiled" normalizers of
// tokenizer.json files.
#ifndef HEADWISE_TEXT_CHARS_MAP_H_
#define HEADWISE_TEXT_CHARS_MAP_H_

#include <headwise/status.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace headwise {

// A model's precompiled character map: the length of a trie in bytes (u32), the trie as a double array (Darts) over
// what is to be replaced, then the replacements, each ended by a zero byte, at the offsets that the trie's values are.
// The library follows all of these numbers without a look at where they lead. An error unless every one that a text
// can reach lies inside, as do the replacements, none of which is longer than any rule of Unicode needs.
Status CheckCharsMap(std::string_view map, std::string_view origin);

// A sound map, to be looked up in.
class CharsMap {
 public:
  static Result<CharsMap> Of(std::string bytes, std::string_view origin);

  // What replaces the shortest beginning of `text` that has a rule; nothing where none has. Lives as long as the map.
  std::optional<std::string_view> ShortestRule(std::string_view text) const;

 private:
  explicit CharsMap(std::string bytes) : bytes_(std::move(bytes)) {}

  std::string bytes_;
};

}  // namespace headwise

#endif  // HEADWISE_TEXT_CHARS_MAP_H_
