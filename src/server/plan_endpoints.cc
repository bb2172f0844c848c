// GET and POST /v1/plans, DELETE /v1/plans/{name}, GET /v1/plans/{name}/heads: the head plans that requests choose
// from.
#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <utility>

#include "engine/read_plan.h"
#include "kv/plan_bytes.h"
#include "kv/plan_view.h"
#include "model/model_config.h"
#include "server/api_server.h"
#include "server/json_fields.h"
#include "server/openai_response.h"
#include "server/plan_heads.h"

namespace headwise {
namespace {

// What the plan keeps, beside every head full.
ApiJson PlanJson(const ServedModel& model, const NamedPlan& named) {
  const ModelConfig& config = model.engine().config();
  const HeadPlan dense = HeadPlan::Dense(config.shape());
  const HeadPlan& plan = named.plan == nullptr ? dense : *named.plan;
  int64_t num_full = 0;
  std::map<std::string, int64_t> heads_of;
  for (const HeadRule& rule : plan.rules) {
    num_full += rule.kind == HeadRule::Kind::kFull ? 1 : 0;
    ++heads_of[DescribeRule(rule)];
  }
  ApiJson rules = ApiJson::array();
  for (const auto& [rule, num_heads] : heads_of) rules.push_back({{"rule", rule}, {"heads", num_heads}});
  const LayerWindows windows = LayerWindowsOf(config);
  const int64_t tokens = model.max_context();
  const int64_t dense_bytes = PlanBytesAt(dense, tokens, windows);
  return {{"id", named.name},
          {"object", "plan"},
          {"model", model.name()},
          {"is_default", model.default_plan() == named.name},
          {"method", named.plan == nullptr ? std::string(kFullPlan) : plan.method},
          {"full_heads", num_full},
          {"bounded_heads", static_cast<int64_t>(plan.rules.size()) - num_full},
          {"rules", std::move(rules)},
          {"map", FormatPlanMap(plan)},
          // Of an f16 cache, to compare plans by.
          {"at_max_context",
           {{"tokens", tokens}, {"kv_bytes", PlanBytesAt(plan, tokens, windows)}, {"kv_bytes_full", dense_bytes}}},
          {"notes", plan.notes}};
}

// Who may bring plans: what they say is trusted no more than a request, but they stay and others see them.
std::optional<ApiError> CheckMayChange(const ApiOptions& options) {
  if (!options.api_keys.empty() || options.is_loopback) return std::nullopt;
  return ApiError{.status = 403,
                  .message =
                      "plans: everybody can reach this server, expected --api-key or a loopback --host before "
                      "plans are changed",
                  .param = {},
                  .code = "plans_are_fixed"};
}

// A file of --plan-dir, by its path in there.
ApiResult<HeadPlan> ReadPlanIn(const std::string& folder, const std::string& path) {
  if (folder.empty()) {
    return ApiError{.status = 403,
                    .message =
                        "path: this server loads no files, expected \"plan\" with the plan itself (--plan-dir "
                        "names a folder to load from)",
                    .param = "path",
                    .code = "plan_files_are_closed"};
  }
  std::error_code error;
  const std::filesystem::path root = std::filesystem::canonical(folder, error);
  const std::filesystem::path file = error ? std::filesystem::path() : std::filesystem::canonical(root / path, error);
  const std::filesystem::path inside = file.lexically_relative(root);
  // Links are followed first: one may not lead out.
  const bool is_inside = !error && !inside.empty() && *inside.begin() != "..";
  if (!is_inside) {
    return InvalidField("path", fmt::format("path: \"{}\" is no file in --plan-dir, expected one", path));
  }
  Result<HeadPlan> plan = ReadHeadPlan(file.string());
  if (!plan.ok()) return InvalidField("path", plan.status().message());
  return *std::move(plan);
}

struct PlanRequest {
  std::string name;
  std::string model;  // empty: every one that it fits
  HeadPlan plan;
};

ApiResult<PlanRequest> ReadPlanRequest(const EndpointParts& parts, const HttpRequest& http) {
  HW_ASSIGN_OR_RETURN(const Json json, ParseRequestBody(http.body));
  JsonFields fields(json);
  PlanRequest request;
  const auto name = fields.String("name");
  request.model = fields.String("model").value_or("");
  const Json* plan = fields.Object("plan");
  const auto path = fields.String("path");
  if (!name) fields.Fail("name", "is missing, expected a name for the plan");
  if ((plan != nullptr) == path.has_value()) fields.Fail("plan", "expected one of plan and path");
  if (auto error = fields.Finish()) return *std::move(error);
  request.name = *name;
  if (path) {
    HW_ASSIGN_OR_RETURN(request.plan, ReadPlanIn(parts.options.plan_dir, *path));
    return request;
  }
  Result<HeadPlan> parsed = ParseHeadPlan(plan->dump(), "plan");
  if (!parsed.ok()) return InvalidField("plan", parsed.status().message());
  request.plan = *std::move(parsed);
  return request;
}

ApiResult<HttpResponse> AddPlan(const EndpointParts& parts, const HttpRequest& http) {
  if (auto error = CheckMayChange(parts.options)) return *std::move(error);
  HW_ASSIGN_OR_RETURN(const PlanRequest request, ReadPlanRequest(parts, http));
  ServedModel* added_to = nullptr;
  std::optional<ApiError> first_error;
  if (!request.model.empty()) {
    HW_ASSIGN_OR_RETURN(ServedModel * model, parts.host.Find(request.model));
    first_error = model->AddPlan(request.name, request.plan, "plan");
    added_to = model;
    if (first_error) return *first_error;
  }
  for (const auto& model : parts.host.models()) {
    if (!request.model.empty()) break;
    auto error = model->AddPlan(request.name, request.plan, "plan");
    if (!error && added_to == nullptr) added_to = model.get();
    if (error && !first_error) first_error = std::move(error);
  }
  if (added_to == nullptr) return *first_error;
  HW_ASSIGN_OR_RETURN(const NamedPlan plan, added_to->FindPlan(request.name));
  return HttpResponse{.status = 201, .body = ToText(PlanJson(*added_to, plan))};
}

ApiResult<HttpResponse> RemovePlan(const EndpointParts& parts, const std::string& name) {
  if (auto error = CheckMayChange(parts.options)) return *std::move(error);
  bool is_removed = false;
  std::optional<ApiError> first_error;
  for (const auto& model : parts.host.models()) {
    auto error = model->RemovePlan(name);
    is_removed |= !error;
    if (error && !first_error) first_error = std::move(error);
  }
  if (!is_removed) return *first_error;
  return HttpResponse{.body = ToText({{"id", name}, {"object", "plan"}, {"deleted", true}})};
}

}  // namespace

void AddPlanEndpoints(Router& router, const EndpointParts& parts) {
  router.Add("GET", "/v1/plans", Immediate([parts](const HttpRequest&, const std::string&) -> ApiResult<HttpResponse> {
               ApiJson list = {{"object", "list"}, {"data", ApiJson::array()}};
               for (const auto& model : parts.host.models()) {
                 for (const NamedPlan& plan : model->ListPlans()) list["data"].push_back(PlanJson(*model, plan));
               }
               return HttpResponse{.body = ToText(list)};
             }));
  router.Add("POST", "/v1/plans",
             Immediate([parts](const HttpRequest& request, const std::string&) { return AddPlan(parts, request); }));
  // Pages are measured once: a backend is made for it.
  std::map<const ServedModel*, HeadPages> pages_of;
  for (const auto& model : parts.host.models()) pages_of[model.get()] = HeadPagesOf(*model);
  router.Add("GET", "/v1/plans/*",
             Immediate([parts, pages_of = std::move(pages_of)](const HttpRequest& request, const std::string& rest) {
               return AnswerHeads(parts.host, pages_of, request, rest);
             }));
  router.Add("DELETE", "/v1/plans/*",
             Immediate([parts](const HttpRequest&, const std::string& name) { return RemovePlan(parts, name); }));
}

}  // namespace headwise
