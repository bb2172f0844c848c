// The rows of the task table, one per task.
#ifndef HEADWISE_EVAL_TASKS_TASKS_H_
#define HEADWISE_EVAL_TASKS_TASKS_H_

#include "eval/task.h"

namespace headwise {

extern const TaskMethod kNeedleTask;
extern const TaskMethod kPasskeyTask;
extern const TaskMethod kLinesTask;
extern const TaskMethod kStreamTask;
extern const TaskMethod kVariablesTask;
extern const TaskMethod kWordsTask;
extern const TaskMethod kPplTask;
extern const TaskMethod kFidelityTask;
extern const TaskMethod kDocsTask;
extern const TaskMethod kChoiceTask;
extern const TaskMethod kCostTask;

}  // namespace headwise

#endif  // HEADWISE_EVAL_TASKS_TASKS_H_
