// One rule per KV head out of a list, by mixed-integer programming: MoA's choice of elastic rules [moa §4.2 eq.5,
// §D.2]. The least predicted loss under limits on cost (KV bytes, density) with few distinct rules per layer, and the
// Pareto set over several profiled lengths. CBC solves the programmes. This file knows nothing of where losses and
// costs come from, nor of how one choice of the set is picked at a longer length.
#ifndef HEADWISE_PLANNER_RULE_CHOICE_H_
#define HEADWISE_PLANNER_RULE_CHOICE_H_

#include <headwise/status.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace headwise {

// A table of values holds one number per head and rule: index (layer * heads_per_layer + head) * num_rules + rule.
// A choice's loss (cost) is the sum over all heads of the value of the head's rule.
struct RuleChoiceProblem {
  int64_t num_layers = 0;
  int64_t heads_per_layer = 0;  // KV heads
  int64_t num_rules = 0;
  std::vector<std::vector<double>> losses;  // [num_lengths][heads * num_rules], any sign
  // [num_limits][heads * num_rules]. Best in whole units (bytes, tokens), which sum exactly: fractions whose sum is a
  // limit but for rounding are over it, and ruling such choices out one by one is slow.
  std::vector<std::vector<double>> costs;
  std::vector<double> cost_limits;  // [num_limits] upper bound of the summed cost; +infinity: no limit
  int64_t max_rules_per_layer = 2;
  // A choice whose loss is within this share of the least one will do. Proving the last digits is most of the work:
  // losses that are estimates anyway do not deserve it.
  double relative_gap = 1e-9;
};

struct RuleChoice {
  std::vector<int64_t> rule_of_head;  // [heads], layer-major
  std::vector<double> losses;         // [num_lengths]
  std::vector<double> costs;          // [num_limits]
};

// The choice of least loss at length `length_idx`. `loss_limits` is empty or has one upper bound per length (+infinity:
// none). The sums of the returned choice never exceed a limit, not even by a rounding error; its loss is the least one
// to about 1e-6 of the largest loss of one head, or to relative_gap. Deterministic. Needs: tables of the stated sizes,
// max_rules_per_layer >= 1. InvalidInput: a value that is not a number of size up to 1e100 (names layer, head and
// rule); limits that no choice meets (names the one that cannot be met even alone, what was asked and the least
// possible).
Result<RuleChoice> MinimiseLoss(const RuleChoiceProblem& problem, int64_t length_idx,
                                std::span<const double> loss_limits);

// An error if some cost limit cannot be met, whatever the losses: to be asked before they are measured. It may pass
// where limits only contradict each other. Errors as above.
Status CheckCostLimits(const RuleChoiceProblem& problem);

// Pareto-optimal choices over the lengths by the epsilon-constraint method [moa §D.2.2]: the optima of the single
// lengths span a range of loss for each length; for each length as the objective, the other ranges are cut into
// `num_intervals` equal parts and the programme is solved for every combination of their upper ends. No returned choice
// is better than another everywhere, and none can be bettered by a choice outside the set; a sample of the whole front.
// By rising loss at the first length, then the second, and so on. Losses closer than a few 1e-9 of their spread count
// as equal here; cost limits hold exactly. Errors as above.
// `should_stop` is asked ahead of each programme: kCancelled then.
Result<std::vector<RuleChoice>> ParetoSet(const RuleChoiceProblem& problem, int64_t num_intervals,
                                          const std::function<bool()>& should_stop = {});

}  // namespace headwise

#endif  // HEADWISE_PLANNER_RULE_CHOICE_H_
