#include "data/lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "base/json_lines.h"
#include "data/option_range.h"
#include "data/words.h"

namespace headwise {
namespace {

constexpr auto kAdjectives = std::to_array<std::string_view>({
    "amber",    "ancient",  "arctic",   "autumn",   "barren",   "bitter",  "blazing", "bold",      "brisk",   "broken",
    "calm",     "careful",  "cheerful", "chilly",   "clever",   "cloudy",  "coarse",  "copper",    "cosy",    "crimson",
    "crooked",  "curious",  "dapper",   "daring",   "distant",  "dusty",   "eager",   "early",     "earnest", "elegant",
    "faded",    "faithful", "fearless", "fierce",   "floral",   "foggy",   "frosty",  "gentle",    "gilded",  "glossy",
    "golden",   "graceful", "grumpy",   "hasty",    "hidden",   "hollow",  "humble",  "icy",       "idle",    "ivory",
    "jagged",   "jolly",    "keen",     "lively",   "lonely",   "loyal",   "lucky",   "mellow",    "merry",   "misty",
    "modest",   "mossy",    "nimble",   "noble",    "northern", "patient", "plain",   "polished",  "proud",   "quaint",
    "quick",    "quiet",    "rapid",    "restless", "rugged",   "rustic",  "sandy",   "scarlet",   "secret",  "serene",
    "shady",    "silent",   "silver",   "sleepy",   "slender",  "smoky",   "solid",   "southern",  "spicy",   "stormy",
    "stubborn", "sturdy",   "subtle",   "sunny",    "tender",   "timid",   "velvet",  "wandering", "witty",   "wooden",
});

// Of PlainNouns: the first ones.
constexpr size_t kNumNouns = 100;

constexpr int64_t kMaxCases = 1'000'000;

}  // namespace

const int64_t kMaxLines = static_cast<int64_t>(kAdjectives.size() * kNumNouns);

std::string LineName(uint64_t id) {
  HW_CHECK(id < static_cast<uint64_t>(kMaxLines), "name {} of {}", id, kMaxLines);
  return fmt::format("{}-{}", kAdjectives[id % kAdjectives.size()], PlainNouns()[id / kAdjectives.size()]);
}

std::string LineOpening(std::string_view when) {
  return fmt::format(
      "Below is a record of lines I want you to remember. Each line begins with 'line <line index>' and contains a "
      "'<REGISTER_CONTENT>' at the end of the line as a numerical value. For each line index, memorize its "
      "corresponding <REGISTER_CONTENT>. {}, I will ask you to retrieve the corresponding <REGISTER_CONTENT> of a "
      "certain line index. Now the record start:\n\n",
      when);
}

std::string LineText(std::string_view name, int64_t number) {
  return fmt::format("line {}: REGISTER_CONTENT is <{}>\n", name, number);
}

std::string LineQuestion(std::string_view name) {
  return fmt::format("Tell me what is the <REGISTER_CONTENT> in line {}? I need the number. ", name);
}

std::string LineAnswer(std::string_view name, int64_t number) {
  return fmt::format("The <REGISTER_CONTENT> in line {} is <{}>.", name, number);
}

std::vector<std::string> DrawLineNames(Rng& rng, int64_t count) {
  HW_CHECK(count >= 0 && count <= kMaxLines, "{} names", count);
  std::vector<std::string> names;
  for (const uint64_t id : DrawDistinct(rng, count, static_cast<uint64_t>(kMaxLines))) names.push_back(LineName(id));
  return names;
}

LineRecord DrawLineRecord(Rng& rng, int64_t num_lines) {
  LineRecord record = {.names = DrawLineNames(rng, num_lines), .numbers = {}};
  for (const uint64_t number : DrawDistinct(rng, num_lines, kMaxLineNumber)) {
    record.numbers.push_back(static_cast<int64_t>(number) + 1);
  }
  return record;
}

LineCase MakeLineCase(const LineRecord& record, int64_t num_lines, int64_t asked_idx) {
  HW_CHECK(num_lines <= static_cast<int64_t>(record.names.size()) && asked_idx >= 0 && asked_idx < num_lines,
           "line {} of {}, {} drawn", asked_idx, num_lines, record.names.size());
  LineCase result;
  result.prompt = LineOpening("At the end of the record");
  for (size_t i = 0; i < static_cast<size_t>(num_lines); ++i) {
    result.prompt += LineText(record.names[i], record.numbers[i]);
  }
  const auto asked = static_cast<size_t>(asked_idx);
  result.prompt += "\nNow the record is over. " + LineQuestion(record.names[asked]);
  result.expected_number = record.numbers[asked];
  return result;
}

Result<std::vector<LineCase>> MakeLineCases(const LineGeneratorOptions& options) {
  HW_RETURN_IF_ERROR(CheckOption("number of lines", options.num_lines, 1, kMaxLines));
  HW_RETURN_IF_ERROR(CheckOption("number of cases", options.num_cases, 1, kMaxCases));
  Rng rng(options.seed);
  std::vector<LineCase> cases;
  for (int64_t i = 0; i < options.num_cases; ++i) {
    const LineRecord record = DrawLineRecord(rng, options.num_lines);
    const auto asked_idx = static_cast<int64_t>(rng.Below(static_cast<uint64_t>(options.num_lines)));
    cases.push_back(MakeLineCase(record, options.num_lines, asked_idx));
  }
  return cases;
}

Result<std::vector<LineCase>> ParseLineCases(std::string_view text, const std::string& origin) {
  std::vector<LineCase> cases;
  const auto read_case = [&](const JsonObject& object) -> Status {
    LineCase line_case;
    HW_ASSIGN_OR_RETURN(line_case.prompt, object.String("prompt"));
    HW_ASSIGN_OR_RETURN(line_case.expected_number, object.Int("expected_number"));
    if (line_case.prompt.empty()) {
      return Status::InvalidInput(fmt::format("{}: \"prompt\" is empty, expected a text", object.origin()));
    }
    if (line_case.expected_number < 0) {
      return Status::InvalidInput(
          fmt::format("{}: \"expected_number\" is {}, expected 0 or more", object.origin(), line_case.expected_number));
    }
    cases.push_back(std::move(line_case));
    return Status::Ok();
  };
  HW_RETURN_IF_ERROR(ForEachJsonLine(text, origin, read_case));
  if (cases.empty())
    return Status::InvalidInput(fmt::format("{}: no cases, expected one JSON object per line", origin));
  return cases;
}

}  // namespace headwise
