// Planners: each makes a head plan for a model. A new one is a file with a function, and one row in registry.cc.
#ifndef HEADWISE_PLANNER_PLANNER_H_
#define HEADWISE_PLANNER_PLANNER_H_

#include <headwise/head_plan.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/ops.h"

namespace headwise {

// A method's options as given on a command line: names without dashes, values as text. Every getter's error names the
// option, what was found and what was expected.
class PlannerOptions {
 public:
  PlannerOptions() = default;
  explicit PlannerOptions(std::map<std::string, std::string> values) : values_(std::move(values)) {}

  bool Has(const std::string& name) const { return values_.count(name) > 0; }
  Result<std::string> Required(const std::string& name) const;
  std::string StringOr(const std::string& name, const std::string& otherwise) const;
  Result<int64_t> IntOr(const std::string& name, int64_t otherwise, int64_t lowest, int64_t highest) const;
  Result<double> DoubleOr(const std::string& name, double otherwise, double lowest, double highest) const;
  // Options that are not among `known` are refused: one that is ignored silently is worse than an error.
  Status CheckKnown(std::string_view method, std::span<const std::string_view> known) const;
  // The same without one of them.
  PlannerOptions Without(const std::string& name) const;
  // The same with one set.
  PlannerOptions With(const std::string& name, const std::string& value) const;
  // All of them as a JSON object of strings, for the plan's provenance.
  std::string ToJson() const;

 private:
  std::map<std::string, std::string> values_;
};

struct PlannerInput {
  ModelShape shape;                        // of the model the plan is for
  std::optional<std::string> source_hash;  // of that model
  PlannerOptions options;
  int64_t model_window = kNoLimit;  // the model's own sliding window, tokens
  // For methods that run the model:
  std::string model;       // its folder
  int num_threads = 0;     // 0: one per core
  std::string checkpoint;  // file for unfinished work, written every minute; empty: none is kept
  enum class Resume { kNo, kYes } resume = Resume::kNo;  // go on from the checkpoint
  // Asked after every step of long work: true ends it with kCancelled, its checkpoint written. Empty: never.
  std::function<bool()> should_stop;
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
};

std::span<const PlannerMethod> PlannerMethods();

// Runs one method: checks its options, makes the plan, writes provenance into it, validates it against the shape.
Result<HeadPlan> MakePlan(std::string_view method, const PlannerInput& input);

// sink and recent from options "sink", "recent", "positions" (text, cache), "from" (first_token, end_of_prompt),
// "compensate" (true, false).
Result<HeadRule> StreamRuleFromOptions(const PlannerOptions& options, int64_t default_sink, int64_t default_recent);

}  // namespace headwise

#endif  // HEADWISE_PLANNER_PLANNER_H_
