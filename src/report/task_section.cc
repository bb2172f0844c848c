// TaskSection: quality against bytes and length, every cell with its interval and its comparison with the first plan.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/format_bytes.h"
#include "report/charts.h"
#include "report/html.h"
#include "report/sections.h"

namespace headwise {
namespace {

// Charts beyond these are folded: the longest texts tell most.
constexpr size_t kMaxOpenScatters = 2;

std::string Direction(const MetricInfo& metric) {
  return metric.better == MetricInfo::Better::kHigher ? " (higher is better)" : " (lower is better)";
}

Axis MetricAxis(const MetricInfo& metric, const MetricFormat& format) {
  Axis axis;
  axis.title = format.title() + Direction(metric);
  if (metric.kind == MetricInfo::Kind::kRate) {
    axis.least = 0;
    axis.most = 100;
  }
  if (metric.unit == "bytes") axis.format = FormatBytesTick;
  return axis;
}

std::string NoteOf(const Cell& cell, const MetricFormat& format) {
  const std::string read =
      cell.ReadsLess() ? fmt::format(", {} of it read by a query", FormatBytes(cell.kv_read_bytes)) : "";
  return fmt::format("{}, {} tokens: {} ({}), {} values, KV {}{}", cell.plan, LengthTitle(cell.length),
                     format.Value(cell.mean), IntervalText(cell, format), cell.count, FormatBytes(cell.kv_bytes), read);
}

ChartPoint PointOf(const Cell& cell, const MetricFormat& format, double x) {
  ChartPoint point;
  point.x = x;
  point.y = cell.mean * format.factor();
  point.interval = Interval{cell.interval.low * format.factor(), cell.interval.high * format.factor()};
  point.note = NoteOf(cell, format);
  return point;
}

std::string BytesScatter(const ReportRun& run, const MetricInfo& metric, int64_t length, const PlanStyles& styles) {
  const MetricFormat format = FormatOf(run, metric);
  XyChart chart;
  chart.title = fmt::format("{} tokens", FormatLength(length));
  chart.x.title = "KV bytes at the end that a query reads (logarithmic)";
  chart.x.kind = ScaleKind::kLog;
  chart.x.format = FormatBytesTick;
  chart.y = MetricAxis(metric, format);
  std::map<std::string, size_t> families;  // its place in chart.series
  for (const PlanInfo& plan : run.data.info.plans) {
    const Cell* cell = FindCell(run.summary, plan.name, length, metric.name);
    if (cell == nullptr) continue;
    if (&plan == &run.data.info.plans.front()) chart.reference = cell->mean * format.factor();
    const auto [family, is_new] = families.try_emplace(PlanFamily(plan), chart.series.size());
    if (is_new) {
      SeriesStyle style = styles.Of(plan);
      style.dash = 0;
      chart.series.push_back(
          {.name = PlanFamily(plan), .style = style, .points = {}, .joined = plan.kv_ratio.has_value()});
    }
    chart.series[family->second].points.push_back(PointOf(*cell, format, static_cast<double>(cell->kv_read_bytes)));
  }
  for (Series& series : chart.series) {
    std::sort(series.points.begin(), series.points.end(),
              [](const ChartPoint& a, const ChartPoint& b) { return a.x < b.x; });
    if (series.points.size() < 2) series.joined = false;
  }
  return RenderXyChart(chart);
}

std::string BytesScatters(const ReportRun& run, const MetricInfo& metric, const PlanStyles& styles) {
  std::vector<int64_t> lengths = LengthsOf(run);
  std::reverse(lengths.begin(), lengths.end());
  std::string open;
  std::string folded;
  for (size_t i = 0; i < lengths.size(); ++i) {
    (i < kMaxOpenScatters ? open : folded) += BytesScatter(run, metric, lengths[i], styles);
  }
  std::string html = Heading(3, "Quality against KV bytes") + Grid(open);
  if (!folded.empty()) html += Details("Shorter texts", Grid(folded));
  return html;
}

std::string LengthLines(const ReportRun& run, const MetricInfo& metric, const PlanStyles& styles) {
  const std::vector<int64_t> lengths = LengthsOf(run);
  if (lengths.size() < 2) return "";
  const MetricFormat format = FormatOf(run, metric);
  std::string charts;
  for (const PlanGroup& group : GroupsOf(run.data.info)) {
    XyChart chart;
    chart.title = group.title;
    chart.x.title = "length of the text, tokens (logarithmic; K = 1,024)";
    chart.x.kind = ScaleKind::kLog;
    chart.x.format = [](double tokens) { return FormatLength(std::llround(tokens)); };
    for (const int64_t length : lengths) chart.x.ticks.push_back(static_cast<double>(length));
    chart.y = MetricAxis(metric, format);
    for (const PlanInfo* plan : group.plans) {
      Series series = {.name = plan->name, .style = styles.Of(*plan), .points = {}};
      for (const int64_t length : lengths) {
        const Cell* cell = FindCell(run.summary, plan->name, length, metric.name);
        if (cell != nullptr) series.points.push_back(PointOf(*cell, format, static_cast<double>(length)));
      }
      chart.series.push_back(std::move(series));
    }
    charts += RenderXyChart(chart);
  }
  return Heading(3, "By length") + Grid(charts);
}

std::vector<TableCell> CellRow(const ReportRun& run, const MetricInfo& metric, const MetricFormat& format,
                               const Cell& cell) {
  std::vector<TableCell> row(7);
  row[0].text = cell.length ? FormatLength(*cell.length) : "all lengths";
  row[1].text = fmt::format("{}", cell.count);
  row[2].text = format.Value(cell.mean);
  row[2].small = IntervalText(cell, format);
  row[3].text = row[4].text = kDash;
  const Comparison* comparison = FindComparison(run.summary, cell.plan, cell.length, metric.name);
  if (comparison != nullptr) {
    const PairedComparison& paired = comparison->paired;
    row[3].text = format.Difference(paired.mean_difference);
    row[3].small = format.DifferenceRange(paired.interval);
    row[3].title = fmt::format("{} pairs: {} higher, {} lower", paired.num_pairs, paired.num_higher, paired.num_lower);
    row[4].text = FormatPValue(paired.p_value);
    if (paired.p_value < kSignificance)
      row[3].css_class = IsBetter(metric, paired.mean_difference) ? "better" : "worse";
  }
  row[5].text = cell.kv_bytes > 0 ? FormatBytes(cell.kv_bytes) : kDash;
  if (cell.ReadsLess()) row[5].small = fmt::format("{} read", FormatBytes(cell.kv_read_bytes));
  row[6].text = cell.kv_peak_bytes > 0 ? FormatBytes(cell.kv_peak_bytes) : kDash;
  return row;
}

std::string CellTable(const ReportRun& run, const MetricInfo& metric) {
  const MetricFormat format = FormatOf(run, metric);
  const std::vector<PlanInfo>& plans = run.data.info.plans;
  const std::string points = metric.kind == MetricInfo::Kind::kRate ? " (points)" : "";
  HtmlTable table({"Plan, tokens", "Values", format.title(), fmt::format("Minus {}{}", plans.front().name, points), "p",
                   "KV bytes", "at peak"});
  for (const PlanInfo& plan : plans) {
    bool is_first = true;
    for (const Cell& cell : run.summary.cells) {
      if (cell.plan != plan.name || cell.metric != metric.name) continue;
      if (is_first) table.AddGroup(plan.name);
      is_first = false;
      table.AddRow(CellRow(run, metric, format, cell), cell.length ? "" : "all");
    }
  }
  return table.Html();
}

std::string Progress(const ReportRun& run) {
  const RunInfo& info = run.data.info;
  std::string text = fmt::format("{} plans on the same cases", info.plans.size());
  if (run.num_questions > 0) text += fmt::format(", {} questions each", run.num_questions);
  if (run.is_finished) return text + ".";
  text += fmt::format(". Unfinished: {} results so far", run.data.results.size());
  if (run.num_questions > 0) {
    text += fmt::format(" of {}", run.num_questions * static_cast<int64_t>(info.plans.size()));
  }
  return text + ".";
}

}  // namespace

std::string TaskSection(const ReportRun& run, const PlanStyles& styles) {
  std::string html = Paragraph(Progress(run));
  const std::vector<MetricInfo>& metrics = run.data.info.metrics;
  if (run.summary.cells.empty() || metrics.empty()) return html + "<p class=\"empty-note\">No results yet.</p>\n";
  html += BytesScatters(run, metrics.front(), styles);
  html += LengthLines(run, metrics.front(), styles);
  html += DepthMaps(run);
  html += CurveCharts(run, styles);
  html += TagTables(run);
  html += Heading(3, "Every cell");
  html += Paragraph(fmt::format(
      "Under each value its 95 % interval. Differences are on the cases that both plans have; p is the exact "
      "sign test's (for rates, McNemar's). The first plan is {}.",
      run.data.info.plans.front().name));
  for (const MetricInfo& metric : metrics) {
    const std::string title = FormatOf(run, metric).title() + Direction(metric);
    html += Details(title, CellTable(run, metric));
  }
  return html;
}

}  // namespace headwise
