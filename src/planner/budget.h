// Plans of equal bytes: a budget of real KV bytes, sinks, windows and compensation counted in, and the ways in which
// methods spend one. Each method has one knob (docs/planners.md); the windows of bounded heads take up what is
// left, head by head, so that a plan ends within a page of the budget and never above it. Bytes are those of
// kv/plan_bytes.h.
#ifndef HEADWISE_PLANNER_BUDGET_H_
#define HEADWISE_PLANNER_BUDGET_H_

#include <headwise/head_plan.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "kv/plan_bytes.h"
#include "kv/rule.h"
#include "planner/planner.h"

namespace headwise {

struct KvBudget {
  int64_t bytes = 0;
  int64_t at_tokens = 0;      // N
  LayerWindows windows = {};  // the model's own
};

// At the budget's length: of a head of this layer under `rule`, and of a plan.
int64_t RuleBytesAt(const HeadRule& rule, const ModelShape& shape, const KvBudget& budget, int64_t layer_idx);
int64_t PlanBytesAt(const HeadPlan& plan, const KvBudget& budget);

// The option names that BudgetFromOptions reads.
inline constexpr std::string_view kBudgetOptions[] = {"kv-ratio", "at", "kv-bytes-at"};

// --kv-ratio R --at N: R times the bytes of the plan with every head full; --kv-bytes-at BYTES:TOKENS. Null when none
// is given; an error for a number out of range, or for two budgets.
Result<std::optional<KvBudget>> BudgetFromOptions(const PlannerInput& input);

// The rule of a bounded head whose window is `recent` tokens at the budget's length.
using WindowRule = std::function<HeadRule(int64_t recent)>;

// Gives the heads `bounded` (indices into plan.rules) the widest equal window that fits, then, in the order given,
// a page more to as many as still fit. Where a layer's own window is narrower than that, its heads cost no more than it
// and leave the rest to the others. An error if even a window of one token does not fit: it says how many bytes that
// needs.
Status FitWindows(HeadPlan& plan, std::span<const size_t> bounded, const WindowRule& rule, const KvBudget& budget);

// Groups of heads (single heads, or layers), best first: as many full as fit while the others have `bounded_rule`, up
// to the first that does not; then FitWindows over those. Returns the number of full groups. A full head of a layer
// with its own window costs that window.
Result<int64_t> FitFullGroups(HeadPlan& plan, const std::vector<std::vector<size_t>>& groups,
                              const HeadRule& bounded_rule, const KvBudget& budget);

// A page more to each group of heads that have windows, in the order given, where it fits for all heads of the group.
// Whether any got one.
bool WidenByPages(HeadPlan& plan, const std::vector<std::vector<size_t>>& groups, const KvBudget& budget);

// What a budget came to, for a plan's notes: "5.42 MB of 67.11 MB at 8192 tokens (ratio 0.081, asked 0.1)".
std::string DescribeBudget(const HeadPlan& plan, const KvBudget& budget);

}  // namespace headwise

#endif  // HEADWISE_PLANNER_BUDGET_H_
