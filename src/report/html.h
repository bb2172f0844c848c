// HTML pages that need nothing but themselves: no script, no font, no address of anything else.
#ifndef HEADWISE_REPORT_HTML_H_
#define HEADWISE_REPORT_HTML_H_

#include <string>
#include <string_view>
#include <vector>

namespace headwise {

// In every function: `html` is put in as it stands, `text` is escaped.

std::string Paragraph(std::string_view text);
std::string Heading(int level, std::string_view text);
// Folded until a reader opens it.
std::string Details(std::string_view summary_text, std::string_view html);
// Figures side by side where there is room. Empty for empty `html`.
std::string Grid(std::string_view html);
// The same with figures half as wide.
std::string SmallGrid(std::string_view html);
// Key and value pairs, values in the order given.
std::string Facts(const std::vector<std::pair<std::string, std::string>>& facts);

// One cell: `text` large and `small` under it; `title` is shown to a pointer. All are escaped.
struct TableCell {
  std::string text;
  std::string small = {};
  std::string title = {};
  std::string css_class = {};
};

// A table in a box of its own, which scrolls where the page is too narrow. The first column holds row names.
class HtmlTable {
 public:
  // Columns whose titles are `numbers` stand to the right, the first one to the left.
  explicit HtmlTable(std::vector<std::string> titles) : titles_(std::move(titles)) {}

  // A line across the table that heads the rows below it.
  void AddGroup(std::string_view text);
  // As many cells as titles. `css_class` may be empty.
  void AddRow(const std::vector<TableCell>& cells, std::string_view css_class = "");
  std::string Html() const;

 private:
  std::vector<std::string> titles_;
  std::string rows_;
};

struct PageSection {
  std::string id;     // letters, digits and '-'
  std::string title;  // text
  std::string html;
};

// The whole file. `lead_html` stands under the title, before the contents.
std::string Page(std::string_view title, std::string_view lead_html, const std::vector<PageSection>& sections);

}  // namespace headwise

#endif  // HEADWISE_REPORT_HTML_H_
