#include "planner/base_plan.h"

#include <string>
#include <utility>

#include "base/json.h"
#include "engine/measured_loss.h"
#include "kv/rule_json.h"

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
  report.erase(kMeasuredLossKey);  // as ForgetMeasuredLoss
  plan.report_json = report.dump();
  return Status::Ok();
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
    HW_ASSIGN_OR_RETURN(made.tokens, ParseTokenLists(object.At(kTokens), origin + ": \"tokens\""));
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
