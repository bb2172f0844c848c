// What TaskSection shows of single results: depth maps, tables by tag, curves.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <map>
#include <set>

#include "report/charts.h"
#include "report/html.h"
#include "report/sections.h"

namespace headwise {
namespace {

constexpr const char* kDepthTag = "depth";
constexpr double kDeepest = 1e12;
constexpr size_t kMaxDepths = 12;      // more are gathered into tenths
constexpr size_t kMaxTextValues = 40;  // a tag of more is a name of the case, not a kind of it
constexpr size_t kMaxNumberValues = 8;
constexpr size_t kMaxCurvePoints = 200;  // more are gathered into bins
constexpr size_t kCurveBins = 64;

struct Mean {
  double sum = 0;
  int64_t count = 0;

  void Add(double value) {
    sum += value;
    ++count;
  }
  void Add(const Mean& other) {
    sum += other.sum;
    count += other.count;
  }
  std::optional<double> value() const {
    return count > 0 ? std::optional<double>(sum / static_cast<double>(count)) : std::nullopt;
  }
};

std::optional<double> ScoreOf(const CaseResult& result, const MetricInfo& metric) {
  const auto score = result.scores.find(metric.name);
  if (score == result.scores.end() || !std::isfinite(score->second)) return std::nullopt;
  return score->second;
}

// ---- depth ----

// The depths as rows of a map: as they are if there are few, else in tenths of the way.
class DepthRows {
 public:
  explicit DepthRows(const std::set<double>& depths) {
    if (depths.size() <= kMaxDepths) {
      depths_ = {depths.begin(), depths.end()};
      return;
    }
    least_ = *depths.begin();
    step_ = (*depths.rbegin() - least_) / 10;
    for (int i = 0; i < 10; ++i) depths_.push_back(least_ + (i + 0.5) * step_);
  }

  size_t size() const { return depths_.size(); }
  size_t RowOf(double depth) const {
    if (step_ > 0) return static_cast<size_t>(std::clamp((depth - least_) / step_, 0.0, 9.0));
    return static_cast<size_t>(std::lower_bound(depths_.begin(), depths_.end(), depth) - depths_.begin());
  }
  std::vector<std::string> Names() const {
    const bool are_shares = depths_.front() >= 0 && depths_.back() <= 1;
    std::vector<std::string> names;
    for (const double depth : depths_) {
      names.push_back(are_shares ? fmt::format("{:.0f} %", depth * 100) : FormatNumber(depth, 3));
    }
    return names;
  }

