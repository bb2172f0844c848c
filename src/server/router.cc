#include "server/router.h"

#include <fmt/format.h>

#include <utility>

#include "server/api_error.h"

namespace headwise {

void Router::Add(std::string method, std::string path, Endpoint endpoint) {
  const bool takes_rest = path.ends_with("/*");
  if (takes_rest) path.pop_back();
  routes_.push_back({std::move(method), std::move(path), takes_rest, std::move(endpoint)});
}

void Router::Handle(const HttpRequest& request, std::shared_ptr<HttpReply> reply) const {
  std::string methods;
  for (const Route& route : routes_) {
    if (!route.Matches(request.path)) continue;
    if (route.method == request.method) {
      const std::string rest = route.takes_rest ? request.path.substr(route.path.size()) : std::string();
      return route.endpoint(request, rest, std::move(reply));
    }
    methods += route.method + ", ";
  }
  if (methods.empty()) {
    return reply->Send(
        ErrorResponse({.status = 404,
                       .message = fmt::format("Unknown request URL: {} {}", request.method, request.path),
                       .param = {},
                       .code = "unknown_url"}));
  }
  methods += "OPTIONS";
  if (request.method == "OPTIONS") {
    return reply->Send({.status = 204, .content_type = {}, .body = {}, .fields = {{"Allow", methods}}});
  }
  HttpResponse response =
      ErrorResponse({.status = 405,
                     .message = fmt::format("{}: the method is {}, expected {}", request.path, request.method, methods),
                     .param = {},
                     .code = "method_not_allowed"});
  response.fields.push_back({"Allow", methods});
  reply->Send(std::move(response));
}

}  // namespace headwise
