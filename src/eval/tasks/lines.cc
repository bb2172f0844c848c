// headwise eval lines: LongEval's line retrieval, the number of one of many lines.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <utility>

#include "base/file.h"
#include "base/mix_seed.h"
#include "base/sha256.h"
#include "data/lines.h"
#include "eval/judge.h"
#include "eval/tasks/haystack.h"
#include "eval/tasks/tasks.h"

namespace headwise {
namespace {

// Models repeat the question's words before the number.
constexpr int64_t kMaxNewTokens = 48;

// "line <name>: ... <<number>>" of a record.
struct Line {
  std::string name;
  std::string number;
};

std::vector<Line> LinesOf(std::string_view text) {
  constexpr std::string_view kOpening = "line ";
  std::vector<Line> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view row = text.substr(begin, end - begin);
    begin = end + 1;
    const size_t colon = row.find(": ");
    const size_t number = row.rfind('<');
    if (!row.starts_with(kOpening) || colon == row.npos || number == row.npos || !row.ends_with('>')) continue;
    lines.push_back({.name = std::string(row.substr(kOpening.size(), colon - kOpening.size())),
                     .number = std::string(row.substr(number + 1, row.size() - number - 2))});
  }
  return lines;
}

// A prompt ends with its question, a row of its own. For kNext another is added, about the line that is half the record
// away from the one asked for first.
Result<AskedCase> InTurns(AskedCase asked, Turns turns) {
  if (turns == Turns::kOne) return asked;
  AskedCase::Question& first = asked.questions.front();
  const size_t row_end = first.prompt.rfind('\n');
  if (row_end == std::string::npos || row_end + 1 == first.prompt.size()) {
    return Status::InvalidInput(
        fmt::format("--turns: a prompt ends \"{}\", expected a row of its own with the question",
                    first.prompt.substr(first.prompt.size() - std::min<size_t>(first.prompt.size(), 40))));
  }
  asked.text_bytes = row_end + 1;
  if (turns == Turns::kLater) return asked;
  const std::vector<Line> lines = LinesOf(std::string_view(first.prompt).substr(0, asked.text_bytes));
  const auto at = std::ranges::find(lines, first.expected.front(), &Line::number);
  if (at == lines.end()) {
    return Status::InvalidInput(
        fmt::format("--turns: found no line with <{}>, which is expected as the answer", first.expected.front()));
  }
  const size_t other = (static_cast<size_t>(at - lines.begin()) + lines.size() / 2) % lines.size();
  AskedCase::Question next{
      .prompt = "\n" + LineQuestion(lines[other].name), .expected = {lines[other].number}, .tags = first.tags};
  first.tags["turn"] = 1;
  next.tags["turn"] = 2;
  asked.questions.push_back(std::move(next));
  return asked;
}

Result<Turns> ReadTurns(const NamedOptions& options) {
  const std::string turns = options.StringOr("turns", "one");
  if (turns == "one") return Turns::kOne;
  if (turns == "later") return Turns::kLater;
  if (turns == "next") return Turns::kNext;
  return Status::InvalidInput(fmt::format("--turns: found \"{}\", expected one, later or next", turns));
}

AskedCase::Question QuestionOf(const LineCase& line_case, const std::string& set) {
  return {.prompt = line_case.prompt, .expected = {std::to_string(line_case.expected_number)}, .tags = {{"set", set}}};
}

// Cases of one file or one number of lines. Their length is that of the longest, with its answer.
Status AddSet(const TaskInput& input, const std::vector<LineCase>& cases, const std::string& set,
              AskedTaskParts& parts) {
  int64_t length = 0;
  for (const LineCase& each : cases) {
    HW_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, EncodePrompt(input.engine, each.prompt, {.bos = input.bos}));
    length = std::max(length, static_cast<int64_t>(ids.size()) + parts.limits.max_new_tokens);
  }
  // Two sets of equal length stay two groups.
  while (std::ranges::find(parts.lengths, length) != parts.lengths.end()) ++length;
  parts.lengths.push_back(length);
  for (const LineCase& each : cases) {
    HW_ASSIGN_OR_RETURN(AskedCase asked,
                        InTurns({.length = length, .questions = {QuestionOf(each, set)}}, parts.turns));
    parts.cases.push_back(std::move(asked));
  }
  return Status::Ok();
}

Status AddFiles(const TaskInput& input, AskedTaskParts& parts) {
  const bool has_limit = input.options.Has("num-cases");
  HW_ASSIGN_OR_RETURN(const int64_t num_cases, input.options.IntOr("num-cases", 0, 1, 1'000'000));
  for (const std::string& path : input.options.StringsOr("cases", "")) {
    HW_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
    HW_ASSIGN_OR_RETURN(std::vector<LineCase> cases, ParseLineCases(text, path));
    if (has_limit) cases.resize(std::min(cases.size(), static_cast<size_t>(num_cases)));
    parts.identity[path] = Sha256Hex(text);
    HW_RETURN_IF_ERROR(AddSet(input, cases, std::filesystem::path(path).stem().string(), parts));
  }
  return Status::Ok();
}

