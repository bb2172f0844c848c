// The table of planners.
#include <fmt/format.h>

#include <algorithm>

#include "base/cpu_info.h"
#include "planner/base_plan.h"
#include "planner/budget.h"
#include "planner/methods.h"

namespace headwise {

std::span<const PlannerMethod> PlannerMethods() {
  static const std::vector<PlannerMethod> kMethods = {
      kDuoMethod,     kZigzagMethod,    kRazorMethod,     kMoaMethod,      kProfileMethod, kStreamingMethod,
      kUniformMethod, kRandomMethod,    kManualMethod,    kH2oMethod,      kFastGenMethod, kTovaMethod,
      kSnapKvMethod,  kPyramidKvMethod, kAdaKvMethod,     kKnormMethod,    kKeyDiffMethod, kExpectedMethod,
      kQuestMethod,   kInfLlmMethod,    kImportDuoMethod, kImportMoaMethod};
  return kMethods;
}

Result<HeadPlan> MakePlan(std::string_view method, const PlannerInput& input) {
  std::string known;
  for (const PlannerMethod& row : PlannerMethods()) {
    if (row.name != method) {
      known += fmt::format("{}{}", known.empty() ? "" : ", ", row.name);
      continue;
    }
    HW_RETURN_IF_ERROR(input.options.CheckKnown(fmt::format("plan {}", method), row.options));
    HW_RETURN_IF_ERROR(CheckNumThreads(input.num_threads));
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

Result<HeadPlan> RefitPlan(const HeadPlan& earlier, const PlannerInput& input, const std::string& origin) {
  HW_RETURN_IF_ERROR(CheckPlanFits(earlier, input.shape, origin));
  const auto methods = PlannerMethods();
  const auto row = std::ranges::find(methods, earlier.method, &PlannerMethod::name);
  if (row == methods.end() || row->refit.make == nullptr) {
    std::string able;
    for (const PlannerMethod& method : methods) {
      if (method.refit.make != nullptr) able += fmt::format("{}{}", able.empty() ? "" : ", ", method.name);
    }
    return Status::InvalidInput(
        fmt::format("{}: a plan of method \"{}\" cannot be made for another budget, expected "
                    "one of: {}",
                    origin, earlier.method, able));
  }
  PlannerInput again = input;
  HW_ASSIGN_OR_RETURN(again.options, NamedOptions::FromJson(earlier.parameters_json, origin + ": parameters"));
  for (const std::string_view name : row->refit.replaced) again.options = again.options.Without(std::string(name));
  for (const std::string_view option : kBudgetOptions) {
    const std::string name(option);
    again.options = again.options.Without(name);
    if (input.options.Has(name)) again.options = again.options.With(name, input.options.StringOr(name, ""));
  }
  HW_ASSIGN_OR_RETURN(const std::optional<KvBudget> budget, BudgetFromOptions(again));
  if (!budget) return Status::InvalidInput("found no KV budget, expected --kv-ratio and --at, or --kv-bytes-at");
  auto made = row->refit.make(again, earlier);
  if (!made.ok()) return std::move(made).status().Annotate(origin);
  HeadPlan plan = *std::move(made);
  plan.shape = input.shape;
  plan.method = earlier.method;
  plan.parameters_json = again.options.ToJson();
  plan.source_hash = earlier.source_hash;
  plan.data_hash = earlier.data_hash;
  plan.seed = earlier.seed;
  plan.scores = earlier.scores;
  // What was measured is still so; a plan over a base has noted how that was made this time.
  if (plan.report_json == HeadPlan().report_json) plan.report_json = earlier.report_json;
  HW_RETURN_IF_ERROR(ForgetMeasuredLoss(plan));
  HW_RETURN_IF_ERROR(ValidatePlan(plan, origin));
  return plan;
}

}  // namespace headwise
