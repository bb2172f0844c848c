// The report's sections, one function each, and what they share.
#ifndef HEADWISE_REPORT_SECTIONS_H_
#define HEADWISE_REPORT_SECTIONS_H_

#include <optional>
#include <string>
#include <vector>

#include "report/html.h"
#include "report/metric_format.h"
#include "report/plan_styles.h"
#include "report/report_run.h"

namespace headwise {

// Every plan of every run, in order of appearance; of plans with one name, the first.
std::vector<PlanInfo> AllPlans(const std::vector<ReportRun>& runs);

std::vector<std::string> ModelNames(const std::vector<ReportRun>& runs);

// Runs whose plans can be compared: those of one model, and of its ablations those of one each.
struct RunGroup {
  std::string title;  // empty if there is only one group
  std::vector<const ReportRun*> runs;

  // The run's title, with its folder where the group has others of the same task.
  std::string ColumnTitle(const ReportRun& run) const;
};
std::vector<RunGroup> GroupsOf(const std::vector<ReportRun>& runs);

// A plan's name in front of a row: long ones cut, whole for a pointer.
TableCell NameCell(const std::string& name);

// The run's title, with whatever else is needed to tell it from the others.
std::string TitleOf(const ReportRun& run, const std::vector<ReportRun>& runs);

// Decimals that suit all of the run's values of this metric.
MetricFormat FormatOf(const ReportRun& run, const MetricInfo& metric);

// The cell's interval, or that it has none because it is one value.
std::string IntervalText(const Cell& cell, const MetricFormat& format);

const Comparison* FindComparison(const Summary& summary, const std::string& plan, std::optional<int64_t> length,
                                 const std::string& metric);
// The lengths for which there are results, ascending.
std::vector<int64_t> LengthsOf(const ReportRun& run);

// Plans that are best looked at together: those of one budget, and the first plan with each.
struct PlanGroup {
  std::string title;  // empty if there is only one group
  std::vector<const PlanInfo*> plans;
};
std::vector<PlanGroup> GroupsOf(const RunInfo& info);
// "25 % of the KV bytes", "as given".
std::string BudgetTitle(const PlanInfo& plan);

// Whether a paired difference of this metric is an improvement.
bool IsBetter(const MetricInfo& metric, double difference);
// Differences with a p-value below this are pointed out.
inline constexpr double kSignificance = 0.05;

// "for 32K", "over all lengths".
std::string LengthTitle(std::optional<int64_t> length);

std::string SummarySection(const std::vector<ReportRun>& runs);
std::string TaskSection(const ReportRun& run, const PlanStyles& styles);
std::string CostSection(const ReportRun& run, const PlanStyles& styles);
std::string PlanMapSection(const std::vector<ReportRun>& runs);
std::string FailureSection(const std::vector<ReportRun>& runs);
std::string RunSection(const std::vector<ReportRun>& runs);

// Parts of TaskSection.
std::string DepthMaps(const ReportRun& run);
std::string TagTables(const ReportRun& run);
std::string CurveCharts(const ReportRun& run, const PlanStyles& styles);

}  // namespace headwise

#endif  // HEADWISE_REPORT_SECTIONS_H_
