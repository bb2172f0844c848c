// What all charts are drawn from.
#ifndef HEADWISE_REPORT_CHART_PARTS_H_
#define HEADWISE_REPORT_CHART_PARTS_H_

#include <string>
#include <string_view>
#include <vector>

#include "report/plan_styles.h"

namespace headwise {

// Width of a text at the charts' letter size, a little too wide rather than too narrow: the page's fonts are unknown
// here.
double TextWidth(std::string_view text);

// `text` cut in the middle to at most `max_characters`: file names differ at either end.
std::string Shortened(const std::string& text, size_t max_characters);

// "c3 v0 d1": classes of the page's style for a series' colour, shade and dashes.
std::string StyleClasses(const SeriesStyle& style);

// The outline of a series' mark around (x, y).
std::string MarkPath(int shape, double x, double y, double radius);

// <text> with escaped content. `attributes` as they stand in the tag: "class=\"tick\"".
std::string SvgText(double x, double y, std::string_view attributes, std::string_view text);

// A title and an <svg> of this size around `body`, and `below` under it.
std::string Figure(const std::string& title, const std::string& description, double width, double height,
                   const std::string& body, const std::string& below);

struct LegendEntry {
  std::string name;
  SeriesStyle style;
  bool has_line = true;
};
// Outside the drawing, so that it wraps in any width and nothing is cut off; empty for fewer than two entries.
std::string Legend(const std::vector<LegendEntry>& entries);

}  // namespace headwise

#endif  // HEADWISE_REPORT_CHART_PARTS_H_
