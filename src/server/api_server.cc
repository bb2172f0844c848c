#include "server/api_server.h"

#include <chrono>
#include <utility>

#include "base/no_memory.h"

namespace headwise {
namespace {

// Requests that wait for an engine in the middle: prompts with log-probabilities, prompts that choices share. The
// engine takes one step at a time whatever their number.
constexpr int kNumWorkers = 8;

}  // namespace

ApiServer::ApiServer(ModelHost& host, ApiOptions options)
    : host_(host),
      options_(std::move(options)),
      access_(options_.api_keys, options_.allow_origins),
      workers_(kNumWorkers) {
  const EndpointParts parts{.host = host_, .workers = workers_, .options = options_, .access = access_};
  AddCompletionEndpoints(router_, parts);
  AddModelEndpoints(router_, parts);
  AddTokenEndpoints(router_, parts);
  AddPlanEndpoints(router_, parts);
  AddHealthEndpoints(router_, parts);
  AddPageEndpoints(router_, parts);
}

ApiServer::~ApiServer() {
  Shutdown();
}

void ApiServer::Handle(const HttpRequest& request, std::shared_ptr<HttpReply> plain_reply) {
  const std::shared_ptr<HttpReply> reply = WithFields(std::move(plain_reply), access_.AnswerFields(request));
  if (const auto error = access_.CheckOrigin(request)) return reply->Send(ErrorResponse(*error));
  // What browsers ask before they ask has no key, nor has who opens the page.
  const bool is_open = request.method == "OPTIONS" || request.path == "/health" || IsPagePath(request.path);
  if (!is_open) {
    if (const auto error = access_.CheckKey(request)) return reply->Send(ErrorResponse(*error));
  }
  const Status status = CatchNoMemory("a request", [&] { return router_.Handle(request, reply), Status::Ok(); });
  if (!status.ok()) reply->Send(ErrorResponse(ToApiError(status)));
}

void ApiServer::Shutdown() {
  host_.Shutdown(std::chrono::milliseconds(0));
  workers_.Stop();
}

}  // namespace headwise
