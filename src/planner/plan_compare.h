// What plans for one model agree on: heads that are full, KV bytes at given lengths, the order of their scores.
#ifndef HEADWISE_PLANNER_PLAN_COMPARE_H_
#define HEADWISE_PLANNER_PLAN_COMPARE_H_

#include <headwise/head_plan.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "kv/layer_windows.h"

namespace headwise {

struct NamedPlan {
  std::string name;  // its file
  HeadPlan plan;
};

struct PlanOverlap {
  size_t a = 0;  // indices of the two plans
  size_t b = 0;
  std::vector<int64_t> both, only_a, only_b;  // heads [layer * Hkv + head] that are full
  // Full heads of both over full heads of any; null where neither plan has any.
  std::optional<double> jaccard;
  // Spearman's rank correlation of the scores; null where a plan has none, or only equal ones.
  std::optional<double> rank_correlation;
};

struct PlanComparison {
  std::vector<int64_t> lengths;
  std::vector<std::vector<int64_t>> kv_bytes;  // [plan][length], f16 in pages of 32 tokens
  std::vector<int64_t> dense_kv_bytes;         // [length]
  std::vector<PlanOverlap> overlaps;           // every pair, in order
};

// `windows`: the model's own, which bound full heads too; none: bytes are of the shape alone. An error if the plans are
// for different shapes (it names both files), for fewer than two plans, or a length below 1.
Result<PlanComparison> ComparePlans(std::span<const NamedPlan> plans, std::vector<int64_t> lengths,
                                    const LayerWindows& windows = {});

std::string FormatComparison(std::span<const NamedPlan> plans, const PlanComparison& comparison);
Json ComparisonJson(std::span<const NamedPlan> plans, const PlanComparison& comparison);

// Spearman's rho, ties at their mean rank. Null if one side has only equal values. Requires: sizes are equal.
std::optional<double> RankCorrelation(std::span<const double> a, std::span<const double> b);

}  // namespace headwise

#endif  // HEADWISE_PLANNER_PLAN_COMPARE_H_
