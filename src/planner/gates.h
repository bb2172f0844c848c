// From one importance per KV head to a plan: which heads stay full at a sparsity, above a threshold, or within a budget
// of bytes. Shared by every method that ranks heads.
#ifndef HEADWISE_PLANNER_GATES_H_
#define HEADWISE_PLANNER_GATES_H_

#include <headwise/head_plan.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "planner/planner.h"

namespace headwise {

// Heads by falling gate; ties go to the later layer, then the later head, so that the heads that stream at a sparsity
// are the first of a stable sort by rising gate [duo §2.3 leaves ties open].
std::vector<size_t> HeadsByGate(const std::vector<double>& gates);

// DuoAttention's deployed sizes [duo §3.1], which ZigZagAttention takes over [zigzag §3.1].
inline constexpr int64_t kDuoSink = 64;
inline constexpr int64_t kDuoRecent = 256;

// An error if it carries none.
Status RequireScores(const HeadPlan& plan);

// The options that PlanFromGates reads besides those of the stream rule: how many heads stay full.
inline constexpr std::string_view kSelectionOptions[] = {"sparsity", "threshold", "kv-ratio", "at", "kv-bytes-at"};

// Full where the gate says so, `bounded_rule` elsewhere. Exactly one of --sparsity X (share of bounded heads),
// --threshold T (bounded below it) and a budget may be given; none means --sparsity `default_sparsity`. The plan's
// scores are the gates; its notes say how sure the choice is: the gates on both sides of the cut.
Result<HeadPlan> PlanFromGates(const PlannerInput& input, const std::vector<double>& gates,
                               const HeadRule& bounded_rule, double default_sparsity);

// RefitPlan for methods whose scores are gates; `input` with the options of the stream rule, "from" being where it
// begins.
Result<HeadPlan> RefitGates(const PlannerInput& input, const HeadPlan& earlier);

}  // namespace headwise

#endif  // HEADWISE_PLANNER_GATES_H_
