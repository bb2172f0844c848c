// Plans made of another plan, their base: what they carry of it, so that both can be made for another budget together.
#ifndef HEADWISE_PLANNER_BASE_PLAN_H_
#define HEADWISE_PLANNER_BASE_PLAN_H_

#include <headwise/head_plan.h>

namespace headwise {

// Notes in `plan`'s report how it was made, before another method gives its heads other rules and its file another
// method and parameters. Its scores and the rest of its report, but for a measured loss, stay as they are. An error: a
// report that is no object.
Status NoteBase(HeadPlan& plan);

// The plan that `plan` was made of, as RefitPlan takes it: method, parameters, tokens, scores and report; its rules are
// those of `plan`. An error if none is noted, as older versions did not.
Result<HeadPlan> BaseOf(const HeadPlan& plan);

// What was measured under other rules than the plan has come to have is no longer true of it.
Status ForgetMeasuredLoss(HeadPlan& plan);

}  // namespace headwise

#endif  // HEADWISE_PLANNER_BASE_PLAN_H_
