// A task under way: the engine, the plans that are compared, what is finished. Every result is on disk as soon as it is
// added.
#ifndef HEADWISE_EVAL_TASK_RUN_H_
#define HEADWISE_EVAL_TASK_RUN_H_

#include <headwise/engine.h>
#include <headwise/status.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "base/progress.h"
#include "eval/run_data.h"
#include "eval/run_folder.h"

namespace headwise {

// One of the plans that are compared.
struct Subject {
  PlanInfo info;
  std::map<int64_t, std::shared_ptr<const HeadPlan>> plans;  // by length; 0: any length. Null: every head full

  // Requires: a plan for this length.
  const std::shared_ptr<const HeadPlan>& At(int64_t length) const;
};

class TaskRun {
 public:
  struct Options {
    Engine* engine = nullptr;
    std::span<const Subject> subjects;
    RunFolder* folder = nullptr;  // null: results are kept in memory alone
    int64_t num_results = 0;      // of a whole run, over all plans; for the progress bar
    std::string label;
    std::function<bool()> should_stop = {};  // asked after every result: true ends the run with kCancelled
    ProgressLine* progress = nullptr;        // null: nothing is shown
  };
  explicit TaskRun(const Options& options);

  Engine& engine() const { return *engine_; }
  std::span<const Subject> subjects() const { return subjects_; }
  ProgressLine* progress_line() const { return progress_line_; }  // for bars of single results; may be null

  // Whether an earlier run or this one has the result.
  bool Has(const Subject& subject, int64_t length, int64_t case_idx, int64_t question_idx) const;
  // `result` without its plan's name.
  Status Add(const Subject& subject, CaseResult result);
  std::vector<CaseResult> TakeResults() { return std::move(results_); }

 private:
  using Key = std::tuple<std::string, int64_t, int64_t, int64_t>;

  Engine* engine_;
  std::span<const Subject> subjects_;
  RunFolder* folder_;
  std::vector<CaseResult> results_;
  std::set<Key> done_;
  std::function<bool()> should_stop_;
  ProgressLine* progress_line_;
  ProgressBar progress_;
};

}  // namespace headwise

#endif  // HEADWISE_EVAL_TASK_RUN_H_
