// CostSection: seconds and bytes against length, and against the first plan.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/charts.h"
#include "report/html.h"
#include "report/sections.h"

namespace headwise {
namespace {

// Beyond this ratio of the largest to the smallest value, a linear axis would show only the largest.
constexpr double kLogRatio = 20;

bool IsBytes(const MetricInfo& metric) {
  return metric.unit == "bytes";
}

Axis CostAxis(const ReportRun& run, const MetricInfo& metric) {
  Axis axis;
  axis.title = metric.unit;
  if (IsBytes(metric)) axis.format = FormatBytesTick;
  double least = INFINITY;
  double most = 0;
  for (const Cell& cell : run.summary.cells) {
    if (cell.metric != metric.name || !cell.length || !(cell.mean > 0)) continue;
    least = std::min(least, cell.mean);
    most = std::max(most, cell.mean);
  }
  if (most > least * kLogRatio) {
    axis.kind = ScaleKind::kLog;
    axis.title += " (logarithmic)";
  } else {
    axis.least = 0;
  }
  return axis;
}

std::string CostChart(const ReportRun& run, const MetricInfo& metric, const PlanStyles& styles) {
  const MetricFormat format = FormatOf(run, metric);
  const std::vector<int64_t> lengths = LengthsOf(run);
  XyChart chart;
  chart.title = metric.label;
  chart.x.title = "length of the text, tokens (logarithmic; K = 1,024)";
  chart.x.kind = ScaleKind::kLog;
  chart.x.format = [](double tokens) { return FormatLength(std::llround(tokens)); };
  for (const int64_t length : lengths) chart.x.ticks.push_back(static_cast<double>(length));
  chart.y = CostAxis(run, metric);
  for (const PlanInfo& plan : run.data.info.plans) {
    Series series = {.name = plan.name, .style = styles.Of(plan), .points = {}};
    for (const int64_t length : lengths) {
      const Cell* cell = FindCell(run.summary, plan.name, length, metric.name);
      if (cell == nullptr) continue;
      ChartPoint point;
      point.x = static_cast<double>(length);
      point.y = cell->mean;
      if (cell->count > 1) point.interval = cell->interval;
      point.note = fmt::format("{}, {} tokens: {}", plan.name, FormatLength(length), format.Value(cell->mean));
      series.points.push_back(std::move(point));
    }
    chart.series.push_back(std::move(series));
  }
  return RenderXyChart(chart);
}

// How many times better than the first plan's the plan's value is; none where either is missing or zero.
std::optional<double> TimesBetter(const ReportRun& run, const MetricInfo& metric, const std::string& plan,
                                  int64_t length) {
  const Cell* cell = FindCell(run.summary, plan, length, metric.name);
  const Cell* reference = FindCell(run.summary, run.data.info.plans.front().name, length, metric.name);
  if (cell == nullptr || reference == nullptr || !(cell->mean > 0) || !(reference->mean > 0)) return std::nullopt;
  return metric.better == MetricInfo::Better::kLower ? reference->mean / cell->mean : cell->mean / reference->mean;
}

std::string TimesText(std::optional<double> times) {
  return times ? "×" + FormatNumber(*times, 3) : kDash;
}

std::string TimesTable(const ReportRun& run) {
  const std::vector<int64_t> lengths = LengthsOf(run);
  std::vector<std::string> titles = {"Plan"};
  for (const int64_t length : lengths) titles.push_back(FormatLength(length));
  HtmlTable table(titles);
  for (const MetricInfo& metric : run.data.info.metrics) {
    const MetricFormat format = FormatOf(run, metric);
    table.AddGroup(fmt::format("{}: value, and times {}", format.title(), IsBytes(metric) ? "smaller" : "better"));
    for (const PlanInfo& plan : run.data.info.plans) {
      std::vector<TableCell> row(1 + lengths.size());
      row[0] = NameCell(plan.name);
      for (size_t i = 0; i < lengths.size(); ++i) {
        const Cell* cell = FindCell(run.summary, plan.name, lengths[i], metric.name);
        row[i + 1].text = cell == nullptr ? kDash : format.Value(cell->mean);
        row[i + 1].small = TimesText(TimesBetter(run, metric, plan.name, lengths[i]));
        if (cell != nullptr && cell->count > 1) row[i + 1].title = "95 % interval " + format.Range(cell->interval);
      }
      table.AddRow(row);
    }
  }
  return table.Html();
}

std::string TimesBars(const ReportRun& run, const MetricInfo& metric, int64_t length, const PlanStyles& styles) {
  const PlanInfo& first = run.data.info.plans.front();
  BarChart chart;
  chart.title = fmt::format("{} at {} tokens", metric.label, FormatLength(length));
  chart.axis_title = fmt::format("times {} than {}", IsBytes(metric) ? "smaller" : "better", first.name);
  chart.reference = 1;
  for (const PlanInfo& plan : run.data.info.plans) {
    const std::optional<double> times = TimesBetter(run, metric, plan.name, length);
    if (&plan == &first || !times) continue;
    chart.bars.push_back({.name = plan.name, .style = styles.Of(plan), .value = *times, .label = TimesText(times)});
  }
  return chart.bars.empty() ? "" : RenderBarChart(chart);
}

}  // namespace

std::string CostSection(const ReportRun& run, const PlanStyles& styles) {
  if (run.summary.cells.empty()) return "<p class=\"empty-note\">No results yet.</p>\n";
  std::string html = Paragraph(run.is_finished ? "Speed depends on the machine, which is named under What was run."
                                               : "Unfinished: what there is so far.");
  std::string charts;
  std::string bars;
  const int64_t longest = LengthsOf(run).back();
  for (const MetricInfo& metric : run.data.info.metrics) {
    charts += CostChart(run, metric, styles);
    bars += TimesBars(run, metric, longest, styles);
  }
  html += Heading(3, "Against length") + Grid(charts);
  if (!bars.empty()) html += Heading(3, "Against " + run.data.info.plans.front().name) + Grid(bars);
  return html + Details("Every value, by length", TimesTable(run));
}

}  // namespace headwise
