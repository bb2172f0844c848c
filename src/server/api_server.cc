#include "server/api_server.h"

#include <chrono>
#include <utility>

#include "base/no_memory.h"

namespace headwise {
namespace {

constexpr int kNumCompilers = 8;
// Requests that wait for an engine in the middle: the engine takes one step at a time whatever their number, and their
// turns are its to choose, so that as many as may be wait there.
constexpr int kNumReaders = 64;

}  // namespace

ApiServer::ApiServer(ModelHost& host, ApiOptions options)
    : host_(host),
      options_(std::move(options)),
      access_(options_.api_keys, options_.allow_origins),
      compilers_(kNumCompilers),
      readers_(kNumReaders) {
  const EndpointParts parts{
      .host = host_, .threads = {.compilers = compilers_, .readers = readers_}, .options = options_, .access = access_};
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

std::optional<HttpResponse> ApiServer::CheckHeader(const HttpRequest& header) const {
  const auto error_of = [&]() -> std::optional<ApiError> {
    if (auto error = access_.CheckOrigin(header)) return error;
    // What browsers ask before they ask has no key, nor has who opens the page.
    const bool is_open = header.method == "OPTIONS" || header.path == "/health" || IsPagePath(header.path);
    return is_open ? std::nullopt : access_.CheckKey(header);
  };
  const std::optional<ApiError> error = error_of();
  if (!error) return std::nullopt;
  HttpResponse response = ErrorResponse(*error);
  for (HttpField& field : access_.AnswerFields(header)) response.fields.push_back(std::move(field));
  return response;
}

void ApiServer::Handle(const HttpRequest& request, std::shared_ptr<HttpReply> plain_reply) {
  if (const auto refused = CheckHeader(request)) return plain_reply->Send(*refused);
  const std::shared_ptr<HttpReply> reply = WithFields(std::move(plain_reply), access_.AnswerFields(request));
  const Status status = CatchNoMemory("a request", [&] { return router_.Handle(request, reply), Status::Ok(); });
  if (!status.ok()) reply->Send(ErrorResponse(ToApiError(status)));
}

void ApiServer::Shutdown() {
  host_.Shutdown(std::chrono::milliseconds(0));
  compilers_.Stop();
  readers_.Stop();
}

}  // namespace headwise
