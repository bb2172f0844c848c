// POST /v1/completions and POST /v1/chat/completions.
#include <utility>

#include "server/api_server.h"
#include "server/completion_job.h"
#include "server/openai_request.h"

namespace headwise {
namespace {

using Parse = ApiResult<ApiRequest> (*)(std::string_view body);

Router::Endpoint Completions(const EndpointParts& parts, Parse parse) {
  return [parts, parse](const HttpRequest& http, const std::string&, std::shared_ptr<HttpReply> reply) {
    ApiResult<ApiRequest> request = parse(http.body);
    if (!request.ok()) return reply->Send(ErrorResponse(request.status()));
    // A key says more reliably who asks than what he calls himself.
    if (parts.access.has_keys()) request->client = parts.access.ClientOf(http);
    const ApiResult<ServedModel*> model = parts.host.Find(request->model);
    if (!model.ok()) return reply->Send(ErrorResponse(model.status()));
    RunCompletionJob(*std::move(request), **model, parts.threads, std::move(reply));
  };
}

}  // namespace

void AddCompletionEndpoints(Router& router, const EndpointParts& parts) {
  router.Add("POST", "/v1/completions", Completions(parts, ParseCompletionRequest));
  router.Add("POST", "/v1/chat/completions", Completions(parts, ParseChatRequest));
}

}  // namespace headwise
