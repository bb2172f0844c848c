#include "report/report_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/file.h"

namespace headwise {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxFailures = 20;      // per plan
constexpr size_t kPromptEndBytes = 600;  // the question and what leads to it
constexpr size_t kPlaceBytes = 200;      // around the answer, both sides together

using QuestionKey = std::tuple<int64_t, int64_t, int64_t>;  // length, case, question

// The nearest start of a character at or after `at`.
size_t CharacterFrom(std::string_view text, size_t at) {
  while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) ++at;
  return at;
}

bool IsWordByte(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

// Where `answer` stands as a whole word: "17" is not in "1170".
size_t FindWhole(std::string_view text, std::string_view answer) {
  for (size_t at = text.find(answer); at != std::string_view::npos; at = text.find(answer, at + 1)) {
    const size_t end = at + answer.size();
    const bool begins = at == 0 || !IsWordByte(text[at - 1]) || !IsWordByte(answer.front());
    const bool ends = end == text.size() || !IsWordByte(text[end]) || !IsWordByte(answer.back());
    if (begins && ends) return at;
  }
  return std::string_view::npos;
}

std::optional<Excerpt> PlaceOf(std::string_view prompt, const std::vector<std::string>& expected) {
  for (const std::string& answer : expected) {
    if (answer.empty()) continue;
    const size_t at = FindWhole(prompt, answer);
    if (at == std::string_view::npos) continue;
    const size_t begin = CharacterFrom(prompt, at - std::min(at, kPlaceBytes / 2));
    const size_t end = at + answer.size();
    const size_t stop = CharacterFrom(prompt, std::min(prompt.size(), end + kPlaceBytes / 2));
    return Excerpt{std::string(prompt.substr(begin, at - begin)), answer, std::string(prompt.substr(end, stop - end))};
  }
  return std::nullopt;
}

Failure FailureOf(size_t result_idx, const CaseText* text) {
  Failure failure;
  failure.result_idx = result_idx;
  if (text == nullptr) return failure;
  failure.expected = text->expected;
  const std::string_view prompt = text->prompt;
  failure.prompt_end =
      std::string(prompt.substr(CharacterFrom(prompt, prompt.size() - std::min(prompt.size(), kPromptEndBytes))));
  failure.place = PlaceOf(prompt, text->expected);
  return failure;
}

void CollectFailures(ReportRun& run, const std::vector<CaseText>& texts) {
  const RunInfo& info = run.data.info;
  if (info.metrics.empty() || info.metrics.front().kind != MetricInfo::Kind::kRate) return;
  std::map<QuestionKey, const CaseText*> by_question;
  for (const CaseText& text : texts) by_question[{text.length, text.case_idx, text.question_idx}] = &text;
  for (size_t i = 0; i < run.data.results.size(); ++i) {
    const CaseResult& result = run.data.results[i];
    const auto score = result.scores.find(info.metrics.front().name);
    if (score == result.scores.end() || !(score->second < 1)) continue;
    PlanFailures& failures = run.failures[result.plan];
    ++failures.total;
    if (failures.shown.size() >= kMaxFailures) continue;
    const auto text = by_question.find({result.length, result.case_idx, result.question_idx});
    failures.shown.push_back(FailureOf(i, text == by_question.end() ? nullptr : text->second));
  }
}

void ReadPlanFiles(ReportRun& run) {
  for (const PlanInfo& plan : run.data.info.plans) {
    for (const auto& [length, file] : plan.files) {
      PlanFile read = {.plan = plan.name, .length = length, .content = std::nullopt, .error = ""};
      Result<HeadPlan> content = ReadHeadPlan((run.data.folder / file).string());
      if (content.ok()) {
        read.content = std::move(*content);
      } else {
        read.error = content.status().message();
      }
      run.plan_files.push_back(std::move(read));
    }
  }
}

// The folders at and below `root` that hold a run, sorted.
Result<std::vector<fs::path>> RunsBelow(const fs::path& root) {
  std::error_code error;
  if (!fs::is_directory(root, error)) {
    return Status::NotFound(
        fmt::format("{}: is no folder, expected a run folder or one that holds some", root.string()));
  }
  std::vector<fs::path> found;
  if (fs::exists(root / kManifestFile, error)) found.push_back(root);
  fs::recursive_directory_iterator entry(root, fs::directory_options::skip_permission_denied, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    const fs::path& path = entry->path();
    if (path.filename() == kManifestFile && path.parent_path() != root) found.push_back(path.parent_path());
  }
  if (error) return Status::Io(fmt::format("{}: cannot be searched: {}", root.string(), error.message()));
  if (found.empty()) {
    return Status::NotFound(
        fmt::format("{}: no {} in it or below it, expected that of a run", root.string(), kManifestFile));
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

Result<std::vector<fs::path>> FindRuns(const std::vector<std::string>& folders) {
  std::vector<fs::path> runs;
  std::set<fs::path> seen;
  for (const std::string& folder : folders) {
    HW_ASSIGN_OR_RETURN(const std::vector<fs::path> found, RunsBelow(fs::path(folder).lexically_normal()));
    for (const fs::path& run : found) {
      std::error_code error;
      const fs::path canonical = fs::weakly_canonical(run, error);
      if (seen.insert(error ? run : canonical).second) runs.push_back(run);
    }
  }
  return runs;
}

Result<ReportRun> LoadReportRun(const fs::path& folder) {
  ReportRun run;
  HW_ASSIGN_OR_RETURN(run.data, ReadRun(folder));
  HW_ASSIGN_OR_RETURN(const std::vector<CaseText> texts, ReadCaseTexts(folder));
  std::error_code error;
  run.is_finished = fs::exists(folder / kSummaryFile, error);
  run.num_questions = static_cast<int64_t>(texts.size());
  run.summary = Summarise(run.data);
  CollectFailures(run, texts);
  ReadPlanFiles(run);
  return run;
}

Result<std::vector<ReportRun>> LoadReportRuns(const std::vector<std::string>& folders) {
  HW_ASSIGN_OR_RETURN(const std::vector<fs::path> found, FindRuns(folders));
  std::vector<ReportRun> runs;
  for (const fs::path& folder : found) {
    HW_ASSIGN_OR_RETURN(ReportRun run, LoadReportRun(folder));
    runs.push_back(std::move(run));
  }
  std::stable_partition(runs.begin(), runs.end(), [](const ReportRun& run) { return run.data.info.task != kCostTask; });
  return runs;
}

}  // namespace headwise
