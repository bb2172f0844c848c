#include "text/gguf_splitting.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace headwise {
namespace {

using Form = GgufSplitting::Form;

constexpr std::string_view kLlama3Names[] = {"llama-bpe", "llama3", "llama-v3"};
// The same words, but merges are not passed over and nothing comes first.
constexpr std::string_view kDbrxNames[] = {"dbrx", "smaug-bpe", "chatglm-bpe"};
constexpr std::string_view kGlm4Names[] = {"glm4"};
constexpr std::string_view kQwen2Names[] = {"qwen2", "deepseek-r1-qwen", "megrez", "stablelm2"};
constexpr std::string_view kGpt2Names[] = {"gpt-2", "gpt-neox", "mpt", "olmo", "phi-2"};
constexpr std::string_view kDigitsNames[] = {"smollm", "starcoder", "refact", "command-r"};
constexpr std::string_view kFalconNames[] = {"falcon"};
constexpr std::string_view kTekkenNames[] = {"tekken"};

constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr GgufSplitting kSplittings[] = {
    {.names = kLlama3Names, .pattern = kLlama3Pattern, .ignore_merges = true, .adds_bos = true},
    {.names = kDbrxNames, .pattern = kLlama3Pattern},
    {.names = kGlm4Names, .pattern = kLlama3Pattern, .ignore_merges = true},
    {.names = kQwen2Names,
     .pattern = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
                R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {.names = kGpt2Names, .form = Form::kGpt2},
    {.names = kDigitsNames, .form = Form::kDigitsGpt2},
    {.names = kFalconNames, .form = Form::kFalcon},
    {.names = kTekkenNames,
     .pattern = R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
                R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N})"
                R"(| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     .ignore_merges = true,
     .adds_bos = true},
};

// No row: those whose models came with several splittings, as llama's, and those that are younger than the names.
constexpr std::pair<std::string_view, std::string_view> kUsual[] = {
    {"qwen2", "qwen2"}, {"qwen3", "qwen2"},          {"gptneox", "gpt-neox"},   {"falcon", "falcon"},
    {"mpt", "mpt"},     {"qwen2moe", "qwen2"},       {"qwen3moe", "qwen2"},     {"gpt2", "gpt-2"},
    {"phi2", "phi-2"},  {"starcoder2", "starcoder"}, {"command-r", "command-r"}};

// The steps of a "pre_tokenizer", sequences taken apart, every option said that decides how words are cut.
std::vector<Json> StepsOf(const Json& value) {
  if (!value.is_object()) return {};
  if (value.contains("pretokenizers") && value["pretokenizers"].is_array()) {
    std::vector<Json> steps;
    for (const Json& part : value["pretokenizers"]) {
      const std::vector<Json> more = StepsOf(part);
      steps.insert(steps.end(), more.begin(), more.end());
    }
    return steps;
  }
  constexpr std::pair<const char*, bool> kFlags[] = {
      {"add_prefix_space", true}, {"use_regex", true}, {"individual_digits", false}, {"invert", false}};
  Json step = {{"type", value.value("type", Json())}};
  for (const auto& [flag, otherwise] : kFlags) {
    const bool is_there = value.contains(flag) && !value[flag].is_null();
    step[flag] = is_there ? value[flag] : Json(otherwise);
  }
  step["pattern"] = value.value("pattern", Json());
  step["behavior"] = value.value("behavior", Json(step["type"] == "Punctuation" ? "Isolated" : ""));
  // Options of other kinds of steps mean nothing.
  if (step["type"] != "ByteLevel") step["add_prefix_space"] = step["use_regex"] = nullptr;
  return {step};
}

}  // namespace

Result<FoundSplitting> FindGgufSplitting(std::string_view name, std::string_view architecture,
                                         std::string_view origin) {
  std::string_view wanted = name;
  bool is_guess = false;
  if (name.empty() || name == "default") {
    const auto* usual = std::ranges::find_if(kUsual, [&](const auto& row) { return row.first == architecture; });
    is_guess = usual == std::end(kUsual);
    wanted = is_guess ? kGpt2Names[0] : usual->second;
  }
  std::vector<std::string_view> known;
  for (const GgufSplitting& splitting : kSplittings) {
    if (std::find(splitting.names.begin(), splitting.names.end(), wanted) != splitting.names.end()) {
      return FoundSplitting{&splitting, is_guess};
    }
    known.insert(known.end(), splitting.names.begin(), splitting.names.end());
  }
  return Status::Unsupported(fmt::format("{}: \"{}\" does not tell how text is cut into words, expected one of: {}",
                                         origin, name, fmt::join(known, ", ")));
}

Json SplittingJson(const GgufSplitting& splitting, bool adds_space_prefix) {
  const auto bytes = [&](bool use_regex) {
    return Json{{"type", "ByteLevel"}, {"add_prefix_space", adds_space_prefix}, {"use_regex", use_regex}};
  };
  const auto split = [](std::string_view pattern) {
    return Json{{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}};
  };
  Json steps = Json::array();
  switch (splitting.form) {
    case Form::kPattern:
      steps = Json::array({split(splitting.pattern), bytes(false)});
      break;
    case Form::kGpt2:
      steps = Json::array({bytes(true)});
      break;
    case Form::kDigitsGpt2:
      steps = Json::array({{{"type", "Digits"}, {"individual_digits", true}}, bytes(true)});
      break;
    case Form::kFalcon:
      steps = Json::array({{{"type", "Punctuation"}, {"behavior", "Contiguous"}},
                           bytes(true),
                           {{"type", "Digits"}, {"individual_digits", false}},
                           split("[0-9][0-9][0-9]")});
      break;
  }
  return {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}};
}

std::string NameOfGgufSplitting(const Json& pre_tokenizer) {
  const std::vector<Json> wanted = StepsOf(pre_tokenizer);
  for (const GgufSplitting& splitting : kSplittings) {
    if (StepsOf(SplittingJson(splitting, false)) == wanted) return std::string(splitting.names.front());
  }
  return "";
}

bool ComposesCharacters(const GgufSplitting& splitting, std::string_view architecture) {
  const auto is = [&](std::string_view name) {
    return std::find(splitting.names.begin(), splitting.names.end(), name) != splitting.names.end();
  };
  return ((architecture.starts_with("qwen2") || architecture.starts_with("qwen3")) && is("qwen2")) ||
         architecture == "command-r" || architecture == "gptneox" || architecture == "mpt";
}

}  // namespace headwise
