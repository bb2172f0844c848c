// One evaluation from its options to its folder: a task, the plans it compares, and what came of them.
#ifndef HEADWISE_EVAL_EVALUATION_H_
#define HEADWISE_EVAL_EVALUATION_H_

#include <headwise/engine.h>
#include <headwise/status.h>

#include <functional>
#include <string>
#include <vector>

#include "base/progress.h"
#include "eval/run_data.h"
#include "eval/subjects.h"
#include "eval/summary.h"
#include "eval/task.h"

namespace headwise {

struct EvaluationOptions {
  const TaskMethod* task = nullptr;
  NamedOptions task_options;
  std::string study;  // RunInfo::study
  Bos bos = Bos::kAuto;
  EngineOptions engine;           // that the engine was made with: part of what decides the results
  std::vector<GivenPlan> plans;   // at least one
  std::vector<double> kv_ratios;  // re-plan to these shares of the dense KV bytes; empty: plans as they are
  std::string out;                // folder; empty: results are kept in memory alone
  enum class Resume { kNo, kYes } resume = Resume::kNo;  // go on with the run in `out`
  std::function<bool()> should_stop;  // asked after every result: true ends the run with kCancelled. Empty: never
  ProgressLine* progress = nullptr;   // where it shows how far it is; null: nowhere
};

struct EvaluationOutcome {
  RunData run;
  Summary summary;
};

// Writes every result as it comes, and summary.json at the end. Requires: engine.has_tokenizer().
Result<EvaluationOutcome> Evaluate(Engine& engine, const EvaluationOptions& options);

}  // namespace headwise

#endif  // HEADWISE_EVAL_EVALUATION_H_
