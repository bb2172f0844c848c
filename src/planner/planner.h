// Planners: each makes a head plan for a model. A new one is a file with a function, and one row in registry.cc.
#ifndef HEADWISE_PLANNER_PLANNER_H_
#define HEADWISE_PLANNER_PLANNER_H_

#include <headwise/head_plan.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/named_options.h"
#include "base/progress.h"
#include "kv/layer_windows.h"

namespace headwise {

struct PlannerInput {
  ModelShape shape;                        // of the model the plan is for
  std::optional<std::string> source_hash;  // of that model
  NamedOptions options;
  LayerWindows windows = {};  // the model's own
  // For methods that run the model:
  std::string model;       // its folder
  int num_threads = 0;     // 0: one per core
  std::string checkpoint;  // file for unfinished work, written every minute; empty: none is kept
  enum class Resume { kNo, kYes } resume = Resume::kNo;  // go on from the checkpoint
  // Asked after every step of long work: true ends it with kCancelled, its checkpoint written if it keeps one. Empty:
  // never.
  std::function<bool()> should_stop;
  ProgressLine* progress = nullptr;                       // where long work shows how far it is; null: nowhere
  std::function<void(std::string_view)> on_warning = {};  // as in EngineOptions
};

struct PlannerMethod {
  std::string_view name;
  std::string_view description;                   // one line, for help texts
  std::vector<std::string_view> options;          // all it takes
  Result<HeadPlan> (*make)(const PlannerInput&);  // rules, scores, notes; the registry adds the provenance
  enum class Runs {
    kNothing,
    kModel,           // on threads
    kModelResumably,  // and with checkpoints: should_stop ends it with its work kept, resume goes on
  } runs = Runs::kNothing;
  // Rules for another budget from what an earlier plan of this method found: no model is run. input.options are those
  // of the earlier plan, without `replaced`, and a KV budget. Null: it cannot be done.
  struct Refit {
    Result<HeadPlan> (*make)(const PlannerInput& input, const HeadPlan& earlier) = nullptr;
    std::vector<std::string_view> replaced = {};  // options that say how much is kept: the budget stands in their place
  } refit = {};
};

std::span<const PlannerMethod> PlannerMethods();

// Runs one method: checks its options, makes the plan, writes provenance into it, validates it against the shape.
Result<HeadPlan> MakePlan(std::string_view method, const PlannerInput& input);

// The method's plan at another KV budget ("kv-ratio" and "at", or "kv-bytes-at", in input.options, and nothing else),
// from the scores or the profile that `earlier` carries. Errors: a method that has nothing to refit; a plan made
// without what it takes; a plan for another model. `origin` opens the messages.
Result<HeadPlan> RefitPlan(const HeadPlan& earlier, const PlannerInput& input, const std::string& origin);

// Whether `value`, which a plan's report has under `key`, is a number of tokens.
Status CheckReportedTokens(const char* key, double value);

// sink and recent from options "sink", "recent", "positions" (text, cache), "from" (first_token, end_of_prompt),
// "compensate" (true, false).
Result<HeadRule> StreamRuleFromOptions(const NamedOptions& options, int64_t default_sink, int64_t default_recent);

}  // namespace headwise

#endif  // HEADWISE_PLANNER_PLANNER_H_
