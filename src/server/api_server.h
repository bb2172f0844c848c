// The OpenAI API, and what headwise has besides, over the models of a host: who may ask, and which endpoint answers.
// docs/server.md lists the endpoints.
#ifndef HEADWISE_SERVER_API_SERVER_H_
#define HEADWISE_SERVER_API_SERVER_H_

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/access.h"
#include "server/completion_job.h"
#include "server/http.h"
#include "server/model_host.h"
#include "server/router.h"
#include "server/worker_threads.h"

namespace headwise {

struct ApiOptions {
  std::vector<std::string> api_keys = {};       // none: everybody may ask
  std::vector<std::string> allow_origins = {};  // pages that may ask through a browser
  bool is_loopback = true;                      // only this machine can reach it
  std::string plan_dir = {};                    // from where plans may be loaded by name; empty: nowhere
};

class ApiServer {
 public:
  // Borrows the host, which has models.
  ApiServer(ModelHost& host, ApiOptions options);
  ApiServer(const ApiServer&) = delete;
  // Shutdown.
  ~ApiServer();

  // Why a request is refused for what its header says, before its body is taken; Handle refuses it too.
  std::optional<HttpResponse> CheckHeader(const HttpRequest& header) const;
  // As HttpHandler has it. From any thread.
  void Handle(const HttpRequest& request, std::shared_ptr<HttpReply> reply);

  // Ends all that runs. Afterwards the carrier may go, then this, then the host.
  void Shutdown();

 private:
  ModelHost& host_;
  ApiOptions options_;
  AccessControl access_;
  Router router_;
  WorkerThreads compilers_;
  WorkerThreads readers_;
};

// What endpoints stand on, for the functions below: each adds some to a router. All of it is borrowed.
struct EndpointParts {
  ModelHost& host;
  JobThreads threads;
  const ApiOptions& options;
  const AccessControl& access;
};
void AddCompletionEndpoints(Router& router, const EndpointParts& parts);
void AddModelEndpoints(Router& router, const EndpointParts& parts);
void AddTokenEndpoints(Router& router, const EndpointParts& parts);
void AddPlanEndpoints(Router& router, const EndpointParts& parts);
void AddHealthEndpoints(Router& router, const EndpointParts& parts);
void AddPageEndpoints(Router& router, const EndpointParts& parts);
// Whether the path is one of the page's: everybody may read those, as they hold nothing of anybody.
bool IsPagePath(std::string_view path);

// `answer` -> ApiResult<HttpResponse> as an endpoint that answers at once.
template <typename Answer>
Router::Endpoint Immediate(Answer answer) {
  return [answer = std::move(answer)](const HttpRequest& request, const std::string& rest,
                                      std::shared_ptr<HttpReply> reply) {
    ApiResult<HttpResponse> response = answer(request, rest);
    reply->Send(response.ok() ? *std::move(response) : ErrorResponse(response.status()));
  };
}

}  // namespace headwise

#endif  // HEADWISE_SERVER_API_SERVER_H_
