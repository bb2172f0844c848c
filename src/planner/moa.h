// MoA's rules [moa §3.2] and plans of them. What each would cost each head is moa_influence.h, the choice among them
// rule_choice.h; data and validation are moa_method.cc.
#ifndef HEADWISE_PLANNER_MOA_H_
#define HEADWISE_PLANNER_MOA_H_

#include <headwise/head_plan.h>

#include <cstdint>
#include <span>
#include <vector>

#include "planner/budget.h"
#include "planner/rule_choice.h"

namespace headwise {

// Sinks and spans are counted in blocks of 64 tokens; the first block is always read [moa §3.2].
inline constexpr int64_t kMoaBlock = 64;

// The grid alpha in {-1, 0, 1, 2, 3} x shortest / 2, beta in {0, 1/8, ..., 1}, without those that mean the
// same as an earlier one at every length of `lengths`.
std::vector<HeadRule> MoaRuleGrid(int64_t shortest, std::span<const int64_t> lengths);
// Spans that do not grow with the text, the search space without elasticity [moa table 5]: beta 0, alpha in eighths of
// the longest length, and the full rule.
std::vector<HeadRule> MoaStaticGrid(std::span<const int64_t> lengths);

// Rules for every KV head from a choice among `rules`; a rule that is full at any length becomes a full head.
HeadPlan PlanOfChoice(const ModelShape& shape, std::span<const HeadRule> rules, const RuleChoice& choice);

// Losses [heads * rules] at one length as the programme is to take them, where `kept` [heads * rules] says how many
// tokens of `length` the head keeps under the rule, and so for influences other than MoA's own. Two things are done,
// because few texts are profiled. A head that reads less never counts as better off than one that reads more: what an
// estimate holds of that is noise, and would buy spans for heads that need none. And a rule counts as the mean of all
// that keep up to `spacing` tokens less: the texts ask at depths as far apart as that, so that what lies between two of
// them, or beyond the last, looks as if nobody would ever ask for it. What keeps everything costs nothing.
void SmoothLosses(std::span<const double> kept, size_t num_rules, int64_t length, double spacing,
                  std::span<double> losses);

// Spends what the programme left of a budget: widens the rules, layer by layer and rule by rule (a layer keeps as many
// different rules as it had), by as many tokens as still fit.
void WidenToBudget(HeadPlan& plan, const KvBudget& budget);
// The same from the heads of the most influence to those of the least, by the mean of `influence` [L * Hkv] over the
// heads of a rule; a rule that can be full becomes full.
void WidenByInfluence(HeadPlan& plan, const KvBudget& budget, std::span<const double> influence);

}  // namespace headwise

#endif  // HEADWISE_PLANNER_MOA_H_
