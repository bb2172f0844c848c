#include "loadgen/load_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "loadgen/load_summary.h"
#include "report/chart_parts.h"
#include "report/charts.h"
#include "report/html.h"
#include "report/metric_format.h"
#include "text/escape.h"

namespace headwise {
namespace {

constexpr SeriesStyle kWaiting = {.colour = 7, .shape = 1};
constexpr SeriesStyle kAnswering = {.colour = 1, .shape = 1};
constexpr SeriesStyle kFailed = {.colour = 2, .shape = 1};
// More rows than this would be thinner than a pixel.
constexpr size_t kMaxRows = 400;
constexpr int kNumBins = 60;

std::string InMilliseconds(double seconds) {
  return fmt::format("{:.2f}", seconds * 1e3);
}

// How many of the values are at most so long: a step for each hundredth.
Series Cumulative(const std::string& name, SeriesStyle style, std::vector<double> values) {
  Series series = {.name = name, .style = style, .points = {}};
  if (values.empty()) return series;
  std::ranges::sort(values);
  for (int percent = 0; percent <= 100; ++percent) {
    const double milliseconds = Quantile(values, percent / 100.0) * 1e3;
    series.points.push_back({.x = milliseconds,
                             .y = static_cast<double>(percent),
                             .note = fmt::format("{} % within {:.2f} ms", percent, milliseconds)});
  }
  return series;
}

std::string CumulativeChart(const std::string& title, const std::string& x_title, std::vector<Series> series) {
  XyChart chart;
  chart.title = title;
  chart.x.title = x_title;
  chart.x.kind = ScaleKind::kLog;
  chart.y.title = "share at most so long, %";
  chart.y.least = 0;
  chart.y.most = 100;
  chart.series = std::move(series);
  return RenderXyChart(chart);
}

std::string Distributions(std::span<const LoadRecord> records) {
  LoadTimes times = TimesOf(records);
  std::string html = CumulativeChart("Time to first token", "ms",
                                     {Cumulative("to the first token", {.colour = 1}, std::move(times.first))});
  html += CumulativeChart("Between tokens", "ms",
                          {Cumulative("all gaps", {.colour = 1}, std::move(times.gaps)),
                           Cumulative("longest gap of a request", {.colour = 2, .dash = 1}, times.longest_gap)});
  html += CumulativeChart("Time per output token", "ms, of a request",
                          {Cumulative("per token", {.colour = 1}, std::move(times.per_token))});
  html += CumulativeChart("Whole requests", "ms", {Cumulative("end to end", {.colour = 1}, std::move(times.whole))});
  return Grid(html);
}

double EndOf(std::span<const LoadRecord> records) {
  double end = 0;
  for (const LoadRecord& record : records) end = std::max(end, record.end);
  return end;
}

XyChart OverTime(std::string title, std::string y_title) {
  XyChart chart;
  chart.title = std::move(title);
  chart.x.title = "seconds from the start";
  chart.x.least = 0;
  chart.y.title = std::move(y_title);
  chart.y.least = 0;
  return chart;
}

// Means over equal parts of the run.
std::string RatesOverTime(std::span<const LoadRecord> records) {
  const double end = EndOf(records);
  if (!(end > 0)) return "";
  const double width = end / kNumBins;
  std::vector<double> pieces(kNumBins, 0);
  std::vector<double> running(kNumBins, 0);
  for (const LoadRecord& record : records) {
    for (const double piece : record.pieces) {
      ++pieces[static_cast<size_t>(std::clamp(piece / width, 0.0, kNumBins - 1.0))];
    }
    for (int bin = 0; bin < kNumBins; ++bin) {
      const double overlap = std::min(record.end, (bin + 1) * width) - std::max(record.start, bin * width);
      running[static_cast<size_t>(bin)] += std::max(0.0, overlap) / width;
    }
  }
  XyChart rate = OverTime("Pieces of answers", "a second");
  XyChart load = OverTime("Requests under way", "requests");
  rate.series.push_back({.name = "pieces", .style = {.colour = 1}, .points = {}});
  load.series.push_back({.name = "requests", .style = {.colour = 2}, .points = {}});
  for (int bin = 0; bin < kNumBins; ++bin) {
    const double middle = (bin + 0.5) * width;
    const auto at = static_cast<size_t>(bin);
    rate.series[0].points.push_back({.x = middle, .y = pieces[at] / width});
    load.series[0].points.push_back({.x = middle, .y = running[at]});
  }
  return RenderXyChart(rate) + RenderXyChart(load);
}

// A row for each request: until its first token, and from there on.
std::string Timeline(std::span<const LoadRecord> records) {
  std::vector<const LoadRecord*> rows;
  const size_t step = (records.size() + kMaxRows - 1) / kMaxRows;
  std::vector<const LoadRecord*> ordered;
  for (const LoadRecord& record : records) ordered.push_back(&record);
  std::ranges::sort(ordered, {}, &LoadRecord::request);
  for (size_t i = 0; i < ordered.size(); i += std::max<size_t>(1, step)) rows.push_back(ordered[i]);
  if (rows.empty()) return "";
  constexpr double kWidth = 440;
  constexpr double kLeft = 10;
  constexpr double kAxis = 36;
  const double row_height = std::clamp(420.0 / static_cast<double>(rows.size()), 1.2, 14.0);
  const double bottom = row_height * static_cast<double>(rows.size()) + 4;
  const double end = EndOf(records);
  const Scale scale(ScaleKind::kLinear, 0, end > 0 ? end : 1, kLeft, kWidth - 30);
  std::string svg;
  double y = 2;
  const auto bar = [&](const SeriesStyle& style, double from, double to) {
    svg += fmt::format("<rect class=\"bar {}\" x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\"/>",
                       StyleClasses(style), scale.At(from), y, std::max(0.6, scale.At(to) - scale.At(from)),
                       row_height * 0.8);
  };
  for (const LoadRecord* record : rows) {
    const std::string note =
        record->ok()
            ? fmt::format("request {}: {:.3f} s, first token after {:.3f} s, {} tokens", record->request,
                          record->end - record->start, record->pieces.front() - record->start, record->output_tokens)
            : fmt::format("request {}: {}: {}", record->request, record->failure, record->message);
    svg += fmt::format("<g><title>{}</title>", EscapeXml(note));
    if (!record->ok()) {
      bar(kFailed, record->start, record->end);
    } else {
      bar(kWaiting, record->start, record->pieces.front());
      bar(kAnswering, record->pieces.front(), record->end);
    }
    svg += "</g>\n";
    y += row_height;
  }
  for (const double tick : scale.Ticks(6)) {
    svg += fmt::format("<path class=\"rule\" d=\"M{0:.1f} {1:.1f}V{2:.1f}\"/>\n", scale.At(tick), bottom, bottom + 5);
    svg += SvgText(scale.At(tick), bottom + 18, "class=\"tick\" text-anchor=\"middle\"", fmt::format("{:g}", tick));
  }
  svg +=
      SvgText(kWidth / 2, bottom + kAxis - 2, "class=\"axis-title\" text-anchor=\"middle\"", "seconds from the start");
  const std::string title = step > 1 ? fmt::format("Requests, one in {}", step) : "Requests";
  return Figure(title, fmt::format("{} rows of bars from a request's start to its end", rows.size()), kWidth,
                bottom + kAxis, svg,
                Legend({{.name = "until the first token", .style = kWaiting, .has_line = false},
                        {.name = "answering", .style = kAnswering, .has_line = false},
                        {.name = "failed", .style = kFailed, .has_line = false}}));
}

std::string TextOf(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

LoadTable TimesTable(std::span<const LoadRecord> records) {
  const LoadSummary summary = Summarise(records);
  LoadTable table = {.titles = {"ms", "mean", "median", "std", "p50", "p90", "p95", "p99", "max"}, .rows = {}};
  const auto add = [&](const char* name, const Distribution& times) {
    LoadTableRow row = {.name = name, .cells = {}};
    for (const double seconds :
         {times.mean, times.median, times.std, times.p50, times.p90, times.p95, times.p99, times.max}) {
      row.cells.push_back(times.count > 0 ? InMilliseconds(seconds) : kNoTime);
    }
    table.rows.push_back(std::move(row));
  };
  add("time to first token", summary.ttft);
  add("time per output token", summary.tpot);
  add("between tokens", summary.itl);
  add("longest gap of a request", summary.longest_gap);
  add("end to end", summary.e2el);
  return table;
}

std::vector<std::pair<std::string, std::string>> LoadFacts(std::span<const LoadRecord> records) {
  const LoadSummary summary = Summarise(records);
  std::vector<std::pair<std::string, std::string>> facts = {
      {"requests that came whole", fmt::format("{}", summary.completed)},
      {"requests that failed", fmt::format("{}", summary.failed)}};
  for (const auto& [kind, count] : summary.failures) facts.emplace_back("  " + kind, fmt::format("{}", count));
  const bool is_counted = summary.num_counted == summary.completed;
  facts.emplace_back("duration, s", fmt::format("{:.3f}", summary.duration));
  facts.emplace_back("most requests at a time", fmt::format("{}", summary.peak_concurrency));
  facts.emplace_back("prompt tokens", fmt::format("{}", summary.input_tokens));
  if (summary.cached_tokens > 0)
    facts.emplace_back("  of these not read again", fmt::format("{}", summary.cached_tokens));
  facts.emplace_back(is_counted ? "tokens of answers" : "pieces of answers (the server counts no tokens)",
                     fmt::format("{}", summary.output_tokens));
  if (summary.num_short > 0) facts.emplace_back("answers shorter than asked for", fmt::format("{}", summary.num_short));
  facts.emplace_back("requests/s", fmt::format("{:.2f}", summary.request_throughput));
  facts.emplace_back("prompt tokens/s", fmt::format("{:.2f}", summary.input_throughput));
  facts.emplace_back("answer tokens/s", fmt::format("{:.2f}", summary.output_throughput));
  facts.emplace_back("all tokens/s", fmt::format("{:.2f}", summary.total_throughput));
  facts.emplace_back("median time to connect, ms", InMilliseconds(summary.connect.median));
  facts.emplace_back("longest start behind its arrival, ms", InMilliseconds(summary.delay.max));
  return facts;
}

std::string RenderLoadReport(const Json& config, std::span<const LoadRecord> records) {
  std::vector<std::pair<std::string, std::string>> asked;
  for (const auto& [key, value] : config.items()) {
    if (!value.is_null()) asked.emplace_back(key, TextOf(value));
  }
  const LoadTable table = TimesTable(records);
  HtmlTable times(table.titles);
  for (const LoadTableRow& row : table.rows) {
    std::vector<TableCell> cells = {{.text = row.name}};
    for (const std::string& cell : row.cells) cells.push_back({.text = cell});
    times.AddRow(cells);
  }
  return Page("Load on a server", Paragraph(config.contains("base_url") ? TextOf(config["base_url"]) : ""),
              {{"figures", "Figures", Facts(LoadFacts(records)) + times.Html()},
               {"distributions", "Distributions", Distributions(records)},
               {"timeline", "What happened when", Grid(Timeline(records) + RatesOverTime(records))},
               {"asked", "What was asked for", Facts(asked)}});
}

}  // namespace headwise
