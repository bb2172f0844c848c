// RenderXyChart: lines and scattered points with intervals.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "report/chart_parts.h"
#include "report/charts.h"
#include "report/metric_format.h"
#include "text/escape.h"

namespace headwise {
namespace {

constexpr double kWidth = 440;
constexpr double kHeight = 290;
constexpr double kTop = 30;  // the y axis' title stands here
constexpr double kBottom = 46;
constexpr int kTicksAcross = 6;
constexpr int kTicksUp = 5;
constexpr double kMarkRadius = 4.2;
constexpr double kHitRadius = 11;  // half a fingertip on a phone
// A line of more points than this is a curve: marks on all of them would hide it.
constexpr size_t kMaxMarks = 12;

// Within this, differences and ratios of any two values are finite too.
constexpr double kLargest = 1e100;

bool CanBeAt(const Axis& axis, double value) {
  if (!(std::abs(value) < kLargest)) return false;
  return axis.kind == ScaleKind::kLinear || value > 1 / kLargest;
}

struct Range {
  double least = std::numeric_limits<double>::infinity();
  double most = -std::numeric_limits<double>::infinity();

  void Add(const Axis& axis, double value) {
    if (!CanBeAt(axis, value)) return;
    least = std::min(least, value);
    most = std::max(most, value);
  }
};

// Room around the values; around a single one, enough that it stands in the middle.
Range Widened(const Axis& axis, Range range) {
  if (!(range.least <= range.most)) return axis.kind == ScaleKind::kLog ? Range{1, 10} : Range{0, 1};
  if (axis.kind == ScaleKind::kLog) {
    const double factor = range.most < range.least * 1.001 ? 2.0 : std::pow(range.most / range.least, 0.05);
    return {range.least / factor, range.most * factor};
  }
  const double size = std::max(std::abs(range.least), std::abs(range.most));
  double margin = (range.most - range.least) * 0.05;
  if (range.most - range.least < 1e-6 * size) margin = size * 0.1;
  if (margin == 0) margin = 0.5;
  Range wide = {range.least - margin, range.most + margin};
  if (axis.least && *axis.least <= range.least) wide.least = std::min(*axis.least, range.least);
  if (axis.most && *axis.most >= range.most) wide.most = std::max(*axis.most, range.most);
  return wide;
}

Range RangeOf(const Axis& axis, const XyChart& chart, bool is_y) {
  Range range;
  for (const Series& series : chart.series) {
    for (const ChartPoint& point : series.points) {
      if (!CanBeAt(chart.x, point.x) || !CanBeAt(chart.y, point.y)) continue;
      range.Add(axis, is_y ? point.y : point.x);
      if (is_y && point.interval) {
        range.Add(axis, point.interval->low);
        range.Add(axis, point.interval->high);
      }
    }
  }
  if (is_y && chart.reference) range.Add(axis, *chart.reference);
  if (axis.least) range.Add(axis, *axis.least);
  if (axis.most) range.Add(axis, *axis.most);
  return Widened(axis, range);
}

std::vector<double> TicksOf(const Axis& axis, const Range& range, int wanted) {
  const Scale scale(axis.kind, range.least, range.most, 0, 1);
  if (axis.ticks.empty()) return scale.Ticks(wanted);
  std::vector<double> ticks;
  for (const double tick : axis.ticks) {
    if (CanBeAt(axis, tick) && tick >= range.least && tick <= range.most) ticks.push_back(tick);
  }
  return ticks;
}

// Labels of ticks, all with as many decimals as the finest needs.
std::vector<std::string> LabelsOf(const Axis& axis, const std::vector<double>& ticks) {
  std::vector<std::string> labels;
  for (const double tick : ticks) {
    labels.push_back(axis.format ? axis.format(tick) : FormatNumber(tick, 3));
  }
  if (axis.format || axis.kind == ScaleKind::kLog || ticks.size() < 2) return labels;
  const double step = ticks[1] - ticks[0];
  const double size = std::max(std::abs(ticks.front()), std::abs(ticks.back()));
  const int decimals = std::max(0, -static_cast<int>(std::floor(std::log10(step) + 1e-9)));
  if (decimals > 4 || size >= 1e6) return labels;
  for (size_t i = 0; i < ticks.size(); ++i) labels[i] = FormatTick(ticks[i], decimals);
  return labels;
}

// The drawing under way: what is known once the axes are.
struct Plot {
  const XyChart& chart;
  Scale x;
  Scale y;
  double left;
  double right;
  std::string svg;

