// GET /v1/models and GET /v1/models/{id}.
#include <utility>

#include "server/api_server.h"
#include "server/openai_response.h"

namespace headwise {
namespace {

ApiJson ModelJson(const ServedModel& model) {
  const ChatFormat* format = model.chat_format();
  return {{"id", model.name()},
          {"object", "model"},
          {"created", model.created()},
          {"owned_by", "headwise"},
          // vLLM's name for it.
          {"max_model_len", model.max_context()},
          {"headwise",
           {{"chat_format", format != nullptr ? ApiJson(std::string(format->name())) : ApiJson()},
            {"chat_error", format != nullptr ? ApiJson() : ApiJson(model.chat_status().message())},
            {"default_plan", model.default_plan()},
            {"arithmetic", model.fingerprint()}}}};
}

}  // namespace

void AddModelEndpoints(Router& router, const EndpointParts& parts) {
  router.Add("GET", "/v1/models", Immediate([parts](const HttpRequest&, const std::string&) -> ApiResult<HttpResponse> {
               ApiJson list = {{"object", "list"}, {"data", ApiJson::array()}};
               for (const auto& model : parts.host.models()) list["data"].push_back(ModelJson(*model));
               return HttpResponse{.body = ToText(list)};
             }));
  router.Add("GET", "/v1/models/*",
             Immediate([parts](const HttpRequest&, const std::string& id) -> ApiResult<HttpResponse> {
               HW_ASSIGN_OR_RETURN(const ServedModel* model, parts.host.Find(id));
               return HttpResponse{.body = ToText(ModelJson(*model))};
             }));
}

}  // namespace headwise
