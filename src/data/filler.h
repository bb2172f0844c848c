// Long text in which things are hidden: plain English sentences made from a seed, or a user's file. The text carries no
// meaning for any task; what a calibration prompt asks for is put into it by others (data/passkeys.h).
#ifndef HEADWISE_DATA_FILLER_H_
#define HEADWISE_DATA_FILLER_H_

#include <headwise/status.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "base/rng.h"

namespace headwise {

// At least `min_chars` bytes of ASCII prose: whole paragraphs, an empty line between them. The same generator state
// gives the same text on every machine, and a longer text begins with the shorter one. It has no digits and none of the
// words that passkeys are made of.
std::string MakeFiller(Rng& rng, int64_t min_chars);

// Places where a text may be cut, the better ones first.
enum class TextBoundary {
  kParagraph,  // after an empty line
  kSentence,   // after the white space that follows the end of a sentence
  kWord,       // after white space
};
// The last such place at or before `offset`, or the last of a weaker kind where there is none close by; in the end, the
// last start of a character. The start of the text is of every kind. Requires: `text` is valid UTF-8, offset <= its
// size.
size_t BoundaryBefore(std::string_view text, size_t offset, TextBoundary boundary);

std::string_view WithoutSpaceAtEnd(std::string_view text);

struct HiddenSentence {
  std::string text;
  double depth = 0.0;  // where in a text it stands: 0 is the start, 1 the end
};
// `text` with every sentence at the last start of a sentence at or before its depth, and a space behind it. Of those at
// one place the less deep stand first, and of equally deep ones the earlier in the list. Requires: 0 <= depth <= 1;
// `text` is valid UTF-8, and may be empty.
std::string HideSentences(std::string_view text, std::span<const HiddenSentence> sentences);

// Where passages come from.
class TextSource {
 public:
  // MakeFiller.
  static TextSource Generator();
  // A UTF-8 text file, kept in memory.
  static Result<TextSource> FromFile(const std::filesystem::path& path);

  // A text of at most `num_chars` bytes that ends at a word and is at most 48 bytes shorter. From a file: any part with
  // equal chance, begun at the paragraph or sentence that reaches into it; an error if the file is shorter. The same
  // generator state gives the same passage. Requires: num_chars >= 0.
  Result<std::string> Passage(Rng& rng, int64_t num_chars) const;

  // What the passages depend on besides the generator's state: SHA-256 of the file, or "generator-<version>".
  std::string Hash() const;

 private:
  TextSource() = default;

  std::string path_;  // empty: the generator
  std::string text_;
};

}  // namespace headwise

#endif  // HEADWISE_DATA_FILLER_H_
