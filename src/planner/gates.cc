#include "planner/gates.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "planner/budget.h"

namespace headwise {
namespace {

std::string NameHead(const ModelShape& shape, size_t head) {
  const auto idx = static_cast<int64_t>(head);
  return fmt::format("layer {} KV head {}", idx / shape.num_kv_heads, idx % shape.num_kv_heads);
}

// The lowest gate that is full against the highest that is not.
std::string DescribeMargin(const ModelShape& shape, const std::vector<double>& gates, const std::vector<size_t>& order,
                           int64_t num_full) {
  const auto total = static_cast<int64_t>(order.size());
  if (num_full == 0 || num_full == total) return fmt::format("{} of {} KV heads are full", num_full, total);
  const size_t last_full = order[static_cast<size_t>(num_full) - 1];
  const size_t first_bounded = order[static_cast<size_t>(num_full)];
  return fmt::format("{} of {} KV heads are full; at the cut {} has {:.4f} and {} has {:.4f}, margin {:.4f}", num_full,
                     total, NameHead(shape, last_full), gates[last_full], NameHead(shape, first_bounded),
                     gates[first_bounded], gates[last_full] - gates[first_bounded]);
}

}  // namespace

Status RequireScores(const HeadPlan& plan) {
  if (!plan.scores.empty()) return Status::Ok();
  return Status::InvalidInput("the plan has no \"scores\", expected the gates or scores that it was made of");
}

std::vector<size_t> HeadsByGate(const std::vector<double>& gates) {
  std::vector<size_t> order(gates.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return gates[a] != gates[b] ? gates[a] > gates[b] : a > b; });
  return order;
}

Result<HeadPlan> PlanFromGates(const PlannerInput& input, const std::vector<double>& gates,
                               const HeadRule& bounded_rule, double default_sparsity) {
  const NamedOptions& options = input.options;
  HW_ASSIGN_OR_RETURN(const std::optional<KvBudget> budget, BudgetFromOptions(input));
  if (int{options.Has("sparsity")} + int{options.Has("threshold")} + int{budget.has_value()} > 1) {
    return Status::InvalidInput("found two of --sparsity, --threshold and a KV budget, expected one");
  }
  const std::vector<size_t> order = HeadsByGate(gates);
  HeadPlan plan = HeadPlan::Dense(input.shape);
  plan.scores = gates;
  int64_t num_full = 0;
  if (budget) {
    std::vector<std::vector<size_t>> groups;
    for (const size_t head : order) groups.push_back({head});
    HW_ASSIGN_OR_RETURN(num_full, FitFullGroups(plan, groups, bounded_rule, *budget));
    plan.notes.push_back(DescribeBudget(plan, *budget));
  } else {
    HW_ASSIGN_OR_RETURN(const double sparsity, options.DoubleOr("sparsity", default_sparsity, 0.0, 1.0));
    HW_ASSIGN_OR_RETURN(const double threshold, options.DoubleOr("threshold", 0.5, 0.0, 1.0));
    const auto total = static_cast<int64_t>(gates.size());
    num_full = options.Has("threshold")
                   ? std::count_if(gates.begin(), gates.end(), [&](double gate) { return gate >= threshold; })
                   : total - std::llround(sparsity * static_cast<double>(total));
    for (int64_t i = num_full; i < total; ++i) plan.rules[order[static_cast<size_t>(i)]] = bounded_rule;
  }
  plan.notes.push_back(DescribeMargin(input.shape, gates, order, num_full));
  return plan;
}

Result<HeadPlan> RefitGates(const PlannerInput& input, const HeadPlan& earlier) {
  HW_ASSIGN_OR_RETURN(const HeadRule rule, StreamRuleFromOptions(input.options, kDuoSink, kDuoRecent));
  HW_RETURN_IF_ERROR(RequireScores(earlier));
  return PlanFromGates(input, earlier.scores, rule, /*default_sparsity=*/0.5);
}

}  // namespace headwise
