// SummarySection: every plan's first metric in every task, and what it costs in bytes.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/format_bytes.h"
#include "report/html.h"
#include "report/sections.h"

namespace headwise {
namespace {

struct Column {
  const ReportRun* run;
  const MetricInfo* metric;
  std::optional<int64_t> length;  // none: over all
  MetricFormat format;
  std::string title;
};

std::vector<Column> ColumnsOf(const RunGroup& group) {
  std::vector<Column> columns;
  for (const ReportRun* run : group.runs) {
    const RunInfo& info = run->data.info;
    if (info.metrics.empty()) continue;
    if (info.task != kCostTask) {
      const MetricFormat format = FormatOf(*run, info.metrics.front());
      columns.push_back(
          {run, &info.metrics.front(), std::nullopt, format,
           fmt::format("{}: {}{}", group.ColumnTitle(*run), format.title(), run->is_finished ? "" : " (unfinished)")});
      continue;
    }
    // A mean of seconds over lengths means nothing: the longest one stands for them.
    const std::vector<int64_t> lengths = LengthsOf(*run);
    if (lengths.empty()) continue;
    for (const MetricInfo& metric : info.metrics) {
      if (metric.unit == "bytes") continue;
      const MetricFormat format = FormatOf(*run, metric);
      columns.push_back({run, &metric, lengths.back(), format,
                         fmt::format("{} at {}", format.title(), FormatLength(lengths.back()))});
    }
  }
  return columns;
}

using BestMeans = std::map<std::optional<double>, double>;  // by budget

// Every head full. A plan of a file may call its method anything.
bool IsFull(const PlanInfo& plan) {
  return plan.method == "full" && plan.files.empty();
}

// The best mean of each budget, over its plans that are bounded; only where there is a choice.
BestMeans BestByBudget(const Column& column, const std::vector<PlanInfo>& plans) {
  std::map<std::optional<double>, std::vector<double>> means;
  for (const PlanInfo& plan : plans) {
    if (IsFull(plan)) continue;
    const Cell* cell = FindCell(column.run->summary, plan.name, column.length, column.metric->name);
    if (cell != nullptr) means[plan.kv_ratio].push_back(cell->mean);
  }
  BestMeans best;
  for (const auto& [ratio, values] : means) {
    if (values.size() < 2) continue;
    best[ratio] = column.metric->better == MetricInfo::Better::kHigher
                      ? *std::max_element(values.begin(), values.end())
                      : *std::min_element(values.begin(), values.end());
  }
  return best;
}

TableCell MetricCell(const Column& column, const PlanInfo& plan, const BestMeans& best) {
  const Cell* cell = FindCell(column.run->summary, plan.name, column.length, column.metric->name);
  if (cell == nullptr) return {.text = kDash};
  TableCell shown;
  shown.text = column.format.Value(cell->mean);
  shown.small = IntervalText(*cell, column.format);
  shown.title = cell->count > 1 ? fmt::format("{} values, 95 % interval {}", cell->count, shown.small) : shown.small;
  const auto budget = best.find(plan.kv_ratio);
  if (!IsFull(plan) && budget != best.end() && budget->second == cell->mean) {
    shown.css_class = "best";
    shown.title += "; best at its budget";
  }
  const Comparison* comparison = FindComparison(column.run->summary, plan.name, column.length, column.metric->name);
  if (comparison != nullptr && comparison->paired.p_value < kSignificance) {
    const bool is_better = IsBetter(*column.metric, comparison->paired.mean_difference);
    shown.css_class += is_better ? " better" : " worse";
    shown.title += fmt::format("; {} than {} on the same cases, p {}", is_better ? "better" : "worse",
                               comparison->reference, FormatPValue(comparison->paired.p_value));
  }
  return shown;
}

// The run and length that say most about a plan's bytes: the longest text that it has read.
struct ByteSource {
  const ReportRun* run = nullptr;
  int64_t length = -1;
};

ByteSource ByteSourceOf(const RunGroup& group, const std::string& plan) {
  ByteSource source;
  for (const ReportRun* run : group.runs) {
    for (const Cell& cell : run->summary.cells) {
      if (cell.plan == plan && cell.length.value_or(-1) > source.length) source = {run, *cell.length};
    }
  }
  return source;
}

// Steady or peak bytes, and their share of the first plan's; the length where it is not the title's.
TableCell BytesCell(const ByteSource& source, int64_t title_length, const std::string& plan, int64_t Cell::*bytes) {
  if (source.run == nullptr) return {.text = kDash};
  const auto largest = [&](const std::string& name) {
    int64_t most = 0;
    for (const Cell& cell : source.run->summary.cells) {
      if (cell.plan == name && cell.length == source.length) most = std::max(most, cell.*bytes);
    }
    return most;
  };
  const int64_t size = largest(plan);
  if (size == 0) return {.text = kDash};
  TableCell cell = {.text = FormatBytes(size), .title = fmt::format("{} bytes", size)};
  const int64_t reference = largest(source.run->data.info.plans.front().name);
  if (reference > 0) cell.small = FormatRatio(static_cast<double>(size) / static_cast<double>(reference));
  if (source.length != title_length) cell.small += " at " + FormatLength(source.length);
  return cell;
}

// Of a plan whose queries read less than it keeps.
void AddRead(const ByteSource& source, const std::string& plan, TableCell& kept) {
  if (source.run == nullptr) return;
  int64_t read = 0;
  bool reads_less = false;
  for (const Cell& cell : source.run->summary.cells) {
    if (cell.plan != plan || cell.length != source.length) continue;
    read = std::max(read, cell.kv_read_bytes);
    reads_less = reads_less || cell.ReadsLess();
  }
  if (reads_less) kept.small += fmt::format(", {} read", FormatBytes(read));
}

std::vector<PlanInfo> PlansOf(const RunGroup& group) {
  std::vector<PlanInfo> plans;
  for (const ReportRun* run : group.runs) {
    for (const PlanInfo& plan : run->data.info.plans) {
      const bool is_known =
          std::any_of(plans.begin(), plans.end(), [&](const PlanInfo& known) { return known.name == plan.name; });
      if (!is_known) plans.push_back(plan);
    }
  }
  std::stable_sort(plans.begin(), plans.end(), [](const PlanInfo& a, const PlanInfo& b) {
    return a.kv_ratio.value_or(2) > b.kv_ratio.value_or(2);
  });
  return plans;
}

std::string GroupTable(const RunGroup& group) {
  const std::vector<Column> columns = ColumnsOf(group);
  const std::vector<PlanInfo> plans = PlansOf(group);
  int64_t byte_length = -1;
  for (const PlanInfo& plan : plans) byte_length = std::max(byte_length, ByteSourceOf(group, plan.name).length);
  if (columns.empty() || byte_length < 0) return "<p class=\"empty-note\">No results yet.</p>\n";
  std::vector<std::string> titles = {"Plan"};
  std::vector<BestMeans> best;
  for (const Column& column : columns) {
    titles.push_back(column.title);
    // Which bounded plan of a budget is fastest is chance.
    best.push_back(column.length ? BestMeans() : BestByBudget(column, plans));
  }
  titles.push_back("KV at the end, " + FormatLength(byte_length));
  titles.push_back("KV at peak, " + FormatLength(byte_length));
  HtmlTable table(titles);
  const bool has_budgets =
      std::any_of(plans.begin(), plans.end(), [](const PlanInfo& p) { return p.kv_ratio.has_value(); });
  std::string budget;
  for (const PlanInfo& plan : plans) {
    if (has_budgets && BudgetTitle(plan) != budget) {
      budget = BudgetTitle(plan);
      table.AddGroup(budget);
    }
    std::vector<TableCell> row = {NameCell(plan.name)};
    for (size_t i = 0; i < columns.size(); ++i) row.push_back(MetricCell(columns[i], plan, best[i]));
    const ByteSource source = ByteSourceOf(group, plan.name);
    row.push_back(BytesCell(source, byte_length, plan.name, &Cell::kv_bytes));
    AddRead(source, plan.name, row.back());
    row.push_back(BytesCell(source, byte_length, plan.name, &Cell::kv_peak_bytes));
    table.AddRow(row);
  }
  return table.Html();
}

}  // namespace

std::string SummarySection(const std::vector<ReportRun>& runs) {
  std::string html = Paragraph(
      "Means over all lengths, 95 % intervals under them. Shaded: the best bounded plan of its budget. "
      "▼ and ▲: worse or better than the first plan on the same cases, p below 0.05. "
      "Shares under bytes are of the first plan's.");
  for (const RunGroup& group : GroupsOf(runs)) {
    if (!group.title.empty()) html += Heading(3, group.title);
    html += GroupTable(group);
  }
  return html;
}

}  // namespace headwise
