#include "kv/plan_svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kv/plan_bytes.h"
#include "kv/plan_view.h"
#include "text/escape.h"

namespace headwise {
namespace {

constexpr int kLeft = 72;
constexpr int kBottom = 94;
// A text length at which the kept shares of plans without scores are compared.
constexpr int64_t kShareTokens = 32768;

struct Scale {
  std::vector<double> values;  // one per head
  double least = 0;
  double most = 1;
  std::string title;

  double Share(size_t head) const { return most > least ? (values[head] - least) / (most - least) : 1.0; }
};

Scale ScaleOf(const HeadPlan& plan) {
  Scale scale;
  if (!plan.scores.empty()) {
    scale.values = plan.scores;
    scale.title = "score";
    scale.least = *std::min_element(plan.scores.begin(), plan.scores.end());
    scale.most = *std::max_element(plan.scores.begin(), plan.scores.end());
    return scale;
  }
  const auto dense = static_cast<double>(RuleBytesAt(HeadRule::Full(), plan.shape, kShareTokens, kNoLimit));
  for (const HeadRule& rule : plan.rules) {
    scale.values.push_back(static_cast<double>(RuleBytesAt(rule, plan.shape, kShareTokens, kNoLimit)) / dense);
  }
  scale.title = fmt::format("share of a full head's KV bytes at {} tokens", kShareTokens);
  scale.least = 0;
  return scale;
}

// Wide enough to point at, narrow enough for 80 layers.
int CellSize(const HeadPlan& plan) {
  return std::clamp<int>(static_cast<int>(960 / std::max(plan.shape.num_layers, plan.shape.num_kv_heads)), 10, 36);
}

}  // namespace

std::string_view PlanSvgStyle() {
  return ".head-plan text{font:12px system-ui,sans-serif;fill:#1f2430}"
         ".head-plan .title{font-size:15px;font-weight:600}"
         ".head-plan .cell{fill:#1f6feb}"
         ".head-plan .ground{fill:#8b949e;fill-opacity:.15}"
         ".head-plan .full{fill:none;stroke:#d1242f;stroke-width:2}"
         "@media (prefers-color-scheme:dark){.head-plan text{fill:#e6edf3}"
         ".head-plan .cell{fill:#58a6ff}.head-plan .full{stroke:#ff7b72}}";
}

std::string PlanSvg(const HeadPlan& plan, PlanSvgUse use) {
  const Scale scale = ScaleOf(plan);
  const int cell = CellSize(plan);
  const int columns = static_cast<int>(plan.shape.num_kv_heads);
  const int rows = static_cast<int>(plan.shape.num_layers);
  const bool has_title = use == PlanSvgUse::kFile;
  const int top = has_title ? 64 : 12;
  const int width = std::max(kLeft + columns * cell + 24, has_title ? 460 : 396);
  const int height = top + rows * cell + kBottom;
  std::string svg = "<svg class=\"head-plan\" role=\"img\"";
  if (use == PlanSvgUse::kFile) svg += " xmlns=\"http://www.w3.org/2000/svg\"";
  svg += fmt::format(" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\">\n", width, height);
  if (use == PlanSvgUse::kFile) svg += fmt::format("<style>{}</style>\n", PlanSvgStyle());
  svg += fmt::format("<title>Head plan {}</title>\n", EscapeXml(plan.method));
  if (has_title) {
    svg += fmt::format("<text class=\"title\" x=\"12\" y=\"24\">Head plan: {}</text>\n", EscapeXml(plan.method));
    svg += fmt::format("<text x=\"12\" y=\"44\">{}, {} layers, {} query heads, {} KV heads</text>\n",
                       EscapeXml(plan.shape.architecture), rows, plan.shape.num_q_heads, columns);
  }
  for (int row = 0; row < rows; ++row) {
    const int y = top + row * cell;
    if (cell >= 14 || row % 5 == 0) {
      svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n", kLeft - 8, y + cell / 2 + 4, row);
    }
    for (int column = 0; column < columns; ++column) {
      const auto head = static_cast<size_t>(row * columns + column);
      const int x = kLeft + column * cell;
      svg += fmt::format("<g><title>layer {}, KV head {}: {}; {} {:.4g}</title>", row, column,
                         EscapeXml(DescribeRule(plan.rules[head])), scale.title, scale.values[head]);
      const std::string box =
          fmt::format("x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"2\"", x + 1, y + 1, cell - 2, cell - 2);
      svg += fmt::format("<rect class=\"ground\" {}/><rect class=\"cell\" fill-opacity=\"{:.3f}\" {}/>", box,
                         scale.Share(head), box);
      if (plan.rules[head].kind == HeadRule::Kind::kFull) svg += fmt::format("<rect class=\"full\" {}/>", box);
      svg += "</g>\n";
    }
  }
  const int axis = top + rows * cell + 16;
  for (int column = 0; column < columns; ++column) {
    if (cell < 20 && column % 5 != 0) continue;
    svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", kLeft + column * cell + cell / 2,
                       axis, column);
  }
  svg += fmt::format("<text x=\"{}\" y=\"{}\">KV head</text>\n", kLeft, axis + 18);
  svg += fmt::format("<text transform=\"translate(16 {}) rotate(-90)\" text-anchor=\"middle\">layer</text>\n",
                     top + rows * cell / 2);
  const int legend = axis + 30;
  for (int step = 0; step < 5; ++step) {
    svg += fmt::format("<rect class=\"cell\" fill-opacity=\"{:.2f}\" x=\"{}\" y=\"{}\" width=\"14\" height=\"14\"/>\n",
                       step / 4.0, kLeft + step * 14, legend);
  }
  svg += fmt::format("<text x=\"{}\" y=\"{}\">{:.4g} to {:.4g}</text>\n", kLeft + 80, legend + 12, scale.least,
                     scale.most);
  svg += fmt::format("<text x=\"12\" y=\"{}\">shade: {}</text>\n", legend + 32, scale.title);
  svg += fmt::format("<rect class=\"full\" x=\"12\" y=\"{}\" width=\"12\" height=\"12\" rx=\"2\"/>", legend + 1);
  svg += fmt::format("<text x=\"30\" y=\"{}\">full</text>\n</svg>\n", legend + 12);
  return svg;
}

}  // namespace headwise
