// MoA's profile [moa §3-4]: what each elastic rule would cost each head, predicted from the influence of attention
// entries on the loss of the answer that the dense model itself gave. The choice of rules is rule_choice.h; data and
// validation are moa_method.cc.
#ifndef HEADWISE_PLANNER_MOA_H_
#define HEADWISE_PLANNER_MOA_H_

#include <headwise/head_plan.h>

#include <cstdint>
#include <span>
#include <vector>

#include "data/token_samples.h"
#include "grad/grad_decoder.h"
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

// What a text's influence says of every rule: [L * Hkv * rules], the loss by which the answer gets worse when the KV
// head's query heads are masked so [moa §4.1 eq.4], summed over their blocks. `loss` is the dense model's.
struct SampleInfluence {
  double loss = 0;
  std::vector<double> rule_losses;
};
SampleInfluence ProfileSample(GradDecoder<float>& decoder, const TokenSample& sample, std::span<const HeadRule> rules);

// The influence that a rule hides: distances of at least its window. `distances` as Influence::By::kDistance, of one or
// several query heads; of a block of distances that the window's edge cuts, the hidden share.
double HiddenLoss(std::span<const double> distances, const ResolvedRule& rule);

// Rules for every KV head from a choice among `rules`; a rule that is full at any length becomes a full head.
HeadPlan PlanOfChoice(const ModelShape& shape, std::span<const HeadRule> rules, const RuleChoice& choice);

// Spends what the programme left of a budget: widens the rules, layer by layer and rule by rule (a layer keeps as many
// different rules as it had), by as many tokens as still fit.
void WidenToBudget(HeadPlan& plan, const KvBudget& budget);

}  // namespace headwise

#endif  // HEADWISE_PLANNER_MOA_H_
