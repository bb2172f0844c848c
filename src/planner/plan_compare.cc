#include "planner/plan_compare.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "planner/budget.h"

namespace headwise {
namespace {

constexpr size_t kMaxListed = 20;

// Ranks from 0, equal values at the mean of theirs.
std::vector<double> Ranks(std::span<const double> values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] < values[b]; });
  std::vector<double> ranks(values.size());
  for (size_t begin = 0; begin < order.size();) {
    size_t end = begin;
    while (end < order.size() && values[order[end]] == values[order[begin]]) ++end;
    for (size_t i = begin; i < end; ++i) ranks[order[i]] = static_cast<double>(begin + end - 1) / 2;
    begin = end;
  }
  return ranks;
}

PlanOverlap OverlapOf(std::span<const NamedPlan> plans, size_t a, size_t b) {
  PlanOverlap overlap{.a = a, .b = b, .both = {}, .only_a = {}, .only_b = {}, .jaccard = {}, .rank_correlation = {}};
  const HeadPlan& plan_a = plans[a].plan;
  const HeadPlan& plan_b = plans[b].plan;
  for (size_t head = 0; head < plan_a.rules.size(); ++head) {
    const bool in_a = plan_a.rules[head].kind == HeadRule::Kind::kFull;
    const bool in_b = plan_b.rules[head].kind == HeadRule::Kind::kFull;
    if (in_a || in_b) {
      (in_a && in_b ? overlap.both : in_a ? overlap.only_a : overlap.only_b).push_back(static_cast<int64_t>(head));
    }
  }
  const size_t any = overlap.both.size() + overlap.only_a.size() + overlap.only_b.size();
  if (any > 0) overlap.jaccard = static_cast<double>(overlap.both.size()) / static_cast<double>(any);
  if (!plan_a.scores.empty() && !plan_b.scores.empty()) {
    overlap.rank_correlation = RankCorrelation(plan_a.scores, plan_b.scores);
  }
  return overlap;
}

std::string ListHeads(const ModelShape& shape, const std::vector<int64_t>& heads) {
  std::vector<std::string> names;
  for (size_t i = 0; i < std::min(heads.size(), kMaxListed); ++i) {
    names.push_back(fmt::format("{}.{}", heads[i] / shape.num_kv_heads, heads[i] % shape.num_kv_heads));
  }
  if (heads.size() > kMaxListed) names.push_back(fmt::format("and {} more", heads.size() - kMaxListed));
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names, " "));
}

int64_t NumFull(const HeadPlan& plan) {
  return std::count_if(plan.rules.begin(), plan.rules.end(),
                       [](const HeadRule& rule) { return rule.kind == HeadRule::Kind::kFull; });
}

}  // namespace

std::optional<double> RankCorrelation(std::span<const double> a, std::span<const double> b) {
  const std::vector<double> rank_a = Ranks(a);
  const std::vector<double> rank_b = Ranks(b);
  const double mean = static_cast<double>(a.size() - 1) / 2;
  double covariance = 0;
  double variance_a = 0;
  double variance_b = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    covariance += (rank_a[i] - mean) * (rank_b[i] - mean);
    variance_a += (rank_a[i] - mean) * (rank_a[i] - mean);
    variance_b += (rank_b[i] - mean) * (rank_b[i] - mean);
  }
  if (variance_a == 0 || variance_b == 0) return std::nullopt;
  return covariance / std::sqrt(variance_a * variance_b);
}

