#include "report/chart_parts.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <numbers>

#include "text/escape.h"

namespace headwise {
namespace {

struct Offset {
  double x;
  double y;
};

std::string Polygon(double x, double y, double radius, const std::vector<Offset>& corners) {
  std::string path;
  for (const Offset& corner : corners) {
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x + corner.x * radius, y + corner.y * radius);
  }
  return path + "Z";
}

// A cross with arms of half the width of its box, turned by `angle`.
std::vector<Offset> CrossCorners(double angle) {
  constexpr double kArm = 0.36;
  constexpr double kReach = 1.15;
  static constexpr std::array<Offset, 12> kUpright = {{{-kArm, -kReach},
                                                       {kArm, -kReach},
                                                       {kArm, -kArm},
                                                       {kReach, -kArm},
                                                       {kReach, kArm},
                                                       {kArm, kArm},
                                                       {kArm, kReach},
                                                       {-kArm, kReach},
                                                       {-kArm, kArm},
                                                       {-kReach, kArm},
                                                       {-kReach, -kArm},
                                                       {-kArm, -kArm}}};
  std::vector<Offset> corners;
  for (const Offset& corner : kUpright) {
    corners.push_back({corner.x * std::cos(angle) - corner.y * std::sin(angle),
                       corner.x * std::sin(angle) + corner.y * std::cos(angle)});
  }
  return corners;
}

}  // namespace

double TextWidth(std::string_view text) {
  constexpr double kCharacterWidth = 7.6;
  size_t num_characters = 0;
  for (const char c : text) num_characters += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return kCharacterWidth * static_cast<double>(num_characters);
}

std::string Shortened(const std::string& text, size_t max_characters) {
  std::vector<size_t> starts;  // of characters
  for (size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) starts.push_back(i);
  }
  if (starts.size() <= max_characters) return text;
  const size_t front = max_characters / 2;
  const size_t back = max_characters - front - 1;
  return text.substr(0, starts[front]) + "…" + text.substr(starts[starts.size() - back]);
}

std::string StyleClasses(const SeriesStyle& style) {
  return fmt::format("c{} v{} d{}", style.colour, style.shade, style.dash);
}

std::string MarkPath(int shape, double x, double y, double radius) {
  constexpr double kSquare = 0.88;
  switch (shape % SeriesStyle::kNumShapes) {
    case 1:
      return Polygon(x, y, radius,
                     {{-kSquare, -kSquare}, {kSquare, -kSquare}, {kSquare, kSquare}, {-kSquare, kSquare}});
    case 2:
      return Polygon(x, y, radius, {{0, -1.2}, {1.1, 0.8}, {-1.1, 0.8}});
    case 3:
      return Polygon(x, y, radius, {{0, -1.25}, {1.25, 0}, {0, 1.25}, {-1.25, 0}});
    case 4:
      return Polygon(x, y, radius, {{0, 1.2}, {1.1, -0.8}, {-1.1, -0.8}});
    case 5:
      return Polygon(x, y, radius, CrossCorners(0));
    case 6:
      return Polygon(x, y, radius, CrossCorners(std::numbers::pi / 4));
    case 7:
      return Polygon(x, y, radius, {{-1.2, 0}, {-0.6, -1.05}, {0.6, -1.05}, {1.2, 0}, {0.6, 1.05}, {-0.6, 1.05}});
    default:
      return fmt::format("M{0:.1f} {1:.1f}a{2:.1f} {2:.1f} 0 1 0 {3:.1f} 0a{2:.1f} {2:.1f} 0 1 0 -{3:.1f} 0Z",
                         x - radius, y, radius, 2 * radius);
  }
}

std::string SvgText(double x, double y, std::string_view attributes, std::string_view text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", x, y, attributes, EscapeXml(text));
}

std::string Figure(const std::string& title, const std::string& description, double width, double height,
                   const std::string& body, const std::string& below) {
  std::string html = "<figure class=\"chart\">";
  if (!title.empty()) html += fmt::format("<figcaption>{}</figcaption>", EscapeXml(title));
  html += fmt::format("\n<svg viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"{}\">\n{}</svg>\n", width, height,
                      EscapeXml(title.empty() ? description : title + ": " + description), body);
  return html + below + "</figure>\n";
}

std::string Legend(const std::vector<LegendEntry>& entries) {
  if (entries.size() < 2) return "";
  std::string html = "<ul class=\"legend\">";
  for (const LegendEntry& entry : entries) {
    html += "<li><svg viewBox=\"0 0 28 12\" aria-hidden=\"true\">";
    if (entry.has_line) html += fmt::format("<path class=\"line {}\" d=\"M1 6H27\"/>", StyleClasses(entry.style));
    html += fmt::format("<path class=\"mark {}\" d=\"{}\"/></svg>{}</li>", StyleClasses(entry.style),
                        MarkPath(entry.style.shape, 14, 6, 4.2), EscapeXml(entry.name));
  }
  return html + "</ul>\n";
}

}  // namespace headwise