 private:
  std::vector<double> depths_;
  double least_ = 0;
  double step_ = 0;  // 0: rows are the depths themselves
};

using DepthMeans = std::map<std::string, std::vector<Mean>>;  // by plan: [depths, lengths]

// The ends of the shades, best last: fixed for rates, else the extremes over all plans.
std::pair<double, double> ShadeEnds(const MetricInfo& metric, const DepthMeans& means) {
  if (metric.kind == MetricInfo::Kind::kRate) return {0, 1};
  double least = INFINITY;
  double most = -INFINITY;
  for (const auto& [plan, cells] : means) {
    for (const Mean& cell : cells) {
      least = std::min(least, cell.value().value_or(least));
      most = std::max(most, cell.value().value_or(most));
    }
  }
  if (metric.better == MetricInfo::Better::kLower) std::swap(least, most);
  return {least, most};
}

// ---- tags ----

std::string TagText(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_integer()) return std::to_string(value.get<int64_t>());
  if (value.is_number()) return FormatNumber(value.get<double>());
  return value.is_boolean() ? (value.get<bool>() ? "yes" : "no") : "";
}

// Values of one tag that divide the cases into kinds; empty where they do not.
std::vector<Json> KindsOf(const ReportRun& run, const std::string& tag) {
  std::set<Json> values;
  for (const CaseResult& result : run.data.results) {
    const auto value = result.tags.find(tag);
    if (value == result.tags.end()) continue;
    if (!value->is_string() && !value->is_number() && !value->is_boolean()) return {};
    values.insert(*value);
    if (values.size() > kMaxTextValues) return {};
  }
  const bool is_number = !values.empty() && values.begin()->is_number();
  if (values.size() < 2 || (is_number && values.size() > kMaxNumberValues)) return {};
  std::vector<Json> kinds(values.begin(), values.end());
  // "50 lines" before "100 lines"; what begins with no number stays in the order of its letters, behind.
  const auto leading_number = [](const Json& kind) {
    const std::string text = TagText(kind);
    const bool has_number = !text.empty() && text.front() >= '0' && text.front() <= '9';
    return has_number ? std::strtod(text.c_str(), nullptr) : INFINITY;
  };
  if (!is_number) {
    std::stable_sort(kinds.begin(), kinds.end(),
                     [&](const Json& a, const Json& b) { return leading_number(a) < leading_number(b); });
  }
  return kinds;
}

using ResultFilter = std::function<bool(const CaseResult&)>;

// Plans down, kinds of results across: means of the first metric.
std::string MeansTable(const ReportRun& run, const std::vector<std::pair<std::string, ResultFilter>>& columns) {
  const MetricInfo& metric = run.data.info.metrics.front();
  const MetricFormat format = FormatOf(run, metric);
  std::vector<std::string> titles = {"Plan"};
  for (const auto& [title, filter] : columns) titles.push_back(title);
  HtmlTable table(titles);
  for (const PlanInfo& plan : run.data.info.plans) {
    std::vector<Mean> means(columns.size());
    for (const CaseResult& result : run.data.results) {
      const std::optional<double> score = ScoreOf(result, metric);
      if (result.plan != plan.name || !score) continue;
      for (size_t i = 0; i < columns.size(); ++i) {
        if (columns[i].second(result)) means[i].Add(*score);
      }
    }
    std::vector<TableCell> row(1 + columns.size());
    row[0] = NameCell(plan.name);
    for (size_t i = 0; i < columns.size(); ++i) {
      row[i + 1].text = means[i].count > 0 ? format.Value(*means[i].value()) : kDash;
      row[i + 1].title = fmt::format("{} values", means[i].count);
    }
    table.AddRow(row);
  }
  return table.Html();
}

ResultFilter HasTag(const std::string& tag, const Json& value) {
  return [tag, value](const CaseResult& result) {
    const auto found = result.tags.find(tag);
    return found != result.tags.end() && *found == value;
  };
}

std::string TagTable(const ReportRun& run, const std::string& tag, const std::vector<Json>& kinds) {
  std::vector<std::pair<std::string, ResultFilter>> columns;
  for (const Json& kind : kinds) columns.emplace_back(TagText(kind), HasTag(tag, kind));
  std::string html = MeansTable(run, columns);
  const std::vector<int64_t> lengths = LengthsOf(run);
  if (lengths.size() < 2) return html;
  std::string by_length;
  for (const Json& kind : kinds) {
    std::vector<std::pair<std::string, ResultFilter>> of_lengths;
    for (const int64_t length : lengths) {
      of_lengths.emplace_back(FormatLength(length), [length, has_tag = HasTag(tag, kind)](const CaseResult& result) {
        return result.length == length && has_tag(result);
      });
    }
    by_length += Paragraph(fmt::format("{}: {}", tag, TagText(kind))) + MeansTable(run, of_lengths);
  }
  return html + Details(fmt::format("By {} and length", tag), by_length);
}

// ---- curves ----

// One place along a curve, over cases: means of both coordinates.
struct CurvePlace {
  Mean x;
  Mean y;
};

// Cases that were measured at the same positions are averaged at each; others, and very long curves, in bins.
std::vector<CurvePlace> AverageCurve(const ReportRun& run, const std::string& plan, int64_t length,
                                     const std::string& name) {
  std::map<double, CurvePlace> places;
  size_t longest = 0;
  for (const CaseResult& result : run.data.results) {
    const auto curve = result.curves.find(name);
    if (result.plan != plan || result.length != length || curve == result.curves.end()) continue;
    longest = std::max(longest, curve->second.size());
    for (const auto& [x, y] : curve->second) {
      if (!std::isfinite(x) || !std::isfinite(y)) continue;
      places[x].x.Add(x);
      places[x].y.Add(y);
    }
  }
  if (places.size() > longest || places.size() > kMaxCurvePoints) {
    std::map<double, CurvePlace> bins;
    const auto num_bins = static_cast<double>(std::min(longest, kCurveBins));
    const double least = places.begin()->first;
    const double step = (places.rbegin()->first - least) / num_bins;
    for (const auto& [x, place] : places) {
      CurvePlace& bin = bins[std::min(std::floor((x - least) / step), num_bins - 1)];
      bin.x.Add(place.x);
      bin.y.Add(place.y);
    }
    places = std::move(bins);
  }
  std::vector<CurvePlace> in_order;
  for (const auto& [key, place] : places) in_order.push_back(place);
  return in_order;
}

bool IsBytes(const std::string& curve) {
  return curve.ends_with("bytes");
}

std::vector<ChartPoint> CurvePoints(const ReportRun& run, const std::string& plan, int64_t length,
                                    const std::string& name) {
  std::vector<ChartPoint> points;
  for (const CurvePlace& place : AverageCurve(run, plan, length, name)) {
    ChartPoint point;
    point.x = *place.x.value();
    point.y = *place.y.value();
    point.note = fmt::format("{} at {}: {}, {} values", plan, FormatNumber(point.x),
                             IsBytes(name) ? FormatBytesTick(point.y) : FormatNumber(point.y), place.y.count);
    points.push_back(std::move(point));
  }
  return points;
}

std::string CurveTitle(const RunInfo& info, const std::string& name) {
  for (const MetricInfo& metric : info.metrics) {
    if (metric.name != name) continue;
    return metric.unit.empty() ? metric.label : fmt::format("{}, {}", metric.label, metric.unit);
  }
  std::string words = name;
  std::replace(words.begin(), words.end(), '_', ' ');
  if (words.starts_with("kv ")) words.replace(0, 2, "KV");
  return words;
}

std::string CurvesAt(const ReportRun& run, const std::string& name, int64_t length, const PlanStyles& styles) {
  std::string charts;
  for (const PlanGroup& group : GroupsOf(run.data.info)) {
    XyChart chart;
    chart.title = fmt::format("{} tokens{}{}", FormatLength(length), group.title.empty() ? "" : ", ", group.title);
    chart.x.title = "position, tokens";
    chart.y.title = CurveTitle(run.data.info, name);
    if (IsBytes(name)) {
      chart.y.least = 0;
      chart.y.format = FormatBytesTick;
    }
    for (const PlanInfo* plan : group.plans) {
      chart.series.push_back(
          {.name = plan->name, .style = styles.Of(*plan), .points = CurvePoints(run, plan->name, length, name)});
    }
    charts += RenderXyChart(chart);
  }
  return charts;
}

}  // namespace

