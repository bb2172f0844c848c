// Words to be counted: RULER's aggregation tasks [ruler §3.3]. The answer is nowhere in the text: all of the text has
// to be read for it.
#ifndef HEADWISE_DATA_FREQUENT_WORDS_H_
#define HEADWISE_DATA_FREQUENT_WORDS_H_

#include <headwise/status.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/rng.h"
#include "data/asked_text.h"

namespace headwise {

enum class WordKind {
  kNouns,   // PlainNouns: as many as there are
  kMadeUp,  // from syllables: for longer lists
};

// A numbered list in which some words stand often, and all others less often.
struct CommonWordOptions {
  int64_t num_words = 100;  // different ones, the common ones among them: at most MaxCommonWords
  int64_t num_common = 10;
  int64_t common_repeats = 30;  // more than uncommon_repeats; at most 1,000
  int64_t uncommon_repeats = 3;
  WordKind kind = WordKind::kNouns;
};

struct CommonWords {
  std::vector<std::string> words;  // all different; the common ones first
  int64_t num_common = 0;
  int64_t common_repeats = 0;
  int64_t uncommon_repeats = 0;
  uint64_t order_seed = 0;
};

int64_t MaxCommonWords(WordKind kind);

// An error if an option is out of range.
Status ValidateCommonWordOptions(const CommonWordOptions& options);

// Requires: valid options.
CommonWords DrawCommonWords(Rng& rng, const CommonWordOptions& options);

// The list of the first words, in random order, and a question for the common ones. Requires: num_common <= num_words
// <= those drawn.
AskedText MakeCommonWords(const CommonWords& drawn, int64_t num_words);

// A text of made-up words: the k-th of the vocabulary stands at any place with a probability that falls as k^-alpha.
struct FrequentWordOptions {
  int64_t num_words = 1000;   // of the text: kMinFrequentWords to 10,000,000
  int64_t vocabulary = 2000;  // different words to draw from, 4 to 10,000; short texts have few of them
  double alpha = 2.0;         // 1 to 4
};

inline constexpr int64_t kMinFrequentWords = 100;

struct FrequentWords {
  std::vector<std::string> vocabulary;  // all different, the likelier first
  std::vector<uint32_t> text;           // indices of words in the vocabulary
};

// An error if an option is out of range.
Status ValidateFrequentWordOptions(const FrequentWordOptions& options);

// Among the first kMinFrequentWords words already, three are more frequent than all others. Requires: valid options.
FrequentWords DrawFrequentWords(Rng& rng, const FrequentWordOptions& options);

// The drawn text's longest beginning of at most `num_words` words in which three words are more frequent than all
// others, and a question for these three; the expected ones are in order of frequency. Requires: kMinFrequentWords <=
// num_words <= those drawn.
AskedText MakeFrequentWords(const FrequentWords& drawn, int64_t num_words);

}  // namespace headwise

#endif  // HEADWISE_DATA_FREQUENT_WORDS_H_
