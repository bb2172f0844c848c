// MoA's published form of a plan: {"alphas": [L][Hq], "betas": [L][Hq]}, a span alpha + beta * context per query head.
#ifndef HEADWISE_PLANNER_MOA_JSON_H_
#define HEADWISE_PLANNER_MOA_JSON_H_

#include <headwise/head_plan.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headwise {

// The narrowest elastic rule with a whole alpha that keeps, at every length, what each of several spans
// alpha + beta * context keeps; one of them where that is the widest at every length. Requires: as many alphas as
// betas, at least one.
HeadRule WidestRule(std::span<const double> alphas, std::span<const double> betas);

// Rules and notes for a model of `shape`. A KV head is read by its whole group, so it takes WidestRule of the group;
// the notes say how many heads that is a rule of its own for.
Result<HeadPlan> ParseMoaPlan(std::string_view text, const ModelShape& shape, const std::string& origin);

}  // namespace headwise

#endif  // HEADWISE_PLANNER_MOA_JSON_H_
