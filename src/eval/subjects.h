// The plans that an evaluation compares: files as they are, or re-planned to a share of the dense plan's KV bytes at
// every length.
#ifndef HEADWISE_EVAL_SUBJECTS_H_
#define HEADWISE_EVAL_SUBJECTS_H_

#include <headwise/engine.h>
#include <headwise/head_plan.h>
#include <headwise/status.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/read_plan.h"
#include "eval/task_run.h"
#include "planner/planner.h"

namespace headwise {

// A plan as it was given.
struct GivenPlan {
  std::string name;              // kFullPlan, or what reports call it
  std::string path;              // opens error messages
  std::optional<HeadPlan> plan;  // of a file, whatever it is called; none: every head full
};

// What planners know of the engine's model; options and files are the caller's.
PlannerInput PlannerInputFor(const Engine& engine);

// Files by path, or kFullPlan. Named after the file without its ending; after the path where two would be called
// the same, or one like kFullPlan: the word is reserved, no file is. Errors: a file that is no plan or one for another
// model; the same plan twice. Plans made on other weights of this shape are only warned of.
Result<std::vector<GivenPlan>> ReadPlans(std::span<const std::string> paths, const Engine& engine);

// Without ratios every plan as it is. With ratios every plan but the full one is made anew (RefitPlan) for each ratio,
// at each of `lengths`, and named "duo@0.25"; the full plan stays as it is. Files are named,
// one content to a file, but not written. Errors:
// a method that cannot be refitted; a ratio that is out of range, or too small for the plan.
Result<std::vector<Subject>> MakeSubjects(std::span<const GivenPlan> plans, std::span<const double> kv_ratios,
                                          std::span<const int64_t> lengths, const Engine& engine);

}  // namespace headwise

#endif  // HEADWISE_EVAL_SUBJECTS_H_
