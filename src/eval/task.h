// Evaluation tasks: each makes its cases, runs them under every plan and scores them. A new one is a file in eval/tasks
// with one TaskMethod, a row in task_registry.cc and a CMake line; the rest (plans, equal bytes, folder, resuming,
// intervals, report) is common to all.
#ifndef HEADWISE_EVAL_TASK_H_
#define HEADWISE_EVAL_TASK_H_

#include <headwise/engine.h>
#include <headwise/status.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/named_options.h"
#include "engine/prompt.h"
#include "eval/run_data.h"

namespace headwise {

class TaskRun;  // eval/task_run.h

class Task {
 public:
  virtual ~Task() = default;
  // Tokens by which cases are grouped, ascending. Budgets of KV bytes hold at these.
  virtual const std::vector<int64_t>& lengths() const = 0;
  // What decides the results besides model, plans and options: files, by their hash.
  virtual Json Identity() const { return Json::object(); }
  // How many results a whole run has for one plan.
  virtual int64_t NumResults() const = 0;
  // Prompts and right answers, for people; a task without questions has none.
  virtual std::vector<CaseText> Cases() const { return {}; }
  // What it compares the plans with and is no plan itself: computed in another way. The Subject of such a one has no
  // plans, and by that the task knows it.
  virtual std::vector<PlanInfo> References() const { return {}; }
  // Runs what `run` does not have yet and adds it, result by result.
  virtual Status Run(TaskRun& run) = 0;
};

struct TaskInput {
  Engine& engine;
  NamedOptions options;
  Bos bos = Bos::kAuto;
};

struct TaskOption {
  std::string_view name;
  std::string_view help;
};

struct TaskMethod {
  std::string_view name;
  std::string_view title;        // of its section in a report
  std::string_view description;  // one line, for help texts
  std::vector<TaskOption> options = {};
  std::vector<MetricInfo> metrics = {};  // the first is the one that summaries show
  // Reads the options, and makes every case, so that bad input is found before a model runs.
  Result<std::unique_ptr<Task>> (*make)(const TaskInput&) = nullptr;
};

std::span<const TaskMethod> TaskMethods();
// Null for an unknown name.
const TaskMethod* FindTask(std::string_view name);

// Options that several tasks share.
inline constexpr TaskOption kLengthsOption = {"lengths", "Tokens of the cases, rising: 4096,8192"};
inline constexpr TaskOption kCasesOption = {"num-cases", "Cases per length"};
inline constexpr TaskOption kSeedOption = {"seed", "Seed of everything that is drawn"};
// Not only speed: rows of a step round alike, and other rows are other steps.
inline constexpr TaskOption kBatchOption = {"batch", "Cases at a time; may change answers (docs/evaluation.md)"};
inline constexpr int64_t kMaxBatch = 4096;
inline constexpr TaskOption kMaxNewTokensOption = {"max-new-tokens", "Longest answer"};
inline constexpr TaskOption kHaystackOption = {"text", "UTF-8 file for the text around; without it text is generated"};

// "lengths": ascending, each from `least` to 2^28.
Result<std::vector<int64_t>> ReadLengths(const NamedOptions& options, std::vector<int64_t> otherwise, int64_t least);

}  // namespace headwise

#endif  // HEADWISE_EVAL_TASK_H_
