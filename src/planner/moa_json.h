// MoA's published form of a plan: {"alphas": [L][Hq], "betas": [L][Hq]}, a span alpha + beta * context per query head.
#ifndef HEADWISE_PLANNER_MOA_JSON_H_
#define HEADWISE_PLANNER_MOA_JSON_H_

#include <headwise/head_plan.h>

#include <string>
#include <string_view>
#include <vector>

namespace headwise {

// Rules and notes for a model of `shape`. A KV head is read by its whole group, so it takes the widest span of the
// group: one of its rules where that is the widest at every length, else the largest alpha with the largest beta, which
// the notes say.
Result<HeadPlan> ParseMoaPlan(std::string_view text, const ModelShape& shape, const std::string& origin);

}  // namespace headwise

#endif  // HEADWISE_PLANNER_MOA_JSON_H_
