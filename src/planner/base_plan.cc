#include "planner/base_plan.h"

#include <string>
#include <utility>

#include "base/json.h"
#include "engine/measured_loss.h"

namespace headwise {
namespace {

constexpr const char* kBase = "base";
constexpr const char* kTokens = "tokens";

Result<Json> ReportOf(const HeadPlan& plan) {
  HW_ASSIGN_OR_RETURN(Json report, ParseJson(plan.report_json, "report"));
  HW_RETURN_IF_ERROR(JsonObject::Of(report, "report").status());
  return report;
}

}  // namespace

Status NoteBase(HeadPlan& plan) {
  HW_ASSIGN_OR_RETURN(Json report, ReportOf(plan));
  HW_ASSIGN_OR_RETURN(Json parameters, ParseJson(plan.parameters_json, "parameters"));
  Json base = {{"method", plan.method}, {"parameters", std::move(parameters)}};
  if (plan.tokens != TokenLists{}) {
    base[kTokens] = {{"special", plan.tokens.special}, {"punctuation", plan.tokens.punctuation}};
  }
  // It may have one itself.
  if (report.contains(kBase)) base[kBase] = std::move(report[kBase]);
  report[kBase] = std::move(base);
  plan.report_json = report.dump();
  return ForgetMeasuredLoss(plan);
}

Result<HeadPlan> BaseOf(const HeadPlan& plan) {
  HW_ASSIGN_OR_RETURN(Json report, ReportOf(plan));
  const std::string origin = "report: \"base\"";
  if (!report.contains(kBase)) {
    return Status::InvalidInput(
        "the report does not say what made the plan's base, as those of older versions do not; make it anew");
  }
  const Json base = std::move(report[kBase]);
  report.erase(kBase);
  HW_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(base, origin));
  HeadPlan made = plan;
  HW_ASSIGN_OR_RETURN(made.method, object.String("method"));
  HW_ASSIGN_OR_RETURN(const JsonObject parameters, object.Object("parameters"));
  made.parameters_json = parameters.json().dump();
  if (object.Has(kTokens)) {
    HW_ASSIGN_OR_RETURN(const JsonObject tokens, object.Object(kTokens));
    const auto read = [&](const char* key, std::vector<int32_t>& ids) -> Status {
      HW_ASSIGN_OR_RETURN(const std::vector<double> numbers, tokens.Doubles(key));
      ids.assign(numbers.begin(), numbers.end());
      return Status::Ok();
    };
    HW_RETURN_IF_ERROR(read("special", made.tokens.special));
    HW_RETURN_IF_ERROR(read("punctuation", made.tokens.punctuation));
  }
  if (object.Has(kBase)) report[kBase] = object.At(kBase);
  made.report_json = report.dump();
  return made;
}

Status ForgetMeasuredLoss(HeadPlan& plan) {
  HW_ASSIGN_OR_RETURN(Json report, ReportOf(plan));
  report.erase(kMeasuredLossKey);
  plan.report_json = report.dump();
  return Status::Ok();
}

}  // namespace headwise
