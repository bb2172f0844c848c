// RenderHeatMap and RenderBarChart.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/chart_parts.h"
#include "report/charts.h"
#include "report/metric_format.h"
#include "text/escape.h"

namespace headwise {
namespace {

constexpr double kMapWidth = 260;
constexpr double kCellHeight = 26;
constexpr double kMapTop = 8;
constexpr double kMapBottom = 40;
// From this share on a cell is so dark that its text changes colour.
constexpr double kDark = 0.55;

std::string TextOf(const HeatMap& map, double value) {
  return map.format ? map.format(value) : FormatNumber(value, 3);
}

double ShadeOf(const HeatMap& map, double value) {
  if (map.best == map.worst) return 1;
  return std::clamp((value - map.worst) / (map.best - map.worst), 0.0, 1.0);
}

std::string HeatCell(const HeatMap& map, size_t row, size_t column, double left, double width) {
  const double x = left + width * static_cast<double>(column);
  const double y = kMapTop + kCellHeight * static_cast<double>(row);
  const std::optional<double>& value = map.values[row * map.columns.size() + column];
  const bool has_value = value && std::isfinite(*value);
  const std::string text = has_value ? TextOf(map, *value) : kDash;
  std::string svg =
      fmt::format("<g><title>{}</title>", EscapeXml(fmt::format("{} {}, {} {}: {}", map.row_title, map.rows[row],
                                                                map.column_title, map.columns[column], text)));
  const std::string box = fmt::format("x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" rx=\"2\"", x + 1,
                                      y + 1, std::max(1.0, width - 2), kCellHeight - 2);
  svg += fmt::format("<rect class=\"ground\" {}/>", box);
  const double shade = has_value ? ShadeOf(map, *value) : 0;
  if (shade > 0) svg += fmt::format("<rect class=\"heat\" fill-opacity=\"{:.3f}\" {}/>", shade, box);
  if (TextWidth(text) <= width) {
    svg += SvgText(
        x + width / 2, y + kCellHeight / 2 + 4,
        shade > kDark ? "class=\"value dark\" text-anchor=\"middle\"" : "class=\"value\" text-anchor=\"middle\"", text);
  }
  return svg + "</g>\n";
}

}  // namespace

std::string RenderHeatMap(const HeatMap& map) {
  double left = 24;
  for (const std::string& row : map.rows) left = std::max(left, TextWidth(row) + 26);
  const double right = kMapWidth - 6;
  const double width = (right - left) / static_cast<double>(std::max<size_t>(1, map.columns.size()));
  const double bottom = kMapTop + kCellHeight * static_cast<double>(map.rows.size());
  std::string svg;
  for (size_t row = 0; row < map.rows.size(); ++row) {
    svg += SvgText(left - 6, kMapTop + kCellHeight * (static_cast<double>(row) + 0.5) + 4,
                   "class=\"tick\" text-anchor=\"end\"", map.rows[row]);
    for (size_t column = 0; column < map.columns.size(); ++column) svg += HeatCell(map, row, column, left, width);
  }
  double free_from = 0;
  for (size_t column = 0; column < map.columns.size(); ++column) {
    const double x = left + width * (static_cast<double>(column) + 0.5);
    const double half = TextWidth(map.columns[column]) / 2;
    if (x - half < free_from) continue;
    free_from = x + half + 4;
    svg += SvgText(x, bottom + 16, "class=\"tick\" text-anchor=\"middle\"", map.columns[column]);
  }
  svg += SvgText((left + right) / 2, bottom + 34, "class=\"axis-title\" text-anchor=\"middle\"", map.column_title);
  svg += fmt::format(
      "<text transform=\"translate(12 {:.1f}) rotate(-90)\" class=\"axis-title\" text-anchor=\"middle\">"
      "{}</text>\n",
      (kMapTop + bottom) / 2, EscapeXml(map.row_title));
  const std::string description =
      fmt::format("{} by {}, {} x {} values", map.row_title, map.column_title, map.rows.size(), map.columns.size());
  return Figure(map.title, description, kMapWidth, bottom + kMapBottom, svg, "");
}

std::string RenderBarChart(const BarChart& chart) {
  constexpr double kWidth = 440;
  constexpr double kRow = 24;
  constexpr double kTop = 6;
  constexpr size_t kMaxName = 22;
  double left = 40;
  double room = 0;  // for the values at the bars' ends
  double most = chart.reference.value_or(0);
  for (const BarChart::Bar& bar : chart.bars) {
    left = std::max(left, TextWidth(Shortened(bar.name, kMaxName)) + 10);
    room = std::max(room, TextWidth(bar.label) + 10);
    if (std::isfinite(bar.value)) most = std::max(most, bar.value);
  }
  const Scale scale(ScaleKind::kLinear, 0, most > 0 ? most : 1, left, kWidth - room);
  std::string svg;
  double y = kTop;
  for (const BarChart::Bar& bar : chart.bars) {
    const double end = std::isfinite(bar.value) ? scale.At(std::max(0.0, bar.value)) : left;
    svg += fmt::format("<g><title>{}</title>", EscapeXml(bar.name + ": " + bar.label));
    svg += SvgText(left - 7, y + 16, "class=\"tick\" text-anchor=\"end\"", Shortened(bar.name, kMaxName));
    svg += fmt::format("<rect class=\"bar {}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" rx=\"2\"/>",
                       StyleClasses(bar.style), left, y + 3, end - left, kRow - 6);
    svg += SvgText(end + 6, y + 16, "class=\"value\"", bar.label) + "</g>\n";
    y += kRow;
  }
  svg += fmt::format("<path class=\"axis\" d=\"M{0:.1f} {1:.1f}V{2:.1f}\"/>\n", left, kTop, y);
  if (chart.reference) {
    svg += fmt::format("<path class=\"reference\" d=\"M{0:.1f} {1:.1f}V{2:.1f}\"/>\n", scale.At(*chart.reference), kTop,
                       y);
  }
  svg += SvgText((left + kWidth) / 2, y + 18, "class=\"axis-title\" text-anchor=\"middle\"", chart.axis_title);
  return Figure(chart.title, fmt::format("{}, {} bars", chart.axis_title, chart.bars.size()), kWidth, y + 26, svg, "");
}

}  // namespace headwise