Status AddGenerated(const TaskInput& input, const std::vector<int64_t>& num_lines, const LineGeneratorOptions& options,
                    AskedTaskParts& parts) {
  for (const int64_t each : num_lines) {
    LineGeneratorOptions generator = options;
    generator.num_lines = each;
    HW_ASSIGN_OR_RETURN(const std::vector<LineCase> cases, MakeLineCases(generator));
    HW_RETURN_IF_ERROR(AddSet(input, cases, fmt::format("{} lines", each), parts));
  }
  return Status::Ok();
}

// As many lines as a length has room for.
Status AddByLength(const TaskInput& input, const LineGeneratorOptions& generator, Haystack& haystack) {
  for (const int64_t length : haystack.parts.lengths) {
    for (int64_t i = 0; i < generator.num_cases; ++i) {
      Rng rng(MixSeed(generator.seed, length, i));
      const LineRecord record = DrawLineRecord(rng, kMaxLines);
      const double asked_at = rng.Uniform();
      const auto make = [&](int64_t num_lines) {
        const auto asked_idx = static_cast<int64_t>(asked_at * static_cast<double>(num_lines));
        const LineCase line_case = MakeLineCase(record, num_lines, asked_idx);
        return AskedText{
            .context = "",
            .questions = {{.text = line_case.prompt, .expected = {std::to_string(line_case.expected_number)}}}};
      };
      HW_ASSIGN_OR_RETURN(AskedCase asked, FitRowsCase(input, haystack, length, kMaxLines, make));
      asked.questions.front().tags["depth"] = asked_at;
      HW_ASSIGN_OR_RETURN(asked, InTurns(std::move(asked), haystack.parts.turns));
      haystack.parts.cases.push_back(std::move(asked));
    }
  }
  return Status::Ok();
}

Result<std::unique_ptr<Task>> MakeLines(const TaskInput& input) {
  const NamedOptions& options = input.options;
  const bool has_files = options.Has("cases");
  for (const char* name : {"num-lines", "lengths", "seed"}) {
    if (!has_files || !options.Has(name)) continue;
    return Status::InvalidInput(
        fmt::format("--{}: found --cases too, whose cases are as they are; expected one", name));
  }
  if (options.Has("num-lines") && options.Has("lengths")) {
    return Status::InvalidInput("found --num-lines and --lengths, expected one");
  }
  HW_ASSIGN_OR_RETURN(Haystack haystack, ReadHaystack(input, kMaxNewTokens));
  AskedTaskParts& parts = haystack.parts;
  parts.identity = Json::object();
  HW_ASSIGN_OR_RETURN(parts.turns, ReadTurns(options));
  LineGeneratorOptions generator{.num_lines = 200, .num_cases = 10, .seed = haystack.seed};
  HW_ASSIGN_OR_RETURN(generator.num_cases, options.IntOr("num-cases", generator.num_cases, 1, 1'000'000));
  HW_ASSIGN_OR_RETURN(const std::vector<int64_t> num_lines,
                      options.IntsOr("num-lines", {generator.num_lines}, 1, kMaxLines));
  if (options.Has("lengths")) {
    HW_RETURN_IF_ERROR(AddByLength(input, generator, haystack));
  } else {
    parts.lengths.clear();
    HW_RETURN_IF_ERROR(has_files ? AddFiles(input, parts) : AddGenerated(input, num_lines, generator, parts));
    std::ranges::sort(parts.lengths);
    std::ranges::stable_sort(parts.cases, {}, &AskedCase::length);
  }
  parts.judge = RecallJudge(IsNumber);
  return MakeAskedTask(std::move(parts));
}

}  // namespace

const TaskMethod kLinesTask = {
    .name = "lines",
    .title = "Line retrieval (LongEval)",
    .description = "the number of one of many lines [LongEval]",
    .options =
        {{"cases", "LongEval JSONL files, separated by commas; without them cases are generated"},
         {"num-lines", "Lines in a generated case: 200,400"},
         {"turns",
          "When a question comes: one, in one turn with the record; later, in a turn of its own behind it; next, "
          "and then another about a line half the record away"},
         kLengthsOption,
         kCasesOption,
         kSeedOption,
         kBatchOption,
         kMaxNewTokensOption},
    .metrics = AccuracyMetrics(),
    .make = MakeLines,
};

}  // namespace headwise
