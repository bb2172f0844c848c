// A plan as a picture that any browser opens: one cell per head, shaded by its score, or by what it keeps where the
// plan has no scores. Nothing is loaded from elsewhere; colours follow the reader's light or dark theme.
#ifndef HEADWISE_KV_PLAN_SVG_H_
#define HEADWISE_KV_PLAN_SVG_H_

#include <headwise/head_plan.h>

#include <string>
#include <string_view>

namespace headwise {

enum class PlanSvgUse {
  kFile,    // stands alone, its style inside
  kInPage,  // part of an HTML page, which holds PlanSvgStyle() once and says what is shown
};

std::string PlanSvg(const HeadPlan& plan, PlanSvgUse use = PlanSvgUse::kFile);

// CSS that touches nothing outside such pictures.
std::string_view PlanSvgStyle();

}  // namespace headwise

#endif  // HEADWISE_KV_PLAN_SVG_H_