std::string DepthMaps(const ReportRun& run) {
  const MetricInfo& metric = run.data.info.metrics.front();
  const std::vector<int64_t> lengths = LengthsOf(run);
  std::set<double> depths;
  const auto depth_of = [](const CaseResult& result) -> std::optional<double> {
    const auto depth = result.tags.find(kDepthTag);
    if (depth == result.tags.end() || !depth->is_number()) return std::nullopt;
    return std::clamp(depth->get<double>(), -kDeepest, kDeepest);
  };
  for (const CaseResult& result : run.data.results) {
    if (const auto depth = depth_of(result)) depths.insert(*depth);
  }
  if (depths.size() < 2 || lengths.empty()) return "";
  const DepthRows rows(depths);
  DepthMeans means;
  for (const CaseResult& result : run.data.results) {
    const auto depth = depth_of(result);
    const auto score = ScoreOf(result, metric);
    const auto length = std::find(lengths.begin(), lengths.end(), result.length);
    if (!depth || !score || length == lengths.end()) continue;
    std::vector<Mean>& cells = means[result.plan];
    cells.resize(rows.size() * lengths.size());
    cells[rows.RowOf(*depth) * lengths.size() + static_cast<size_t>(length - lengths.begin())].Add(*score);
  }
  const MetricFormat format = FormatOf(run, metric);
  const auto [worst, best] = ShadeEnds(metric, means);
  std::string maps;
  for (const PlanInfo& plan : run.data.info.plans) {
    if (!means.contains(plan.name)) continue;
    HeatMap map = {.title = plan.name, .row_title = "depth", .column_title = "length, tokens", .rows = rows.Names()};
    for (const int64_t length : lengths) map.columns.push_back(FormatLength(length));
    for (const Mean& cell : means[plan.name]) map.values.push_back(cell.value());
    map.worst = worst;
    map.best = best;
    map.format = [&](double value) {
      return metric.kind == MetricInfo::Kind::kRate ? fmt::format("{:.0f}", value * 100) : format.Value(value);
    };
    maps += RenderHeatMap(map);
  }
  return Heading(3, "By depth and length") +
         Paragraph("Depth is where the answer stands: 0 % at the start of the text. Values: " + format.title() + ".") +
         "<p class=\"key\"><span>worse</span><i></i><span>better</span></p>\n" + SmallGrid(maps);
}

std::string TagTables(const ReportRun& run) {
  std::set<std::string> tags;
  for (const CaseResult& result : run.data.results) {
    for (const auto& [tag, value] : result.tags.items()) tags.insert(tag);
  }
  tags.erase(kDepthTag);
  std::string html;
  for (const std::string& tag : tags) {
    const std::vector<Json> kinds = KindsOf(run, tag);
    if (!kinds.empty()) html += Heading(3, "By " + tag) + TagTable(run, tag, kinds);
  }
  return html;
}

std::string CurveCharts(const ReportRun& run, const PlanStyles& styles) {
  std::set<std::string> names;
  for (const CaseResult& result : run.data.results) {
    for (const auto& [name, curve] : result.curves) names.insert(name);
  }
  const std::vector<int64_t> lengths = LengthsOf(run);
  if (lengths.empty()) return "";
  std::string html;
  for (const std::string& name : names) {
    html += Heading(3, "Along the text: " + CurveTitle(run.data.info, name));
    html += Grid(CurvesAt(run, name, lengths.back(), styles));
    std::string folded;
    for (auto length = lengths.rbegin() + 1; length != lengths.rend(); ++length) {
      folded += CurvesAt(run, name, *length, styles);
    }
    if (!folded.empty()) html += Details("Shorter texts", Grid(folded));
  }
  return html;
}

}  // namespace headwise
