// Charts as SVG inside HTML figures: pure functions of data, styled by the page (report/html.h), so that they follow
// its light and dark themes. They scale with their box, say what they show to a screen reader, and show every value to
// a pointer. What cannot be drawn (no points, values that are not finite, zero on a logarithmic axis) is left out.
#ifndef HEADWISE_REPORT_CHARTS_H_
#define HEADWISE_REPORT_CHARTS_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "eval/statistics.h"
#include "report/chart_scale.h"
#include "report/plan_styles.h"

namespace headwise {

struct Axis {
  std::string title;  // with its unit
  ScaleKind kind = ScaleKind::kLinear;
  std::vector<double> ticks;  // empty: chosen from the values
  // The axis reaches at least so far.
  std::optional<double> least;
  std::optional<double> most;
  std::function<std::string(double)> format;  // of tick labels; none: as few digits as tell ticks apart
};

struct ChartPoint {
  double x = 0;
  double y = 0;
  std::optional<Interval> interval = {};  // of y
  std::string note = {};                  // shown to a pointer
};

struct Series {
  std::string name;
  SeriesStyle style;
  std::vector<ChartPoint> points;
  bool joined = true;
};

struct XyChart {
  std::string title;
  Axis x;
  Axis y;
  std::vector<Series> series;
  // A level to compare with, drawn across the chart.
  std::optional<double> reference;
};
std::string RenderXyChart(const XyChart& chart);

// Rows and columns of values as shades: darker is better.
struct HeatMap {
  std::string title;
  std::string row_title;
  std::string column_title;
  std::vector<std::string> rows;
  std::vector<std::string> columns = {};
  std::vector<std::optional<double>> values = {};  // [rows, columns]; none: no data
  // The shades' ends: `worst` is empty, `best` is full. worst > best where lower values are better.
  double worst = 0;
  double best = 1;
  std::function<std::string(double)> format = {};
};
std::string RenderHeatMap(const HeatMap& map);

// Lying bars from zero, one a row, each with its value.
struct BarChart {
  struct Bar {
    std::string name;
    SeriesStyle style;
    double value = 0;
    std::string label;
  };
  std::string title;
  std::string axis_title;
  std::vector<Bar> bars;
  std::optional<double> reference;
};
std::string RenderBarChart(const BarChart& chart);

}  // namespace headwise

#endif  // HEADWISE_REPORT_CHARTS_H_
