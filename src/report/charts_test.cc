#include "report/charts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <regex>

#include "report/chart_parts.h"
#include "report/metric_format.h"

namespace headwise {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

struct Place {
  double x;
  double y;
};

// Centres of the areas that react to a pointer, in drawing order.
std::vector<Place> PlacesIn(const std::string& svg) {
  static const std::regex kHit("class=\"hit\" cx=\"([-0-9.]+)\" cy=\"([-0-9.]+)\"");
  std::vector<Place> places;
  for (std::sregex_iterator match(svg.begin(), svg.end(), kHit), end; match != end; ++match) {
    places.push_back({std::stod((*match)[1]), std::stod((*match)[2])});
  }
  return places;
}

size_t Count(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

XyChart OneLine(std::vector<ChartPoint> points) {
  XyChart chart;
  chart.title = "A chart";
  chart.x.title = "length";
  chart.y.title = "quality";
  chart.series.push_back({.name = "duo", .style = {.colour = 1, .shape = 1, .dash = 0}, .points = std::move(points)});
  return chart;
}

TEST(LinearTicks, AreRoundAndInside) {
  EXPECT_THAT(LinearTicks(0, 100, 5), ElementsAre(0, 20, 40, 60, 80, 100));
  EXPECT_THAT(LinearTicks(-0.26, 0.26, 5), ElementsAre(DoubleNear(-0.2, 1e-12), 0, DoubleNear(0.2, 1e-12)));
  EXPECT_THAT(LinearTicks(2.31, 2.39, 4), ElementsAre(DoubleNear(2.32, 1e-9), DoubleNear(2.34, 1e-9),
                                                      DoubleNear(2.36, 1e-9), DoubleNear(2.38, 1e-9)));
}

TEST(LogTicks, TakeDecadesAndWhatFitsBetween) {
  EXPECT_THAT(LogTicks(1, 100, 6), ElementsAre(1, 2, 5, 10, 20, 50, 100));
  EXPECT_THAT(LogTicks(1e3, 1e8, 6), ElementsAre(1e3, 1e4, 1e5, 1e6, 1e7, 1e8));
  EXPECT_THAT(LogTicks(1e-12, 1e12, 6).size(), testing::Le(7u));
  EXPECT_THAT(LogTicks(60, 260, 6), ElementsAre(70, 100, 150, 200));
  EXPECT_THAT(LogTicks(5.1, 6.9, 4), ElementsAre(5.5, 6, 6.5));  // too short for round values: linear
}

TEST(Scale, MapsEndsToEnds) {
  const Scale linear(ScaleKind::kLinear, 10, 20, 100, 0);
  EXPECT_DOUBLE_EQ(linear.At(10), 100);
  EXPECT_DOUBLE_EQ(linear.At(15), 50);
  const Scale log(ScaleKind::kLog, 1, 100, 0, 10);
  EXPECT_DOUBLE_EQ(log.At(10), 5);
  EXPECT_DOUBLE_EQ(log.At(100), 10);
}

TEST(XyChart, PutsPointsInProportion) {
  const std::vector<Place> places =
      PlacesIn(RenderXyChart(OneLine({{.x = 0, .y = 0}, {.x = 1, .y = 10}, {.x = 4, .y = 20}})));
  ASSERT_EQ(places.size(), 3u);
  EXPECT_NEAR((places[1].x - places[0].x) * 4, places[2].x - places[0].x, 0.5);
  EXPECT_NEAR((places[0].y - places[1].y) * 2, places[0].y - places[2].y, 0.3);
  EXPECT_GT(places[0].y, places[2].y);  // more is higher up
}

TEST(XyChart, LogAxesMapRatiosToDistances) {
  XyChart chart = OneLine({{.x = 1024, .y = 1}, {.x = 2048, .y = 10}, {.x = 8192, .y = 1000}});
  chart.x.kind = ScaleKind::kLog;
  chart.y.kind = ScaleKind::kLog;
  chart.x.ticks = {1024, 2048, 8192};
  chart.x.format = [](double tokens) { return FormatLength(std::llround(tokens)); };
  const std::string svg = RenderXyChart(chart);
  const std::vector<Place> places = PlacesIn(svg);
  ASSERT_EQ(places.size(), 3u);
  EXPECT_NEAR((places[1].x - places[0].x) * 2, places[2].x - places[1].x, 0.3);
  EXPECT_NEAR((places[0].y - places[1].y) * 2, places[1].y - places[2].y, 0.3);
  for (const char* label : {">1K<", ">2K<", ">8K<"}) EXPECT_THAT(svg, HasSubstr(label));
}

TEST(XyChart, LeavesOutWhatHasNoPlace) {
  XyChart chart = OneLine({{.x = 0, .y = 1},
                           {.x = 10, .y = std::numeric_limits<double>::quiet_NaN()},
                           {.x = 100, .y = 5, .interval = Interval{std::nan(""), 6}}});
  chart.x.kind = ScaleKind::kLog;
  const std::string svg = RenderXyChart(chart);
  EXPECT_EQ(PlacesIn(svg).size(), 1u);
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
}

TEST(XyChart, ExtremesDoNotBreakTheAxes) {
  XyChart chart = OneLine({{.x = 1, .y = 1e308},
                           {.x = 2, .y = -1e308},
                           {.x = 3, .y = 1e99},
                           {.x = 4, .y = -1e99},
                           {.x = 5, .y = 0, .interval = Interval{-1e308, std::numeric_limits<double>::infinity()}}});
  const std::string svg = RenderXyChart(chart);
  EXPECT_EQ(PlacesIn(svg).size(), 3u);
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
  EXPECT_LT(svg.size(), 20000u);
}

TEST(XyChart, WithoutPointsSaysSo) {
  const std::string empty = RenderXyChart(OneLine({}));
  EXPECT_THAT(empty, HasSubstr("no data yet"));
  EXPECT_THAT(RenderXyChart({}), HasSubstr("no data yet"));
  EXPECT_THAT(empty, Not(HasSubstr("nan")));
}

TEST(XyChart, OnePointStandsInTheMiddle) {
  const std::vector<Place> places = PlacesIn(RenderXyChart(OneLine({{.x = 7, .y = 7}})));
  ASSERT_EQ(places.size(), 1u);
  EXPECT_NEAR(places[0].x, 230, 40);
  EXPECT_NEAR(places[0].y, 142, 40);
}

TEST(XyChart, EqualValuesDoNotCollapseTheAxis) {
  const double big = 1e15;
  const std::string svg = RenderXyChart(OneLine({{.x = 1, .y = big}, {.x = 2, .y = big + 0.125}}));
  EXPECT_EQ(PlacesIn(svg).size(), 2u);
}

TEST(XyChart, DrawsIntervalsAndKeepsThemApart) {
  XyChart chart = OneLine({{.x = 1, .y = 50, .interval = Interval{40, 60}}});
  chart.series.push_back(chart.series.front());
  chart.series.back().name = "razor";
  const std::string svg = RenderXyChart(chart);
  EXPECT_EQ(Count(svg, "class=\"error"), 2u);
  const std::vector<Place> places = PlacesIn(svg);
  ASSERT_EQ(places.size(), 2u);
  EXPECT_GT(places[1].x - places[0].x, 2);
  EXPECT_EQ(Count(svg, "<li>"), 2u);  // the legend
}

TEST(XyChart, EscapesEveryText) {
  XyChart chart = OneLine({{.x = 1, .y = 1, .note = "<note> & \"more\""}});
  chart.title = "<script>alert(1)</script>";
  chart.x.title = "a < b";
  chart.series.push_back({.name = "</svg>", .style = {}, .points = {{.x = 1, .y = 1}}});
  const std::string svg = RenderXyChart(chart);
  EXPECT_THAT(svg, Not(HasSubstr("<script>")));
  EXPECT_THAT(svg, Not(HasSubstr("<note>")));
  EXPECT_THAT(svg, HasSubstr("&lt;note&gt; &amp; &quot;more&quot;"));
  EXPECT_THAT(svg, HasSubstr("&lt;/svg&gt;"));
  EXPECT_THAT(svg, HasSubstr("role=\"img\" aria-label=\"&lt;script&gt;"));
}

TEST(HeatMap, ShadesByTheBetterEnd) {
  HeatMap map = {.title = "duo", .row_title = "depth", .column_title = "length", .rows = {"0 %", "100 %"}};
  map.columns = {"4K", "8K"};
  map.values = {1.0, 0.5, std::nullopt, 0.0};
  std::string svg = RenderHeatMap(map);
  EXPECT_THAT(svg, HasSubstr("depth 0 %, length 4K: 1"));
  EXPECT_THAT(svg, HasSubstr("depth 100 %, length 4K: –"));
  EXPECT_EQ(Count(svg, "class=\"ground\""), 4u);
  EXPECT_THAT(svg, HasSubstr("fill-opacity=\"1.000\""));
  EXPECT_THAT(svg, HasSubstr("fill-opacity=\"0.500\""));
  EXPECT_EQ(Count(svg, "class=\"heat\""), 2u);  // nothing on the worst and the unknown
  map.worst = 4;
  map.best = 2;  // lower is better
  map.values = {2.0, 4.0, 3.0, 2.0};
  svg = RenderHeatMap(map);
  EXPECT_EQ(Count(svg, "fill-opacity=\"1.000\""), 2u);
  EXPECT_EQ(Count(svg, "class=\"heat\""), 3u);
}

TEST(HeatMap, OfNothingAndOfOneValueIsSafe) {
  EXPECT_THAT(RenderHeatMap({}), Not(HasSubstr("nan")));
  HeatMap map = {.title = "", .row_title = "r", .column_title = "c", .rows = {"a"}, .columns = {"b"}, .values = {0.3}};
  map.worst = map.best = 0.3;
  EXPECT_THAT(RenderHeatMap(map), Not(HasSubstr("nan")));
}

TEST(BarChart, BarsAreInProportion) {
  BarChart chart = {.title = "t", .axis_title = "times", .bars = {}, .reference = 1.0};
  chart.bars.push_back({.name = "duo", .style = {}, .value = 2, .label = "×2"});
  chart.bars.push_back({.name = "<b>", .style = {}, .value = 4, .label = "×4"});
  chart.bars.push_back({.name = "none", .style = {}, .value = std::nan(""), .label = "–"});
  const std::string svg = RenderBarChart(chart);
  static const std::regex kWidth("class=\"bar [^>]* width=\"([0-9.]+)\"");
  std::vector<double> widths;
  for (std::sregex_iterator match(svg.begin(), svg.end(), kWidth), end; match != end; ++match) {
    widths.push_back(std::stod((*match)[1]));
  }
  ASSERT_EQ(widths.size(), 3u);
  EXPECT_NEAR(widths[1], 2 * widths[0], 0.2);
  EXPECT_EQ(widths[2], 0);
  EXPECT_THAT(svg, Not(HasSubstr("<b>")));
}

TEST(Shortened, CutsBetweenCharacters) {
  EXPECT_EQ(Shortened("short", 10), "short");
  EXPECT_EQ(Shortened("abcdefghij", 5), "ab…ij");
  EXPECT_EQ(Shortened("日本語日本語", 3), "日…語");
}

TEST(PlanStyles, MethodsKeepTheirColours) {
  const PlanInfo full = {.name = "full", .method = "full", .kv_ratio = {}, .files = {}};
  const PlanInfo duo = {.name = "duo@0.5", .method = "duo", .kv_ratio = 0.5, .files = {}};
  const PlanInfo duo_small = {.name = "duo@0.25", .method = "duo", .kv_ratio = 0.25, .files = {}};
  const PlanInfo other = {.name = "mine", .method = "mine", .kv_ratio = {}, .files = {}};
  const PlanStyles all({full, other, duo, duo_small});
  const PlanStyles some({duo});
  EXPECT_EQ(all.Of(duo).colour, some.Of(duo).colour);
  EXPECT_EQ(all.Of(duo).colour, all.Of(duo_small).colour);
  EXPECT_EQ(all.Of(duo).shape, all.Of(duo_small).shape);
  EXPECT_NE(all.Of(duo).dash, all.Of(duo_small).dash);
  EXPECT_NE(all.Of(other).colour, all.Of(full).colour);
  EXPECT_NE(all.Of(other).colour, all.Of(duo).colour);
  const PlanInfo second = {.name = "second", .method = "duo", .kv_ratio = {}, .files = {}};
  const PlanStyles variants({duo, second});
  EXPECT_EQ(variants.Of(duo).shade, 0);
  EXPECT_NE(variants.Of(second).shade, 0);
  EXPECT_EQ(variants.Of(second).colour, variants.Of(duo).colour);
  EXPECT_NE(variants.Of(second).shape, variants.Of(duo).shape);
  EXPECT_EQ(PlanFamily(duo), "duo");
  EXPECT_EQ(PlanFamily(other), "mine");
}

}  // namespace
}  // namespace headwise
