#include "eval/tasks/text_windows.h"

#include <fmt/format.h>

#include <optional>

#include "base/file.h"
#include "base/sha256.h"

namespace headwise {

Result<TextWindows> ReadTextWindows(const TaskInput& input, int64_t default_tokens) {
  const NamedOptions& options = input.options;
  if (options.Has("lengths") && options.Has("tokens")) {
    return Status::InvalidInput("found --lengths and --tokens, expected one");
  }
  HW_ASSIGN_OR_RETURN(const std::string path, options.Required("text"));
  TextWindows result;
  HW_ASSIGN_OR_RETURN(const int64_t tokens, options.IntOr("tokens", default_tokens, 2, int64_t{1} << 28));
  HW_ASSIGN_OR_RETURN(result.lengths, ReadLengths(options, {tokens}, /*least=*/2));
  HW_ASSIGN_OR_RETURN(const int64_t num_cases, options.IntOr("num-cases", 1, 1, 1'000'000));
  HW_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  result.path = path;
  result.hash = Sha256Hex(text);
  auto encoded = EncodePrompt(input.engine, text, {.bos = Bos::kNever});
  if (!encoded.ok()) return std::move(encoded).status().Annotate(path);
  const std::vector<int32_t> ids = *std::move(encoded);
  const std::vector<int32_t> start = input.bos == Bos::kAuto ? StartOfText(input.engine) : std::vector<int32_t>{};
  const auto num_ids = static_cast<int64_t>(ids.size());
  for (const int64_t length : result.lengths) {
    const int64_t num_taken = length - static_cast<int64_t>(start.size());
    if (num_taken < 1) {
      return Status::InvalidInput(
          fmt::format("windows of {} tokens, expected more than the {} that a text begins with", length, start.size()));
    }
    if (num_taken * num_cases > num_ids) {
      return Status::InvalidInput(fmt::format("{}: has {} tokens, expected {} for {} windows of {}", path, num_ids,
                                              num_taken * num_cases, num_cases, length));
    }
    const int64_t step = num_ids / num_cases;
    for (int64_t i = 0; i < num_cases; ++i) {
      TextWindow window{.length = length, .case_idx = i, .ids = {}, .text = {}};
      window.ids.assign(ids.begin() + i * step, ids.begin() + i * step + num_taken);
      window.text = input.engine.tokenizer().Decode(window.ids, SpecialDisplay::kShow);
      window.ids.insert(window.ids.begin(), start.begin(), start.end());
      result.windows.push_back(std::move(window));
    }
  }
  return result;
}

std::string WhereOf(const TextWindows& text, const TextWindow& window, const std::string& plan) {
  return fmt::format("{}, window {} of {} tokens: {}", text.path, window.case_idx, window.length, plan);
}

std::vector<CaseText> CasesOf(const TextWindows& text) {
  std::vector<CaseText> cases;
  for (const TextWindow& window : text.windows) {
    cases.push_back({.length = window.length,
                     .case_idx = window.case_idx,
                     .question_idx = 0,
                     .prompt = window.text,
                     .expected = {}});
  }
  return cases;
}

}  // namespace headwise
