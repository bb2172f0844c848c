#include "report/tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "base/format_bytes.h"
#include "report/sections.h"
#include "text/escape.h"

namespace headwise {
namespace {

// Quoted where a comma, a quote or a line end would be read as the table's own. A program for tables would compute what
// begins like a formula: an apostrophe in front makes it text there.
std::string CsvText(std::string text) {
  text = EscapeControls(text);
  if (!text.empty() && std::string_view("=+-@\t").find(text.front()) != std::string_view::npos) text.insert(0, 1, '\'');
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + "\"";
}

// Empty where the value is no number.
std::string CsvNumber(double value) {
  return std::isfinite(value) ? fmt::format("{}", value) : "";
}

std::string MarkdownText(const std::string& text) {
  // What begins a link, a picture, an entity or markup of any other kind; blanks and words around "_" keep it text.
  constexpr std::string_view kMarks = "|<>\\*`[]!&~";
  std::string safe;
  for (const char c : EscapeControls(text)) {
    if (kMarks.find(c) != std::string_view::npos) safe += '\\';
    safe += c == '\n' || c == '\r' ? ' ' : c;
  }
  return safe;
}

// Rows of a table whose first column is text and whose others are numbers.
class MarkdownTable {
 public:
  explicit MarkdownTable(const std::vector<std::string>& titles) {
    AddRow(titles);
    text_ += "| ---";
    for (size_t i = 1; i < titles.size(); ++i) text_ += " | ---:";
    text_ += " |\n";
  }
  void AddRow(const std::vector<std::string>& cells) {
    for (const std::string& cell : cells) text_ += "| " + MarkdownText(cell) + " ";
    text_ += "|\n";
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

std::string ValueText(const Cell* cell, const MetricFormat& format) {
  if (cell == nullptr) return kDash;
  return fmt::format("{} ({})", format.Value(cell->mean), IntervalText(*cell, format));
}

std::string SummaryTable(const RunGroup& group) {
  std::vector<std::string> titles = {"Plan"};
  std::vector<PlanInfo> plans;
  std::vector<const ReportRun*> shown;
  for (const ReportRun* run : group.runs) {
    if (run->data.info.task == kCostTask || run->data.info.metrics.empty()) continue;
    shown.push_back(run);
    titles.push_back(
        fmt::format("{}: {}", group.ColumnTitle(*run), FormatOf(*run, run->data.info.metrics.front()).title()));
    for (const PlanInfo& plan : run->data.info.plans) {
      const bool is_known =
          std::any_of(plans.begin(), plans.end(), [&](const PlanInfo& known) { return known.name == plan.name; });
      if (!is_known) plans.push_back(plan);
    }
  }
  if (shown.empty()) return "";
  titles.push_back("KV bytes, largest");
  MarkdownTable table(titles);
  for (const PlanInfo& plan : plans) {
    std::vector<std::string> row = {plan.name};
    int64_t kv_bytes = 0, read_bytes = 0;
    for (const ReportRun* run : shown) {
      const MetricInfo& metric = run->data.info.metrics.front();
      const Cell* cell = FindCell(run->summary, plan.name, std::nullopt, metric.name);
      row.push_back(ValueText(cell, FormatOf(*run, metric)));
      if (cell == nullptr) continue;
      kv_bytes = std::max(kv_bytes, cell->kv_bytes);
      read_bytes = std::max(read_bytes, cell->kv_read_bytes);
    }
    row.push_back(kv_bytes > 0 ? FormatBytes(kv_bytes) : kDash);
    if (read_bytes < kv_bytes) row.back() += fmt::format(", {} read", FormatBytes(read_bytes));
    table.AddRow(row);
  }
  return table.text();
}

std::string MetricTable(const ReportRun& run, const MetricInfo& metric) {
  const MetricFormat format = FormatOf(run, metric);
  const std::vector<int64_t> lengths = LengthsOf(run);
  const bool is_cost = run.data.info.task == kCostTask;
  std::vector<std::string> titles = {"Plan"};
  for (const int64_t length : lengths) titles.push_back(FormatLength(length));
  if (!is_cost) titles.insert(titles.end(), {"all", "minus " + run.data.info.plans.front().name, "p"});
  MarkdownTable table(titles);
  for (const PlanInfo& plan : run.data.info.plans) {
    std::vector<std::string> row = {plan.name};
    for (const int64_t length : lengths) {
      row.push_back(ValueText(FindCell(run.summary, plan.name, length, metric.name), format));
    }
    if (!is_cost) {
      row.push_back(ValueText(FindCell(run.summary, plan.name, std::nullopt, metric.name), format));
      const Comparison* comparison = FindComparison(run.summary, plan.name, std::nullopt, metric.name);
      row.push_back(comparison == nullptr
                        ? kDash
                        : fmt::format("{} ({})", format.Difference(comparison->paired.mean_difference),
                                      format.DifferenceRange(comparison->paired.interval)));
      row.push_back(comparison == nullptr ? kDash : FormatPValue(comparison->paired.p_value));
    }
    table.AddRow(row);
  }
  return table.text();
}

std::string RunTables(const ReportRun& run) {
  if (run.summary.cells.empty()) return "No results yet.\n";
  std::string text;
  if (!run.is_finished) text += "Unfinished.\n\n";
  const std::vector<MetricInfo>& metrics = run.data.info.metrics;
  for (const MetricInfo& metric : metrics) {
    // Beside a share of right answers the others say little more; perplexity, divergence and cost have several sides.
    if (metrics.front().kind == MetricInfo::Kind::kRate && &metric != &metrics.front()) break;
    text += fmt::format("{}, 95 % intervals:\n\n{}\n", MarkdownText(FormatOf(run, metric).title()),
                        MetricTable(run, metric));
  }
  return text;
}

}  // namespace

std::string ToCsv(const std::vector<ReportRun>& runs) {
  std::string csv =
      "task,plan,method,kv_ratio,length,metric,count,mean,low,high,kv_bytes,kv_peak_bytes,kv_read_bytes,model\n";
  for (const ReportRun& run : runs) {
    const RunInfo& info = run.data.info;
    for (const Cell& cell : run.summary.cells) {
      const auto plan =
          std::find_if(info.plans.begin(), info.plans.end(), [&](const PlanInfo& p) { return p.name == cell.plan; });
      const bool is_known = plan != info.plans.end();
      csv += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n", CsvText(info.task), CsvText(cell.plan),
                         is_known ? CsvText(plan->method) : "",
                         is_known && plan->kv_ratio ? fmt::format("{}", *plan->kv_ratio) : "",
                         cell.length ? std::to_string(*cell.length) : "all", CsvText(cell.metric), cell.count,
                         CsvNumber(cell.mean), CsvNumber(cell.interval.low), CsvNumber(cell.interval.high),
                         cell.kv_bytes, cell.kv_peak_bytes, cell.kv_read_bytes, CsvText(info.model));
    }
  }
  return csv;
}

std::string ToMarkdown(const std::vector<ReportRun>& runs) {
  std::string text;
  for (const RunGroup& group : GroupsOf(runs)) {
    const std::string title = group.title.empty() ? "" : ": " + MarkdownText(group.title);
    text += fmt::format("## Summary{}\n\n{}\n", title, SummaryTable(group));
  }
  for (const ReportRun& run : runs)
    text += fmt::format("## {}\n\n{}", MarkdownText(TitleOf(run, runs)), RunTables(run));
  return text;
}

}  // namespace headwise
