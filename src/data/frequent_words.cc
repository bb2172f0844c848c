#include "data/frequent_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include "base/check.h"
#include "data/option_range.h"
#include "data/words.h"

namespace headwise {
namespace {

// These only bound what a caller can ask for: far more than a prompt holds.
constexpr int64_t kMaxMadeUp = 100'000;
constexpr int64_t kMaxRepeats = 1000;
constexpr int64_t kMaxTextWords = 10'000'000;

constexpr int64_t kMaxVocabulary = 10'000;
// Below 1 nearly all texts have ties, above 4 nearly all words are the same one.
constexpr double kMinAlpha = 1.0;
constexpr double kMaxAlpha = 4.0;
// The likeliest word's weight: small enough that rounding hides the error of a power.
constexpr double kMaxWeight = 0x1p32;

constexpr size_t kNumAsked = 3;

// Weights as whole numbers, summed up: what a draw gives does not hang on the last bit of a library's power function.
std::vector<uint64_t> CumulativeWeights(int64_t vocabulary, double alpha) {
  std::vector<uint64_t> sums;
  uint64_t sum = 0;
  for (int64_t k = 1; k <= vocabulary; ++k) {
    sum += static_cast<uint64_t>(std::llround(kMaxWeight * std::pow(static_cast<double>(k), -alpha)));
    sums.push_back(sum);
  }
  return sums;
}

void AppendDraws(Rng& rng, std::span<const uint64_t> cumulative, int64_t count, std::vector<uint32_t>& text) {
  for (int64_t i = 0; i < count; ++i) {
    const auto drawn = std::upper_bound(cumulative.begin(), cumulative.end(), rng.Below(cumulative.back()));
    text.push_back(static_cast<uint32_t>(drawn - cumulative.begin()));
  }
}

std::vector<int64_t> Counts(std::span<const uint32_t> text, size_t vocabulary) {
  std::vector<int64_t> counts(vocabulary);
  for (const uint32_t word : text) ++counts[word];
  return counts;
}

// The words that are more frequent than all others, the most frequent first; none if the last of them is not.
std::optional<std::array<uint32_t, kNumAsked>> MostFrequent(std::span<const int64_t> counts) {
  std::vector<uint32_t> words(counts.size());
  std::iota(words.begin(), words.end(), 0U);
  std::partial_sort(words.begin(), words.begin() + kNumAsked + 1, words.end(),
                    [&](uint32_t a, uint32_t b) { return counts[a] != counts[b] ? counts[a] > counts[b] : a < b; });
  if (counts[words[kNumAsked - 1]] == counts[words[kNumAsked]]) return std::nullopt;
  std::array<uint32_t, kNumAsked> most_frequent;
  std::copy_n(words.begin(), kNumAsked, most_frequent.begin());
  return most_frequent;
}

}  // namespace

int64_t MaxCommonWords(WordKind kind) {
  return kind == WordKind::kNouns ? static_cast<int64_t>(PlainNouns().size()) : kMaxMadeUp;
}

Status ValidateCommonWordOptions(const CommonWordOptions& options) {
  HW_RETURN_IF_ERROR(CheckOption("number of words", options.num_words, 1, MaxCommonWords(options.kind)));
  HW_RETURN_IF_ERROR(CheckOption("number of common words", options.num_common, 1, options.num_words));
  HW_RETURN_IF_ERROR(CheckOption("repeats of common words", options.common_repeats, 2, kMaxRepeats));
  HW_RETURN_IF_ERROR(CheckOption("repeats of uncommon words", options.uncommon_repeats, 1, options.common_repeats - 1));
  const int64_t num_uncommon = options.num_words - options.num_common;
  return CheckOption("length of the list",
                     options.num_common * options.common_repeats + num_uncommon * options.uncommon_repeats, 1,
                     kMaxTextWords);
}

CommonWords DrawCommonWords(Rng& rng, const CommonWordOptions& options) {
  HW_CHECK(ValidateCommonWordOptions(options).ok());
  CommonWords drawn = {.words = {},
                       .num_common = options.num_common,
                       .common_repeats = options.common_repeats,
                       .uncommon_repeats = options.uncommon_repeats,
                       .order_seed = 0};
  if (options.kind == WordKind::kNouns) {
    const std::span<const std::string_view> nouns = PlainNouns();
    for (const uint64_t i : DrawDistinct(rng, options.num_words, nouns.size())) drawn.words.emplace_back(nouns[i]);
  } else {
    drawn.words = DrawMadeUpWords(rng, options.num_words);
  }
  drawn.order_seed = rng.Below(uint64_t{1} << 63);
  return drawn;
}

AskedText MakeCommonWords(const CommonWords& drawn, int64_t num_words) {
  HW_CHECK(num_words >= drawn.num_common && num_words <= static_cast<int64_t>(drawn.words.size()),
           "{} words, {} common, {} drawn", num_words, drawn.num_common, drawn.words.size());
  std::vector<size_t> list;
  for (size_t i = 0; i < static_cast<size_t>(num_words); ++i) {
    const bool is_common = i < static_cast<size_t>(drawn.num_common);
    list.insert(list.end(), static_cast<size_t>(is_common ? drawn.common_repeats : drawn.uncommon_repeats), i);
  }
  Rng order_rng(drawn.order_seed);
  Shuffle(order_rng, list);
  AskedText text;
  text.context = "Below is a numbered list of words. Some words stand in it more often than the others.\n\n";
  for (size_t i = 0; i < list.size(); ++i) text.context += fmt::format("{}. {}\n", i + 1, drawn.words[list[i]]);
  text.context.pop_back();
  AskedQuestion& question = text.questions.emplace_back();
  const std::string_view what = "most common word";
  question.text = drawn.num_common == 1
                      ? fmt::format("\n\nWhat is the {} in the list above? The {} in the list above is", what, what)
                      : fmt::format("\n\nWhat are the {0} {1}s in the list above? The {0} {1}s in the list above are",
                                    drawn.num_common, what);
  question.expected.assign(drawn.words.begin(), drawn.words.begin() + drawn.num_common);
  return text;
}

Status ValidateFrequentWordOptions(const FrequentWordOptions& options) {
  HW_RETURN_IF_ERROR(CheckOption("number of words", options.num_words, kMinFrequentWords, kMaxTextWords));
  HW_RETURN_IF_ERROR(CheckOption("size of the vocabulary", options.vocabulary, int64_t{kNumAsked} + 1, kMaxVocabulary));
  return CheckOption("alpha", options.alpha, kMinAlpha, kMaxAlpha);
}

FrequentWords DrawFrequentWords(Rng& rng, const FrequentWordOptions& options) {
  HW_CHECK(ValidateFrequentWordOptions(options).ok());
  FrequentWords drawn = {.vocabulary = DrawMadeUpWords(rng, options.vocabulary), .text = {}};
  const std::vector<uint64_t> cumulative = CumulativeWeights(options.vocabulary, options.alpha);
  do {
    drawn.text.clear();
    AppendDraws(rng, cumulative, kMinFrequentWords, drawn.text);
  } while (!MostFrequent(Counts(drawn.text, drawn.vocabulary.size())));
  AppendDraws(rng, cumulative, options.num_words - kMinFrequentWords, drawn.text);
  return drawn;
}

AskedText MakeFrequentWords(const FrequentWords& drawn, int64_t num_words) {
  HW_CHECK(num_words >= kMinFrequentWords && num_words <= static_cast<int64_t>(drawn.text.size()), "{} of {} words",
           num_words, drawn.text.size());
  std::span<const uint32_t> used = std::span(drawn.text).first(static_cast<size_t>(num_words));
  std::vector<int64_t> counts = Counts(used, drawn.vocabulary.size());
  auto most_frequent = MostFrequent(counts);
  while (!most_frequent) {
    HW_CHECK(!used.empty());
    --counts[used.back()];
    used = used.first(used.size() - 1);
    most_frequent = MostFrequent(counts);
  }
  AskedText text;
  text.context = "Below is a text in a secret language. Keep in mind how often each word stands in it.\n\n";
  for (const uint32_t word : used) text.context += drawn.vocabulary[word] + ' ';
  text.context.pop_back();
  AskedQuestion& question = text.questions.emplace_back();
  question.text =
      "\n\nWhat are the three most frequent words in the text above? The three most frequent words in the text above "
      "are";
  for (const uint32_t word : *most_frequent) question.expected.push_back(drawn.vocabulary[word]);
  return text;
}

}  // namespace headwise
