#include "report/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "report/html.h"
#include "report/sections.h"

namespace headwise {
namespace {

std::string Lead(const std::vector<ReportRun>& runs) {
  int64_t num_answers = 0;
  size_t num_unfinished = 0;
  for (const ReportRun& run : runs) {
    num_answers += static_cast<int64_t>(run.data.results.size());
    num_unfinished += run.is_finished ? 0 : 1;
  }
  std::string text = fmt::format("{}: {} plans, {} {}, {} results", fmt::join(ModelNames(runs), ", "),
                                 AllPlans(runs).size(), runs.size(), runs.size() == 1 ? "run" : "runs", num_answers);
  if (num_unfinished > 0) text += fmt::format(", {} of the runs unfinished", num_unfinished);
  return Paragraph(text + ".");
}

}  // namespace

std::string RenderReport(const std::vector<ReportRun>& runs) {
  const PlanStyles styles(AllPlans(runs));
  std::vector<PageSection> sections = {{"summary", "Summary", SummarySection(runs)}};
  for (size_t i = 0; i < runs.size(); ++i) {
    const bool is_cost = runs[i].data.info.task == kCostTask;
    sections.push_back({fmt::format("run-{}", i + 1), TitleOf(runs[i], runs),
                        is_cost ? CostSection(runs[i], styles) : TaskSection(runs[i], styles)});
  }
  sections.push_back({"plans", "Plans", PlanMapSection(runs)});
  sections.push_back({"failures", "Failures", FailureSection(runs)});
  sections.push_back({"runs", "What was run", RunSection(runs)});
  return Page("Headwise evaluation", Lead(runs), sections);
}

}  // namespace headwise