Result<PlanComparison> ComparePlans(std::span<const NamedPlan> plans, std::vector<int64_t> lengths,
                                    const LayerWindows& windows) {
  if (plans.size() < 2) {
    return Status::InvalidInput(fmt::format("plan compare: found {} plans, expected at least two", plans.size()));
  }
  for (const NamedPlan& named : plans) {
    HW_RETURN_IF_ERROR(CheckPlanFits(named.plan, plans.front().plan.shape, named.name)
                           .Annotate(fmt::format("compared with {}", plans.front().name)));
  }
  PlanComparison comparison;
  for (const int64_t length : lengths) {
    if (length < 1 || length > (int64_t{1} << 40)) {
      return Status::InvalidInput(fmt::format("--at: found {}, expected a number of tokens from 1", length));
    }
    comparison.dense_kv_bytes.push_back(PlanBytesAt(HeadPlan::Dense(plans.front().plan.shape), length, windows));
  }
  comparison.lengths = std::move(lengths);
  for (size_t a = 0; a < plans.size(); ++a) {
    std::vector<int64_t>& bytes = comparison.kv_bytes.emplace_back();
    for (const int64_t length : comparison.lengths) bytes.push_back(PlanBytesAt(plans[a].plan, length, windows));
    for (size_t b = a + 1; b < plans.size(); ++b) comparison.overlaps.push_back(OverlapOf(plans, a, b));
  }
  return comparison;
}

std::string FormatComparison(std::span<const NamedPlan> plans, const PlanComparison& comparison) {
  const ModelShape& shape = plans.front().plan.shape;
  std::string text;
  for (size_t i = 0; i < plans.size(); ++i) {
    text += fmt::format("{}  {} ({}): {} of {} KV heads full\n", static_cast<char>('A' + i % 26), plans[i].name,
                        plans[i].plan.method, NumFull(plans[i].plan), plans[i].plan.rules.size());
    for (size_t at = 0; at < comparison.lengths.size(); ++at) {
      const auto bytes = static_cast<double>(comparison.kv_bytes[i][at]);
      text += fmt::format("   {:>9} tokens {:>12.3f} MB  {:6.2f} % of all full\n", comparison.lengths[at], bytes / 1e6,
                          100 * bytes / static_cast<double>(comparison.dense_kv_bytes[at]));
    }
  }
  text += "KV bytes are those of f16 in pages of 32 tokens; heads are layer.head\n";
  for (const PlanOverlap& overlap : comparison.overlaps) {
    const auto or_none = [](const std::optional<double>& number) {
      return number ? fmt::format("{:.3f}", *number) : std::string("-");
    };
    const char a = static_cast<char>('A' + overlap.a % 26);
    const char b = static_cast<char>('A' + overlap.b % 26);
    text += fmt::format("{} and {}: overlap of full heads {} (Jaccard), rank correlation of scores {}\n", a, b,
                        or_none(overlap.jaccard), or_none(overlap.rank_correlation));
    text += fmt::format("   full in both: {}\n   only in {}: {}\n   only in {}: {}\n", ListHeads(shape, overlap.both),
                        a, ListHeads(shape, overlap.only_a), b, ListHeads(shape, overlap.only_b));
  }
  return text;
}

Json ComparisonJson(std::span<const NamedPlan> plans, const PlanComparison& comparison) {
  Json json = {{"lengths", comparison.lengths}, {"dense_kv_bytes", comparison.dense_kv_bytes}};
  json["plans"] = Json::array();
  for (size_t i = 0; i < plans.size(); ++i) {
    json["plans"].push_back({{"name", plans[i].name},
                             {"method", plans[i].plan.method},
                             {"num_full", NumFull(plans[i].plan)},
                             {"kv_bytes", comparison.kv_bytes[i]}});
  }
  json["pairs"] = Json::array();
  for (const PlanOverlap& overlap : comparison.overlaps) {
    json["pairs"].push_back(
        {{"a", plans[overlap.a].name},
         {"b", plans[overlap.b].name},
         {"both", overlap.both},
         {"only_a", overlap.only_a},
         {"only_b", overlap.only_b},
         {"jaccard", overlap.jaccard ? Json(*overlap.jaccard) : Json()},
         {"rank_correlation", overlap.rank_correlation ? Json(*overlap.rank_correlation) : Json()}});
  }
  return json;
}

}  // namespace headwise
