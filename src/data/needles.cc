#include "data/needles.h"

#include <fmt/format.h>

#include <array>
#include <span>
#include <utility>

#include "base/check.h"
#include "data/filler.h"
#include "data/lines.h"
#include "data/option_range.h"
#include "data/words.h"

namespace headwise {
namespace {

// Only bounds what a caller can ask for: far more than an answer holds.
constexpr int64_t kMaxValuesPerKey = 100;

constexpr int64_t kFirstValue = 1'000'000;
constexpr uint64_t kNumValues = 9'000'000;

constexpr auto kPlaces = std::to_array<std::string_view>(
    {"the garden behind the old library", "a boat on the canal", "the shade of the great plane tree",
     "the little park by the station", "the yard of the glassworks", "a deck chair on the roof terrace",
     "the rose house of the arboretum", "the quiet end of the arcade", "the back row of the puppet theatre",
     "a window seat of the night train", "the courtyard of the museum", "the grass below the white tower",
     "the gallery of the swimming bath", "an orchard on the north hill", "the sun beside the skating pond",
     "the hall of the flower market"});
constexpr auto kFoods = std::to_array<std::string_view>(
    {"warm cheese tart", "bowl of onion soup", "salted almond biscuit", "pear with blue cheese", "cold lemon pancake",
     "ginger waffle", "plate of fried sardines", "chestnut pudding", "toasted fig sandwich", "cherry dumpling",
     "baked potato", "slice of walnut cake", "cup of saffron rice", "smoked trout roll", "honey doughnut",
     "peppered melon"});

std::string TextOf(const NeedleKey& key, const HiddenNumber& value) {
  return fmt::format("One of the special magic numbers for {} is: {}.", key.name, value.number);
}

AskedQuestion QuestionFor(const NeedleKey& key) {
  AskedQuestion question;
  const std::string what =
      fmt::format("special magic number{} for {} mentioned in the text", key.values.size() == 1 ? "" : "s", key.name);
  question.text = key.values.size() == 1 ? fmt::format("\n\nWhat is the {}? The {} is", what, what)
                                         : fmt::format("\n\nWhat are all the {}? The {} are", what, what);
  for (const HiddenNumber& value : key.values) question.expected.push_back(fmt::format("{}", value.number));
  return question;
}

// Keys with numbers and depths for them.
std::vector<NeedleKey> MakeKeys(Rng& rng, std::span<const std::string> names, std::span<const uint64_t> numbers) {
  std::vector<NeedleKey> keys;
  const size_t values_per_key = names.empty() ? 0 : numbers.size() / names.size();
  for (size_t i = 0; i < names.size(); ++i) {
    NeedleKey& key = keys.emplace_back(NeedleKey{.name = names[i], .values = {}});
    for (const uint64_t number : numbers.subspan(i * values_per_key, values_per_key)) {
      key.values.push_back({.number = kFirstValue + static_cast<int64_t>(number), .depth = rng.Uniform()});
    }
  }
  return keys;
}

}  // namespace

Status ValidateNeedleOptions(const NeedleOptions& options) {
  HW_RETURN_IF_ERROR(CheckOption("number of keys", options.num_keys, 1, kMaxLines));
  HW_RETURN_IF_ERROR(CheckOption("values per key", options.values_per_key, 1, kMaxValuesPerKey));
  HW_RETURN_IF_ERROR(CheckOption("number of questions", options.num_questions, 1, options.num_keys));
  HW_RETURN_IF_ERROR(CheckOption("number of distractors", options.num_distractors, 0, kMaxLines - options.num_keys));
  if (!options.depth) return Status::Ok();
  HW_RETURN_IF_ERROR(CheckOption("depth", *options.depth, 0.0, 1.0));
  if (options.num_questions != 1 || options.values_per_key != 1) {
    return Status::InvalidInput(fmt::format("depth is {} for {} questions and {} values per key, expected one of each",
                                            *options.depth, options.num_questions, options.values_per_key));
  }
  return Status::Ok();
}

Needles DrawNeedles(Rng& rng, const NeedleOptions& options) {
  HW_CHECK(ValidateNeedleOptions(options).ok());
  const std::vector<std::string> names = DrawLineNames(rng, options.num_keys + options.num_distractors);
  const int64_t num_values = options.num_keys * options.values_per_key;
  const std::vector<uint64_t> numbers = DrawDistinct(rng, num_values + options.num_distractors, kNumValues);
  const auto num_keys = static_cast<size_t>(options.num_keys);
  const std::span<const std::string> all_names(names);
  const std::span<const uint64_t> all_numbers(numbers);
  Needles needles = {
      .keys = MakeKeys(rng, all_names.first(num_keys), all_numbers.first(static_cast<size_t>(num_values))),
      .num_questions = options.num_questions,
      .distractors = MakeKeys(rng, all_names.subspan(num_keys), all_numbers.subspan(static_cast<size_t>(num_values))),
  };
  if (options.depth) needles.keys[0].values[0].depth = *options.depth;
  return needles;
}

AskedText MakeNeedles(std::string_view filler, const Needles& needles) {
  HW_CHECK(needles.num_questions >= 1 && needles.num_questions <= static_cast<int64_t>(needles.keys.size()),
           "{} questions, {} keys", needles.num_questions, needles.keys.size());
  std::vector<HiddenSentence> sentences;
  for (const NeedleKey& key : needles.keys) {
    for (const HiddenNumber& value : key.values)
      sentences.push_back({.text = TextOf(key, value), .depth = value.depth});
  }
  AskedText text = {.context = std::string(WithoutSpaceAtEnd(HideSentences(filler, sentences))), .questions = {}};
  for (int64_t i = 0; i < needles.num_questions; ++i) {
    text.questions.push_back(QuestionFor(needles.keys[static_cast<size_t>(i)]));
  }
  return text;
}

AskedText MakeNeedlesOnly(const Needles& needles, int64_t num_distractors) {
  HW_CHECK(num_distractors >= 0 && num_distractors <= static_cast<int64_t>(needles.distractors.size()), "{} of {}",
           num_distractors, needles.distractors.size());
  std::string haystack;
  for (const NeedleKey& key : std::span(needles.distractors).first(static_cast<size_t>(num_distractors))) {
    haystack += TextOf(key, key.values[0]) + " ";
  }
  return MakeNeedles(haystack, needles);
}

WordNeedle DrawWordNeedle(Rng& rng) {
  const std::string_view place = kPlaces[rng.Below(kPlaces.size())];
  const std::string_view food = kFoods[rng.Below(kFoods.size())];
  return {.words = fmt::format("sit in {} and eat a {}", place, food), .depth = rng.Uniform()};
}

AskedText MakeWordNeedle(std::string_view filler, const WordNeedle& needle) {
  const HiddenSentence told = {.text = fmt::format("The best thing to do in Paris is {}.", needle.words),
                               .depth = needle.depth};
  return {.context = std::string(WithoutSpaceAtEnd(HideSentences(filler, std::span(&told, 1)))),
          .questions = {{.text = "\n\nWhat is the best thing to do in Paris? The best thing to do in Paris is",
                         .expected = {needle.words}}}};
}

}  // namespace headwise
