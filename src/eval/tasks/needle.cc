// headwise eval needle: needles in a haystack, over length and depth, and RULER's harder forms of it [arXiv
// 2404.06654]: several keys, several values, several questions, a haystack of needles.
#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "base/mix_seed.h"
#include "data/lines.h"
#include "data/needles.h"
#include "eval/judge.h"
#include "eval/metrics.h"
#include "eval/tasks/haystack.h"
#include "eval/tasks/tasks.h"

namespace headwise {
namespace {

struct Variant {
  std::string_view name;
  NeedleOptions options;
  enum class Hay { kText, kNeedles, kWords } hay = Hay::kText;

  // Whether one needle is asked for, so that a map over depths makes sense.
  bool HasDepth() const { return hay == Hay::kWords || (options.values_per_key == 1 && options.num_questions == 1); }
};

// The numbers of keys, values and questions are RULER's.
const std::vector<Variant>& Variants() {
  static const std::vector<Variant> kVariants = {
      {.name = "single", .options = {}},
      {.name = "multikey", .options = {.num_keys = 4}},
      {.name = "multivalue", .options = {.values_per_key = 4}},
      {.name = "multiquery", .options = {.num_keys = 4, .num_questions = 4}},
      {.name = "needles", .options = {.num_distractors = kMaxLines - 1}, .hay = Variant::Hay::kNeedles},
      {.name = "words", .options = {}, .hay = Variant::Hay::kWords},
  };
  return kVariants;
}

Result<std::vector<Variant>> ReadVariants(const NamedOptions& options) {
  std::vector<Variant> wanted;
  for (const std::string& name : options.StringsOr("variants", "single")) {
    const auto found = std::ranges::find(Variants(), name, &Variant::name);
    if (found == Variants().end()) {
      std::string known;
      for (const Variant& variant : Variants()) known += fmt::format("{}{}", known.empty() ? "" : ", ", variant.name);
      return Status::InvalidInput(fmt::format("--variants: found \"{}\", expected some of: {}", name, known));
    }
    wanted.push_back(*found);
  }
  return wanted;
}

// Even depths, in turn, so that few cases reach all of the text.
double DepthOf(int64_t case_idx, int64_t num_depths) {
  return num_depths == 1 ? 0.5 : static_cast<double>(case_idx % num_depths) / static_cast<double>(num_depths - 1);
}

Result<AskedCase> MakeCase(const TaskInput& input, const Haystack& haystack, const Variant& variant, int64_t length,
                           Rng& rng, std::optional<double> depth) {
  if (variant.hay == Variant::Hay::kWords) {
    WordNeedle needle = DrawWordNeedle(rng);
    if (depth) needle.depth = *depth;
    return FitCase(input, haystack, rng, length,
                   [&](std::string_view filler) { return MakeWordNeedle(filler, needle); });
  }
  NeedleOptions options = variant.options;
  options.depth = depth;
  HW_RETURN_IF_ERROR(ValidateNeedleOptions(options));
  const Needles needles = DrawNeedles(rng, options);
  if (variant.hay == Variant::Hay::kNeedles) {
    return FitRowsCase(input, haystack, length, options.num_distractors + 1,
                       [&](int64_t num_rows) { return MakeNeedlesOnly(needles, num_rows - 1); });
  }
  return FitCase(input, haystack, rng, length, [&](std::string_view filler) { return MakeNeedles(filler, needles); });
}

// Numbers as everywhere; of words, the phrase must stand in the answer's first sentence.
Scores JudgeNeedle(std::string_view answer, const AskedCase::Question& question) {
  if (question.tags.at("variant") != "words") return RecallJudge(IsNumber)(answer, question);
  const bool holds = HoldsWhole(answer.substr(0, answer.find('.')), question.expected.front());
  return {{"accuracy", holds ? 1.0 : 0.0}, {"recall", holds ? 1.0 : 0.0}};
}

Result<std::unique_ptr<Task>> MakeNeedle(const TaskInput& input) {
  HW_ASSIGN_OR_RETURN(Haystack haystack, ReadHaystack(input, /*max_new_tokens=*/48));
  HW_ASSIGN_OR_RETURN(const std::vector<Variant> variants, ReadVariants(input.options));
  HW_ASSIGN_OR_RETURN(const int64_t num_depths, input.options.IntOr("depths", 10, 1, 1000));
  AskedTaskParts& parts = haystack.parts;
  for (const int64_t length : parts.lengths) {
    for (const Variant& variant : variants) {
      for (int64_t i = 0; i < haystack.num_cases; ++i) {
        Rng rng(MixSeed(haystack.seed, length, i));
        const std::optional<double> depth =
            variant.HasDepth() ? std::optional<double>(DepthOf(i, num_depths)) : std::nullopt;
        auto asked = MakeCase(input, haystack, variant, length, rng, depth);
        if (!asked.ok()) return std::move(asked).status().Annotate(fmt::format("needle, {}", variant.name));
        for (AskedCase::Question& question : asked->questions) {
          question.tags["variant"] = variant.name;
          if (depth) question.tags["depth"] = *depth;
        }
        parts.cases.push_back(*std::move(asked));
      }
    }
  }
  parts.judge = JudgeNeedle;
  return MakeAskedTask(std::move(parts));
}

}  // namespace

const TaskMethod kNeedleTask = {
    .name = "needle",
    .title = "Needle in a haystack",
    .description = "facts hidden in a long text, over length and depth, in RULER's forms",
    .options = JoinLists<TaskOption>(
        kHaystackOptions,
        std::to_array<TaskOption>(
            {{"variants", "Some of single, multikey, multivalue, multiquery, needles, words; --cases of each"},
             {"depths", "Even depths of the needle, from the first sentence to the last"}})),
    .metrics = AccuracyMetrics(),
    .make = MakeNeedle,
};

}  // namespace headwise
