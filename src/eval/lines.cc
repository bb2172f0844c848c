#include "eval/lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "base/file.h"
#include "base/json.h"
#include "base/rng.h"

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

constexpr auto kNouns = std::to_array<std::string_view>({
    "anchor",   "apron",   "barn",    "basket",  "beacon", "bicycle", "blanket",  "bottle",  "bridge",  "bucket",
    "button",   "cabin",   "candle",  "canyon",  "carpet", "castle",  "cellar",   "chimney", "cliff",   "clock",
    "cottage",  "cradle",  "desert",  "drawer",  "engine", "falcon",  "feather",  "ferry",   "fiddle",  "forest",
    "fountain", "garden",  "gate",    "glacier", "hammer", "harbour", "harvest",  "hedge",   "helmet",  "heron",
    "island",   "jacket",  "kettle",  "kitchen", "ladder", "lagoon",  "lantern",  "ledger",  "library", "lighthouse",
    "lizard",   "magnet",  "maple",   "market",  "meadow", "mirror",  "mountain", "museum",  "needle",  "notebook",
    "oasis",    "orchard", "otter",   "oven",    "paddle", "parcel",  "pebble",   "pencil",  "piano",   "pigeon",
    "pillow",   "pocket",  "pottery", "puzzle",  "quarry", "rabbit",  "railway",  "ribbon",  "river",   "rocket",
    "saddle",   "sailor",  "shelter", "shovel",  "statue", "stove",   "tavern",   "teapot",  "temple",  "thimble",
    "thunder",  "tower",   "tractor", "tunnel",  "valley", "village", "violin",   "wagon",   "whistle", "window",
});

constexpr int64_t kMaxNumber = 50000;  // LongEval's range is 1 to 50,000
constexpr int64_t kMaxCases = 1'000'000;

constexpr std::string_view kOpening =
    "Below is a record of lines I want you to remember. Each line begins with 'line <line index>' and contains a "
    "'<REGISTER_CONTENT>' at the end of the line as a numerical value. For each line index, memorize its corresponding "
    "<REGISTER_CONTENT>. At the end of the record, I will ask you to retrieve the corresponding <REGISTER_CONTENT> of "
    "a "
    "certain line index. Now the record start:\n\n";

// Different values below `limit`, in random order.
std::vector<uint64_t> DrawDistinct(Rng& rng, int64_t count, uint64_t limit) {
  std::vector<uint64_t> drawn;
  std::set<uint64_t> seen;
  while (static_cast<int64_t>(drawn.size()) < count) {
    const uint64_t value = rng.Below(limit);
    if (seen.insert(value).second) drawn.push_back(value);
  }
  return drawn;
}

LineCase MakeLineCase(Rng& rng, int64_t num_lines) {
  const std::vector<uint64_t> name_ids = DrawDistinct(rng, num_lines, kAdjectives.size() * kNouns.size());
  const std::vector<uint64_t> numbers = DrawDistinct(rng, num_lines, kMaxNumber);
  const uint64_t asked = rng.Below(static_cast<uint64_t>(num_lines));
  const auto name = [&](size_t line_idx) {
    return fmt::format("{}-{}", kAdjectives[name_ids[line_idx] % kAdjectives.size()],
                       kNouns[name_ids[line_idx] / kAdjectives.size()]);
  };
  LineCase result;
  result.prompt = kOpening;
  for (size_t i = 0; i < numbers.size(); ++i) {
    result.prompt += fmt::format("line {}: REGISTER_CONTENT is <{}>\n", name(i), numbers[i] + 1);
  }
  result.prompt += fmt::format(
      "\nNow the record is over. Tell me what is the <REGISTER_CONTENT> in line {}? I need the number. ", name(asked));
  result.expected_number = static_cast<int64_t>(numbers[asked]) + 1;
  return result;
}

}  // namespace

const int64_t kMaxLines = static_cast<int64_t>(kAdjectives.size() * kNouns.size());

Result<std::vector<LineCase>> MakeLineCases(const LineGeneratorOptions& options) {
  if (options.num_lines < 1 || options.num_lines > kMaxLines) {
    return Status::InvalidInput(fmt::format("number of lines is {}, expected 1 to {}", options.num_lines, kMaxLines));
  }
  if (options.num_cases < 1 || options.num_cases > kMaxCases) {
    return Status::InvalidInput(fmt::format("number of cases is {}, expected 1 to {}", options.num_cases, kMaxCases));
  }
  Rng rng(options.seed);
  std::vector<LineCase> cases;
  for (int64_t i = 0; i < options.num_cases; ++i) cases.push_back(MakeLineCase(rng, options.num_lines));
  return cases;
}

Result<std::vector<LineCase>> ParseLineCases(std::string_view text, const std::string& origin) {
  std::vector<LineCase> cases;
  int64_t line_number = 0;
  while (!text.empty()) {
    const size_t line_end = text.find('\n');
    std::string_view line = text.substr(0, line_end);
    text.remove_prefix(line_end == std::string_view::npos ? text.size() : line_end + 1);
    ++line_number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;

    const std::string where = fmt::format("{}:{}", origin, line_number);
    HW_ASSIGN_OR_RETURN(const Json json, ParseJson(line, where));
    HW_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(json, where));
    LineCase line_case;
    HW_ASSIGN_OR_RETURN(line_case.prompt, object.String("prompt"));
    HW_ASSIGN_OR_RETURN(line_case.expected_number, object.Int("expected_number"));
    if (line_case.prompt.empty()) {
      return Status::InvalidInput(fmt::format("{}: \"prompt\" is empty, expected a text", where));
    }
    if (line_case.expected_number < 0) {
      return Status::InvalidInput(
          fmt::format("{}: \"expected_number\" is {}, expected 0 or more", where, line_case.expected_number));
    }
    cases.push_back(std::move(line_case));
  }
  if (cases.empty())
    return Status::InvalidInput(fmt::format("{}: no cases, expected one JSON object per line", origin));
  return cases;
}

Result<std::vector<LineCase>> ReadLineCases(const std::string& path) {
  HW_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  return ParseLineCases(text, path);
}

std::string QuestionOf(const LineCase& line_case) {
  const size_t end = line_case.prompt.find_last_not_of(" \n");
  if (end == std::string::npos) return "";
  const size_t begin = line_case.prompt.rfind('\n', end);
  return line_case.prompt.substr(begin + 1, end - begin);
}

bool IsRightNumber(std::string_view answer, int64_t expected_number) {
  constexpr std::string_view kDigits = "0123456789";
  const size_t begin = answer.find_first_of(kDigits);
  if (begin == std::string_view::npos) return false;
  const size_t end = std::min(answer.find_first_not_of(kDigits, begin), answer.size());
  return answer.substr(begin, end - begin) == fmt::format("{}", expected_number);
}

}  // namespace headwise
