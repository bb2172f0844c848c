#include "report/sections.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "report/chart_parts.h"

namespace headwise {
namespace {

std::string LastName(const std::filesystem::path& path) {
  const std::filesystem::path normal = path.lexically_normal();
  return (normal.has_filename() ? normal : normal.parent_path()).filename().string();
}

std::string ModelName(const RunInfo& info) {
  const std::string name = LastName(info.model);
  return name.empty() ? "a model without a name" : name;
}

bool IsSameModel(const RunInfo& a, const RunInfo& b) {
  return a.source_hash == b.source_hash && ModelName(a) == ModelName(b);
}

std::string OwnTitle(const RunInfo& info) {
  const std::string& title = info.title.empty() ? info.task : info.title;
  return info.study.empty() ? title : info.study + ": " + title;
}

}  // namespace

std::vector<PlanInfo> AllPlans(const std::vector<ReportRun>& runs) {
  std::vector<PlanInfo> plans;
  std::set<std::string> names;
  for (const ReportRun& run : runs) {
    for (const PlanInfo& plan : run.data.info.plans) {
      if (names.insert(plan.name).second) plans.push_back(plan);
    }
  }
  return plans;
}

std::vector<std::string> ModelNames(const std::vector<ReportRun>& runs) {
  std::vector<std::string> names;
  std::vector<const RunInfo*> models;
  for (const ReportRun& run : runs) {
    const RunInfo& info = run.data.info;
    if (std::ranges::any_of(models, [&](const RunInfo* known) { return IsSameModel(*known, info); })) continue;
    models.push_back(&info);
    names.push_back(ModelName(info));
  }
  return names;
}

std::string RunGroup::ColumnTitle(const ReportRun& run) const {
  const std::string& own = run.data.info.title;
  const auto is_namesake = [&](const ReportRun* other) { return other != &run && other->data.info.title == own; };
  return std::ranges::any_of(runs, is_namesake) ? own + " · " + LastName(run.data.folder) : own;
}

std::vector<RunGroup> GroupsOf(const std::vector<ReportRun>& runs) {
  const bool has_models = ModelNames(runs).size() > 1;
  std::vector<RunGroup> groups;
  for (const ReportRun& run : runs) {
    const RunInfo& info = run.data.info;
    const auto group = std::ranges::find_if(groups, [&](const RunGroup& known) {
      const RunInfo& first = known.runs.front()->data.info;
      return IsSameModel(first, info) && first.study == info.study;
    });
    if (group != groups.end()) {
      group->runs.push_back(&run);
      continue;
    }
    std::string group_title = info.study;
    if (has_models || info.study.empty()) group_title += (group_title.empty() ? "" : " · ") + ModelName(info);
    groups.push_back({std::move(group_title), {&run}});
  }
  if (groups.size() == 1) groups.front().title.clear();
  // What models can do comes before why.
  std::stable_partition(groups.begin(), groups.end(),
                        [](const RunGroup& group) { return group.runs.front()->data.info.study.empty(); });
  return groups;
}

TableCell NameCell(const std::string& name) {
  constexpr size_t kMaxCharacters = 40;
  const std::string shown = Shortened(name, kMaxCharacters);
  return {.text = shown, .title = shown == name ? "" : name};
}

std::string TitleOf(const ReportRun& run, const std::vector<ReportRun>& runs) {
  const RunInfo& info = run.data.info;
  std::string title = OwnTitle(info);
  const bool has_other_model = std::any_of(runs.begin(), runs.end(),
                                           [&](const ReportRun& other) { return !IsSameModel(other.data.info, info); });
  if (has_other_model) title += " · " + ModelName(info);
  const bool has_namesake = std::any_of(runs.begin(), runs.end(), [&](const ReportRun& other) {
    return &other != &run && OwnTitle(other.data.info) == OwnTitle(info) && IsSameModel(other.data.info, info);
  });
  if (has_namesake) title += " · " + LastName(run.data.folder);
  return title;
}

MetricFormat FormatOf(const ReportRun& run, const MetricInfo& metric) {
  std::vector<double> means;
  for (const Cell& cell : run.summary.cells) {
    if (cell.metric == metric.name) means.push_back(cell.mean);
  }
  return MetricFormat(metric, means);
}

std::string IntervalText(const Cell& cell, const MetricFormat& format) {
  // A single long text has the interval of its blocks.
  const bool has_spread = cell.count > 1 || cell.interval.low < cell.interval.high;
  return has_spread ? format.Range(cell.interval) : "one value";
}

const Comparison* FindComparison(const Summary& summary, const std::string& plan, std::optional<int64_t> length,
                                 const std::string& metric) {
  for (const Comparison& comparison : summary.comparisons) {
    if (comparison.plan == plan && comparison.length == length && comparison.metric == metric) return &comparison;
  }
  return nullptr;
}

std::vector<int64_t> LengthsOf(const ReportRun& run) {
  std::set<int64_t> lengths;
  for (const Cell& cell : run.summary.cells) {
    if (cell.length) lengths.insert(*cell.length);
  }
  return {lengths.begin(), lengths.end()};
}

std::string BudgetTitle(const PlanInfo& plan) {
  return plan.kv_ratio ? FormatRatio(*plan.kv_ratio) + " of the dense KV bytes" : "As given";
}

std::vector<PlanGroup> GroupsOf(const RunInfo& info) {
  if (info.plans.empty()) return {};
  std::vector<std::pair<std::optional<double>, PlanGroup>> groups;
  for (const PlanInfo& plan : info.plans) {
    if (&plan == &info.plans.front()) continue;
    auto group =
        std::find_if(groups.begin(), groups.end(), [&](const auto& known) { return known.first == plan.kv_ratio; });
    if (group == groups.end()) {
      groups.push_back({plan.kv_ratio, {.title = BudgetTitle(plan), .plans = {&info.plans.front()}}});
      group = groups.end() - 1;
    }
    group->second.plans.push_back(&plan);
  }
  if (groups.empty()) return {{.title = "", .plans = {&info.plans.front()}}};
  std::stable_sort(groups.begin(), groups.end(), [](const auto& a, const auto& b) {
    return a.first.value_or(2) > b.first.value_or(2);  // as given first, then from large to small
  });
  std::vector<PlanGroup> in_order;
  for (auto& [ratio, group] : groups) in_order.push_back(std::move(group));
  if (in_order.size() == 1) in_order.front().title.clear();
  return in_order;
}

bool IsBetter(const MetricInfo& metric, double difference) {
  return metric.better == MetricInfo::Better::kHigher ? difference > 0 : difference < 0;
}

std::string LengthTitle(std::optional<int64_t> length) {
  return length ? FormatLength(*length) : "all";
}

}  // namespace headwise
