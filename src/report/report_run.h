// A run as reports need it: read once, with what of its large files will be shown and nothing else of them.
#ifndef HEADWISE_REPORT_REPORT_RUN_H_
#define HEADWISE_REPORT_REPORT_RUN_H_

#include <headwise/head_plan.h>
#include <headwise/status.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "eval/run_data.h"
#include "eval/summary.h"

namespace headwise {

// The place in a prompt where the answer stands.
struct Excerpt {
  std::string before;
  std::string answer;
  std::string after;
};

// A question that was not answered right.
struct Failure {
  size_t result_idx = 0;  // in RunData::results
  std::vector<std::string> expected;
  std::string prompt_end;  // prompts are megabytes; the question is at their end
  std::optional<Excerpt> place;
};

struct PlanFailures {
  int64_t total = 0;
  std::vector<Failure> shown;  // the first of them
};

// A plan's file in the run folder.
struct PlanFile {
  std::string plan;    // PlanInfo::name
  int64_t length = 0;  // 0: any
  std::optional<HeadPlan> content;
  std::string error;  // where there is no content
};

struct ReportRun {
  RunData data;
  Summary summary;
  bool is_finished = false;
  int64_t num_questions = 0;                     // that every plan is asked; 0: unknown
  std::map<std::string, PlanFailures> failures;  // by plan, of the first metric if that is a rate
  std::vector<PlanFile> plan_files;
};

// The task whose metrics are speed and memory instead of quality.
inline constexpr const char* kCostTask = "cost";

// Every folder at or below `folders` that has a manifest.json, each once, in the order given and sorted below. A path
// that is no folder, or has no run, is an error.
Result<std::vector<std::filesystem::path>> FindRuns(const std::vector<std::string>& folders);

// A plan file that cannot be read is noted, not an error: the results do not depend on it.
Result<ReportRun> LoadReportRun(const std::filesystem::path& folder);

// FindRuns and LoadReportRun; runs of kCostTask come last, for quality is what a reader asks first.
Result<std::vector<ReportRun>> LoadReportRuns(const std::vector<std::string>& folders);

}  // namespace headwise

#endif  // HEADWISE_REPORT_REPORT_RUN_H_
