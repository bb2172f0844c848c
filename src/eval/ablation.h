// The papers' ablations on any model, one command each: plans that differ in one thing, made by the planners, and the
// tasks that show what it does. A new one is a row in ablation_table.cc.
#ifndef HEADWISE_EVAL_ABLATION_H_
#define HEADWISE_EVAL_ABLATION_H_

#include <headwise/engine.h>
#include <headwise/status.h>

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "eval/evaluation.h"

namespace headwise {

// What a user sets; every ablation reads some of it.
struct AblationInput {
  EngineOptions engine;
  std::string gates;       // a plan of duo, so that nothing is trained again
  std::string text;        // UTF-8 file: what perplexity is measured on
  double kv_ratio = 0.25;  // of the dense KV bytes, where plans are compared at equal bytes
  int64_t length = 4096;   // tokens of the cases
  int64_t num_cases = 20;
  std::string steps;  // of trainings; empty: the planner's own number
  std::string out;    // folder
  EvaluationOptions::Resume resume = EvaluationOptions::Resume::kNo;
  std::function<bool()> should_stop;  // as in PlannerInput and EvaluationOptions
  ProgressLine* progress = nullptr;   // the same
};

struct AblationVariant {
  std::string label;
  std::string_view method;  // of the planner registry
  std::map<std::string, std::string> options;
};

struct AblationTask {
  std::string_view task;  // of the task registry
  std::map<std::string, std::string> options;
};

struct Ablation {
  std::string_view name;
  std::string_view title;
  std::string_view description;  // one line, with the paper's table or figure
  bool needs_gates = false;
  bool needs_text = false;
  std::vector<AblationVariant> (*variants)(const AblationInput&) = nullptr;
  std::vector<AblationTask> (*tasks)(const AblationInput&) = nullptr;
};

std::span<const Ablation> Ablations();

// Makes the plans that are not in `out` yet, then runs each task on all of them and on the full plan, into out/<task>.
// Stopped at any time it goes on with Resume::kYes.
Result<std::vector<EvaluationOutcome>> RunAblation(Engine& engine, const Ablation& ablation,
                                                   const AblationInput& input);

}  // namespace headwise

#endif  // HEADWISE_EVAL_ABLATION_H_
