// headwise eval words: the most common words of a list and the most frequent words of a text, RULER's aggregation
// [arXiv 2404.06654]: the answer is in no one place of the text.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/mix_seed.h"
#include "data/frequent_words.h"
#include "eval/judge.h"
#include "eval/tasks/haystack.h"
#include "eval/tasks/tasks.h"

namespace headwise {
namespace {

constexpr const char* kCommon = "common";
constexpr const char* kFrequent = "frequent";

// Numbers and single letters belong to the answer's form.
bool IsListedWord(std::string_view word) {
  return word.size() > 1 && word != "and" &&
         std::ranges::all_of(word, [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); });
}

Result<AskedCase> MakeCommonCase(const TaskInput& input, const Haystack& haystack, int64_t length, Rng& rng) {
  CommonWordOptions options;
  options.kind = WordKind::kMadeUp;
  // RULER's 30 and 3 from 6,000 tokens on; in shorter texts about half of the list is common words.
  options.common_repeats = std::clamp<int64_t>(length / 200, 4, 30);
  options.uncommon_repeats = std::max<int64_t>(1, options.common_repeats / 10);
  options.num_words = MaxCommonWords(options.kind);
  HW_RETURN_IF_ERROR(ValidateCommonWordOptions(options));
  const CommonWords words = DrawCommonWords(rng, options);
  return FitRowsCase(input, haystack, length, options.num_words - options.num_common + 1,
                     [&](int64_t num_rows) { return MakeCommonWords(words, options.num_common + num_rows - 1); });
}

Result<AskedCase> MakeFrequentCase(const TaskInput& input, const Haystack& haystack, int64_t length, Rng& rng) {
  FrequentWordOptions options;
  options.num_words = std::max(kMinFrequentWords, length);  // a word has a token at least
  HW_RETURN_IF_ERROR(ValidateFrequentWordOptions(options));
  const FrequentWords words = DrawFrequentWords(rng, options);
  return FitRowsCase(input, haystack, length, options.num_words - kMinFrequentWords + 1,
                     [&](int64_t num_rows) { return MakeFrequentWords(words, kMinFrequentWords + num_rows - 1); });
}

Result<std::unique_ptr<Task>> MakeWords(const TaskInput& input) {
  HW_ASSIGN_OR_RETURN(Haystack haystack, ReadHaystack(input, /*max_new_tokens=*/96));
  HW_ASSIGN_OR_RETURN(const std::string kind,
                      input.options.ChoiceOr("kind", std::to_array<std::string_view>({"both", kCommon, kFrequent})));
  AskedTaskParts& parts = haystack.parts;
  parts.limits.stop = {};  // models write lists
  for (const int64_t length : parts.lengths) {
    for (const char* each : {kCommon, kFrequent}) {
      if (kind != "both" && kind != each) continue;
      for (int64_t i = 0; i < haystack.num_cases; ++i) {
        Rng rng(MixSeed(haystack.seed, length, i));
        auto asked = each == kCommon ? MakeCommonCase(input, haystack, length, rng)
                                     : MakeFrequentCase(input, haystack, length, rng);
        if (!asked.ok()) return std::move(asked).status().Annotate(fmt::format("words, {}", each));
        asked->questions.front().tags["kind"] = each;
        parts.cases.push_back(*std::move(asked));
      }
    }
  }
  parts.judge = RecallJudge(IsListedWord);
  return MakeAskedTask(std::move(parts));
}

}  // namespace

const TaskMethod kWordsTask = {
    .name = "words",
    .title = "Most common words",
    .description = "the most common words of a list, the most frequent ones of a text",
    .options = {{"kind", "both, common (of a list) or frequent (of a text); --cases of each"},
                kLengthsOption,
                kCasesOption,
                kSeedOption,
                kBatchOption,
                kMaxNewTokensOption},
    .metrics = AccuracyMetrics(),
    .make = MakeWords,
};

}  // namespace headwise
