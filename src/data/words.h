// Words and draws that several generators of texts share.
#ifndef HEADWISE_DATA_WORDS_H_
#define HEADWISE_DATA_WORDS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/rng.h"

namespace headwise {

// Different values below `limit`, in random order. Requires: 0 <= count <= limit.
std::vector<uint64_t> DrawDistinct(Rng& rng, int64_t count, uint64_t limit);

// Every order equally likely. The standard's shuffle differs from library to library.
template <typename T>
void Shuffle(Rng& rng, std::vector<T>& items) {
  for (size_t left = items.size(); left > 1; --left) std::swap(items[left - 1], items[rng.Below(left)]);
}

// Plain English nouns, all different. Their order is part of what seeds mean: words may be added at the end only.
std::span<const std::string_view> PlainNouns();

// There are so many different made-up words.
extern const int64_t kMaxMadeUpWords;

// Different words that no language model has met, "tazilo": three syllables, all of the same length. Requires: 0 <=
// count <= kMaxMadeUpWords.
std::vector<std::string> DrawMadeUpWords(Rng& rng, int64_t count);

}  // namespace headwise

#endif  // HEADWISE_DATA_WORDS_H_
