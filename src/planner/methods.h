// The rows of the planner table, one per method.
#ifndef HEADWISE_PLANNER_METHODS_H_
#define HEADWISE_PLANNER_METHODS_H_

#include "planner/planner.h"

namespace headwise {

extern const PlannerMethod kDuoMethod;
extern const PlannerMethod kZigzagMethod;
extern const PlannerMethod kRazorMethod;
extern const PlannerMethod kMoaMethod;
extern const PlannerMethod kProfileMethod;
extern const PlannerMethod kStreamingMethod;
extern const PlannerMethod kUniformMethod;
extern const PlannerMethod kRandomMethod;
extern const PlannerMethod kManualMethod;
extern const PlannerMethod kH2oMethod;
extern const PlannerMethod kFastGenMethod;
extern const PlannerMethod kTovaMethod;
extern const PlannerMethod kSnapKvMethod;
extern const PlannerMethod kPyramidKvMethod;
extern const PlannerMethod kAdaKvMethod;
extern const PlannerMethod kKnormMethod;
extern const PlannerMethod kKeyDiffMethod;
extern const PlannerMethod kExpectedMethod;
extern const PlannerMethod kQuestMethod;
extern const PlannerMethod kInfLlmMethod;
extern const PlannerMethod kImportDuoMethod;
extern const PlannerMethod kImportMoaMethod;

}  // namespace headwise

#endif  // HEADWISE_PLANNER_METHODS_H_
