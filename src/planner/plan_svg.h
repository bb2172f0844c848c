// A plan as a picture that any browser opens: one cell per head, shaded by its score, or by what it keeps where the
// plan has no scores. Nothing is loaded from elsewhere; colours follow the reader's light or dark theme.
#ifndef HEADWISE_PLANNER_PLAN_SVG_H_
#define HEADWISE_PLANNER_PLAN_SVG_H_

#include <headwise/head_plan.h>

#include <string>

namespace headwise {

std::string PlanSvg(const HeadPlan& plan);

}  // namespace headwise

#endif  // HEADWISE_PLANNER_PLAN_SVG_H_