  double bottom() const { return kHeight - kBottom; }
};

Plot LayOut(const XyChart& chart) {
  const Range x_range = RangeOf(chart.x, chart, false);
  const Range y_range = RangeOf(chart.y, chart, true);
  double left = 24;
  for (const std::string& label : LabelsOf(chart.y, TicksOf(chart.y, y_range, kTicksUp))) {
    left = std::max(left, TextWidth(label) + 12);
  }
  double right = kWidth - 14;
  const std::vector<std::string> labels = LabelsOf(chart.x, TicksOf(chart.x, x_range, kTicksAcross));
  if (!labels.empty()) right = std::min(right, kWidth - TextWidth(labels.back()) / 2);
  return {.chart = chart,
          .x = Scale(chart.x.kind, x_range.least, x_range.most, left, right),
          .y = Scale(chart.y.kind, y_range.least, y_range.most, kHeight - kBottom, kTop),
          .left = left,
          .right = right,
          .svg = ""};
}

void DrawAxes(Plot& plot) {
  const auto line = [&](const char* classes, double x1, double y1, double x2, double y2) {
    plot.svg += fmt::format("<path class=\"{}\" d=\"M{:.1f} {:.1f}L{:.1f} {:.1f}\"/>\n", classes, x1, y1, x2, y2);
  };
  const std::vector<double> y_ticks = TicksOf(plot.chart.y, {plot.y.least(), plot.y.most()}, kTicksUp);
  const std::vector<std::string> y_labels = LabelsOf(plot.chart.y, y_ticks);
  for (size_t i = 0; i < y_ticks.size(); ++i) {
    const double y = plot.y.At(y_ticks[i]);
    line("rule", plot.left, y, plot.right, y);
    plot.svg += SvgText(plot.left - 7, y + 4, "class=\"tick\" text-anchor=\"end\"", y_labels[i]);
  }
  const std::vector<double> x_ticks = TicksOf(plot.chart.x, {plot.x.least(), plot.x.most()}, kTicksAcross);
  const std::vector<std::string> x_labels = LabelsOf(plot.chart.x, x_ticks);
  double free_from = 0;  // a label that would touch the one before is left out
  for (size_t i = 0; i < x_ticks.size(); ++i) {
    const double x = plot.x.At(x_ticks[i]);
    line("rule", x, plot.bottom(), x, plot.bottom() + 4);
    const double half = TextWidth(x_labels[i]) / 2;
    if (x - half < free_from) continue;
    free_from = x + half + 8;
    plot.svg += SvgText(x, plot.bottom() + 18, "class=\"tick\" text-anchor=\"middle\"", x_labels[i]);
  }
  line("axis", plot.left, plot.bottom(), plot.right, plot.bottom());
  plot.svg += SvgText(2, 14, "class=\"axis-title\"", plot.chart.y.title);
  plot.svg += SvgText((plot.left + plot.right) / 2, kHeight - 8, "class=\"axis-title\" text-anchor=\"middle\"",
                      plot.chart.x.title);
  if (plot.chart.reference && CanBeAt(plot.chart.y, *plot.chart.reference)) {
    const double y = plot.y.At(*plot.chart.reference);
    line("reference", plot.left, y, plot.right, y);
  }
}

// The points that can be drawn, in pixels, with their intervals cut to the axis.
struct Place {
  double x;
  double y;
  std::optional<Interval> interval;
  const ChartPoint* point;
};

std::vector<Place> PlacesOf(const Plot& plot, const Series& series, double shift) {
  std::vector<Place> places;
  for (const ChartPoint& point : series.points) {
    if (!CanBeAt(plot.chart.x, point.x) || !CanBeAt(plot.chart.y, point.y)) continue;
    Place place = {plot.x.At(point.x) + shift, plot.y.At(point.y), std::nullopt, &point};
    if (point.interval && !std::isnan(point.interval->low) && !std::isnan(point.interval->high)) {
      const double low = std::clamp(point.interval->low, plot.y.least(), plot.y.most());
      const double high = std::clamp(point.interval->high, plot.y.least(), plot.y.most());
      place.interval = Interval{plot.y.At(low), plot.y.At(high)};
    }
    places.push_back(place);
  }
  return places;
}

// `index` among the drawn series: on curves each has its marks elsewhere, so that lines that run together stay apart.
void DrawSeries(Plot& plot, const Series& series, size_t index, double shift) {
  const std::vector<Place> places = PlacesOf(plot, series, shift);
  const std::string classes = StyleClasses(series.style);
  if (series.joined && places.size() > 1) {
    std::string path;
    for (const Place& place : places) {
      path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", place.x, place.y);
    }
    plot.svg += fmt::format("<path class=\"line {}\" d=\"{}\"/>\n", classes, path);
  }
  for (const Place& place : places) {
    if (!place.interval || std::abs(place.interval->low - place.interval->high) < 0.5) continue;
    plot.svg +=
        fmt::format("<path class=\"error {0}\" d=\"M{1:.1f} {2:.1f}V{3:.1f}M{4:.1f} {2:.1f}h6M{4:.1f} {3:.1f}h6\"/>\n",
                    classes, place.x, place.interval->low, place.interval->high, place.x - 3);
  }
  const size_t stride = series.joined && places.size() > kMaxMarks ? places.size() / (kMaxMarks / 2) : 1;
  for (size_t i = 0; i < places.size(); ++i) {
    const Place& place = places[i];
    const std::string& note = place.point->note.empty() ? series.name : place.point->note;
    plot.svg += fmt::format("<g><title>{}</title>", EscapeXml(note));
    if (i % stride == (stride / 2 + index) % stride) {
      plot.svg += fmt::format("<path class=\"mark {}\" d=\"{}\"/>", classes,
                              MarkPath(series.style.shape, place.x, place.y, kMarkRadius));
    }
    plot.svg += fmt::format("<circle class=\"hit\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.0f}\"/></g>\n", place.x, place.y,
                            kHitRadius);
  }
}

}  // namespace

std::string RenderXyChart(const XyChart& chart) {
  Plot plot = LayOut(chart);
  DrawAxes(plot);
  std::vector<const Series*> drawn;
  bool has_intervals = false;
  for (const Series& series : chart.series) {
    const bool is_drawn = std::any_of(series.points.begin(), series.points.end(), [&](const ChartPoint& point) {
      return CanBeAt(chart.x, point.x) && CanBeAt(chart.y, point.y);
    });
    if (!is_drawn) continue;
    drawn.push_back(&series);
    for (const ChartPoint& point : series.points) has_intervals = has_intervals || (series.joined && point.interval);
  }
  if (drawn.empty()) {
    plot.svg += SvgText((plot.left + plot.right) / 2, (kTop + plot.bottom()) / 2,
                        "class=\"empty\" text-anchor=\"middle\"", "no data yet");
  }
  // Lines share their x values: side by side, their intervals can be told apart.
  const double step =
      has_intervals && drawn.size() > 1 ? std::min(4.0, 20.0 / static_cast<double>(drawn.size() - 1)) : 0;
  std::vector<LegendEntry> legend;
  for (size_t i = 0; i < drawn.size(); ++i) {
    const double shift = (static_cast<double>(i) - static_cast<double>(drawn.size() - 1) / 2) * step;
    DrawSeries(plot, *drawn[i], i, shift);
    legend.push_back({drawn[i]->name, drawn[i]->style, drawn[i]->joined});
  }
  const std::string description = fmt::format("{} against {}, {} series", chart.y.title, chart.x.title, drawn.size());
  return Figure(chart.title, description, kWidth, kHeight, plot.svg, Legend(legend));
}

}  // namespace headwise
