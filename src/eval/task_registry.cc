// The table of evaluation tasks.
#include <algorithm>
#include <utility>

#include "eval/tasks/tasks.h"

namespace headwise {

std::span<const TaskMethod> TaskMethods() {
  static const std::vector<TaskMethod> kTasks = {kNeedleTask,    kPasskeyTask, kLinesTask, kStreamTask,
                                                 kVariablesTask, kWordsTask,   kPplTask,   kFidelityTask,
                                                 kDocsTask,      kChoiceTask,  kCostTask};
  return kTasks;
}

const TaskMethod* FindTask(std::string_view name) {
  const auto tasks = TaskMethods();
  const auto row = std::ranges::find(tasks, name, &TaskMethod::name);
  return row == tasks.end() ? nullptr : &*row;
}

Result<std::vector<int64_t>> ReadLengths(const NamedOptions& options, std::vector<int64_t> otherwise, int64_t least) {
  return options.RisingIntsOr("lengths", std::move(otherwise), least, int64_t{1} << 28);
}

}  // namespace headwise
