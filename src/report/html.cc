#include "report/html.h"

#include <fmt/format.h>

#include "base/check.h"
#include "kv/plan_svg.h"
#include "report/page_style.h"
#include "text/escape.h"

namespace headwise {
namespace {

std::string Attribute(std::string_view name, std::string_view value) {
  return value.empty() ? "" : fmt::format(" {}=\"{}\"", name, EscapeXml(value));
}

std::string InGrid(std::string_view css_class, std::string_view html) {
  return html.empty() ? "" : fmt::format("<div class=\"{}\">\n{}</div>\n", css_class, html);
}

}  // namespace

std::string Paragraph(std::string_view text) {
  return fmt::format("<p>{}</p>\n", EscapeXml(text));
}

std::string Heading(int level, std::string_view text) {
  return fmt::format("<h{0}>{1}</h{0}>\n", level, EscapeXml(text));
}

std::string Details(std::string_view summary_text, std::string_view html) {
  return fmt::format("<details><summary>{}</summary>\n{}</details>\n", EscapeXml(summary_text), html);
}

std::string Grid(std::string_view html) {
  return InGrid("grid", html);
}

std::string SmallGrid(std::string_view html) {
  return InGrid("grid small", html);
}

std::string Facts(const std::vector<std::pair<std::string, std::string>>& facts) {
  std::string html = "<dl class=\"facts\">\n";
  for (const auto& [key, value] : facts) {
    html += fmt::format("<dt>{}</dt><dd>{}</dd>\n", EscapeXml(key), EscapeXml(value));
  }
  return html + "</dl>\n";
}

void HtmlTable::AddGroup(std::string_view text) {
  rows_ += fmt::format("<tr class=\"group\"><th colspan=\"{}\" scope=\"colgroup\"><span>{}</span></th></tr>\n",
                       titles_.size(), EscapeXml(text));
}

void HtmlTable::AddRow(const std::vector<TableCell>& cells, std::string_view css_class) {
  HW_CHECK(cells.size() == titles_.size(), "{} cells under {} titles", cells.size(), titles_.size());
  rows_ += fmt::format("<tr{}>", Attribute("class", css_class));
  for (size_t i = 0; i < cells.size(); ++i) {
    const TableCell& cell = cells[i];
    const std::string_view tag = i == 0 ? "th" : "td";
    rows_ += fmt::format("<{}{}{}{}>{}", tag, i == 0 ? " scope=\"row\"" : "", Attribute("class", cell.css_class),
                         Attribute("title", cell.title), EscapeXml(cell.text));
    if (!cell.small.empty()) rows_ += fmt::format("<small>{}</small>", EscapeXml(cell.small));
    rows_ += fmt::format("</{}>", tag);
  }
  rows_ += "</tr>\n";
}

std::string HtmlTable::Html() const {
  std::string html = "<div class=\"scroll\" role=\"region\" aria-label=\"Table\" tabindex=\"0\"><table>\n<thead><tr>";
  for (const std::string& title : titles_) html += fmt::format("<th scope=\"col\">{}</th>", EscapeXml(title));
  return html + "</tr></thead>\n<tbody>\n" + rows_ + "</tbody></table></div>\n";
}

std::string Page(std::string_view title, std::string_view lead_html, const std::vector<PageSection>& sections) {
  std::string html = "<!DOCTYPE html>\n<html lang=\"en-GB\">\n<head>\n<meta charset=\"utf-8\">\n";
  html += "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n";
  html += "<meta name=\"color-scheme\" content=\"light dark\">\n";
  html += fmt::format("<title>{}</title>\n<style>\n{}{}\n</style>\n</head>\n<body>\n", EscapeXml(title), PageStyle(),
                      PlanSvgStyle());
  html += "<nav aria-label=\"Contents\"><p>Contents</p>\n<ol>\n";
  for (const PageSection& section : sections) {
    html += fmt::format("<li><a href=\"#{}\">{}</a></li>\n", section.id, EscapeXml(section.title));
  }
  html += fmt::format("</ol></nav>\n<main>\n<header><h1>{}</h1>\n{}</header>\n", EscapeXml(title), lead_html);
  for (const PageSection& section : sections) {
    html += fmt::format("<section id=\"{}\">\n<h2>{}</h2>\n{}</section>\n", section.id, EscapeXml(section.title),
                        section.html);
  }
  return html + "</main>\n</body>\n</html>\n";
}

}  // namespace headwise
