// The table of planners.
#include <fmt/format.h>

#include "planner/methods.h"

namespace headwise {

std::span<const PlannerMethod> PlannerMethods() {
  static const std::vector<PlannerMethod> kMethods = {kDuoMethod,     kZigzagMethod,    kRazorMethod,    kMoaMethod,
                                                      kProfileMethod, kStreamingMethod, kUniformMethod,  kRandomMethod,
                                                      kManualMethod,  kImportDuoMethod, kImportMoaMethod};
  return kMethods;
}

Result<HeadPlan> MakePlan(std::string_view method, const PlannerInput& input) {
  std::string known;
  for (const PlannerMethod& row : PlannerMethods()) {
    if (row.name != method) {
      known += fmt::format("{}{}", known.empty() ? "" : ", ", row.name);
      continue;
    }
    HW_RETURN_IF_ERROR(input.options.CheckKnown(method, row.options));
    HW_ASSIGN_OR_RETURN(HeadPlan plan, row.make(input));
    plan.shape = input.shape;
    plan.method = method;
    plan.parameters_json = input.options.ToJson();
    if (!plan.method.starts_with("import-")) plan.source_hash = input.source_hash;
    HW_RETURN_IF_ERROR(ValidatePlan(plan, fmt::format("plan {}", method)));
    return plan;
  }
  return Status::InvalidInput(fmt::format("plan method \"{}\" is unknown, expected one of: {}", method, known));
}

}  // namespace headwise
