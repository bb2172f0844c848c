// A planner from the name of a model to a plan in its file: what every program does around MakePlan.
#ifndef HEADWISE_PLANNER_PLAN_RUN_H_
#define HEADWISE_PLANNER_PLAN_RUN_H_

#include <headwise/head_plan.h>
#include <headwise/status.h>

#include <functional>
#include <string>
#include <string_view>

#include "planner/planner.h"

namespace headwise {

struct PlanRun {
  std::string method;  // PlannerMethod::name
  std::string model;   // a Hugging Face folder or a .gguf file; without weights where the method needs none
  NamedOptions options = {};
  // The plan file; unfinished work is kept in CheckpointPath(out). Empty: the plan is only returned, and no work kept.
  std::string out = {};
  int num_threads = 0;  // 0: one per core
  PlannerInput::Resume resume = PlannerInput::Resume::kNo;
  // As in PlannerInput.
  std::function<bool()> should_stop = {};
  ProgressLine* progress = nullptr;
  std::function<void(std::string_view)> on_warning = {};
};

// Where the work on the plan file `out` is kept until that is there.
std::string CheckpointPath(const std::string& out);

// That the file can be written is looked at first: methods that run a model may take hours.
Result<HeadPlan> RunPlanner(const PlanRun& run);

// RefitPlan for the model at this path; its weights are not read. `budget`: "kv-ratio" and "at", or "kv-bytes-at".
Result<HeadPlan> RefitPlanOf(const std::string& model, const HeadPlan& earlier, const NamedOptions& budget,
                             const std::string& origin);

}  // namespace headwise

#endif  // HEADWISE_PLANNER_PLAN_RUN_H_
