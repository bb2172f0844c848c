#include "data/recall_prompts.h"

#include <fmt/format.h>

#include <span>
#include <utility>

#include "base/check.h"
#include "base/file.h"
#include "base/json_lines.h"
#include "data/filler.h"
#include "data/lines.h"
#include "data/passkeys.h"

namespace headwise {
namespace {

// Long enough that a value cannot be guessed from the others.
constexpr int kWordsPerValue = 3;

}  // namespace

HiddenNumber DrawHiddenNumber(Rng& rng) {
  const auto number = static_cast<int64_t>(10'000 + rng.Below(90'000));
  return {.number = number, .depth = rng.Uniform()};
}

std::string MakeHiddenNumberPrompt(std::string_view filler, const HiddenNumber& hidden) {
  const HiddenSentence told = {
      .text = fmt::format("The pass key is {}. Remember it. {} is the pass key.", hidden.number, hidden.number),
      .depth = hidden.depth,
  };
  return HideSentences(filler, std::span(&told, 1)) + "\n\nWhat is the pass key? The pass key is";
}

JsonPairs DrawJsonPairs(Rng& rng, int64_t num_pairs) {
  JsonPairs pairs = {.keys = DrawLineNames(rng, num_pairs), .values = {}};
  const std::span<const std::string_view> words = PasskeyWords();
  for (int64_t i = 0; i < num_pairs; ++i) {
    std::string value;
    for (int word_idx = 0; word_idx < kWordsPerValue; ++word_idx) {
      if (word_idx > 0) value += ' ';
      value += words[rng.Below(words.size())];
    }
    pairs.values.push_back(std::move(value));
  }
  return pairs;
}

std::string MakeJsonPrompt(const JsonPairs& pairs, int64_t num_pairs, int64_t asked_idx) {
  HW_CHECK(num_pairs <= static_cast<int64_t>(pairs.keys.size()) && asked_idx >= 0 && asked_idx < num_pairs,
           "pair {} of {}, {} drawn", asked_idx, num_pairs, pairs.keys.size());
  std::string prompt = "{\n";
  for (size_t i = 0; i < static_cast<size_t>(num_pairs); ++i) {
    prompt += fmt::format("\"{}\": \"{}\",\n", pairs.keys[i], pairs.values[i]);
  }
  prompt.erase(prompt.size() - 2, 1);  // no comma after the last pair
  const std::string& key = pairs.keys[static_cast<size_t>(asked_idx)];
  prompt += fmt::format("}}\n\nWhat is the value of the key \"{}\" in this JSON object?\n\"{}\":", key, key);
  return prompt;
}

Result<std::vector<std::string>> ParsePrompts(std::string_view text, const std::string& origin) {
  std::vector<std::string> prompts;
  const auto read_prompt = [&](const JsonObject& object) -> Status {
    HW_ASSIGN_OR_RETURN(std::string prompt, object.String("prompt"));
    if (prompt.empty()) {
      return Status::InvalidInput(fmt::format("{}: \"prompt\" is empty, expected a text", object.origin()));
    }
    prompts.push_back(std::move(prompt));
    return Status::Ok();
  };
  HW_RETURN_IF_ERROR(ForEachJsonLine(text, origin, read_prompt));
  if (prompts.empty()) {
    return Status::InvalidInput(fmt::format("{}: no prompts, expected one JSON object per line", origin));
  }
  return prompts;
}

Result<std::vector<std::string>> ReadPrompts(const std::string& path) {
  HW_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  return ParsePrompts(text, path);
}

}  // namespace headwise
