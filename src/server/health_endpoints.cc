// GET /health and GET /metrics.
#include "server/api_server.h"
#include "server/metrics.h"

namespace headwise {

void AddHealthEndpoints(Router& router, const EndpointParts& parts) {
  router.Add("GET", "/health", Immediate([](const HttpRequest&, const std::string&) -> ApiResult<HttpResponse> {
               return HttpResponse{.body = R"({"status":"ok"})"};
             }));
  router.Add("GET", "/metrics", Immediate([parts](const HttpRequest&, const std::string&) -> ApiResult<HttpResponse> {
               MetricsPage page;
               for (const auto& model : parts.host.models()) {
                 const PrefixStore* prefixes = model->prefixes();
                 page.Add(model->name(), model->metrics(), model->service().stats(),
                          prefixes == nullptr ? PrefixStats{} : prefixes->stats());
               }
               return HttpResponse{.content_type = "text/plain; version=0.0.4; charset=utf-8", .body = page.Text()};
             }));
}

}  // namespace headwise
