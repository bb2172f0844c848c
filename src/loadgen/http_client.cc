#include "loadgen/http_client.h"

#include <fmt/format.h>

#include <utility>

#include "loadgen/http_call.h"

namespace headwise {
namespace {

using boost::asio::ip::tcp;

std::string RequestText(const HttpClientOptions& options, const HttpCallRequest& request) {
  std::string text = fmt::format("{} {}{} HTTP/1.1\r\nHost: {}\r\nUser-Agent: headwise-bench\r\nAccept: */*\r\n",
                                 request.method, options.target.path, request.path, options.target.Authority());
  if (!options.api_key.empty()) text += fmt::format("Authorization: Bearer {}\r\n", options.api_key);
  if (!request.body.empty()) {
    text += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", request.body.size());
  }
  return text + "Connection: close\r\n\r\n" + request.body;
}

class HeldCall : public HttpClient::Call {
 public:
  explicit HeldCall(std::shared_ptr<HttpExchangeCall> call) : call_(std::move(call)) {}
  ~HeldCall() override { call_->Cancel(); }

 private:
  std::shared_ptr<HttpExchangeCall> call_;
};

class WholeReply : public HttpCallListener {
 public:
  void OnHead(int status, std::string_view) override { reply.status = status; }
  bool OnBody(std::string_view bytes, Clock::time_point) override {
    reply.body += bytes;
    return true;
  }
  void OnEnd(const HttpCallEnd& how, Clock::time_point) override { end = how; }

  HttpClient::Reply reply;
  HttpCallEnd end;
};

}  // namespace

struct HttpClient::Impl : HttpCallShared {};

HttpClient::HttpClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpClient::~HttpClient() = default;

Result<std::unique_ptr<HttpClient>> HttpClient::Open(const HttpClientOptions& options) {
  for (const char c : options.api_key) {
    if (c < ' ' || c == 127) return Status::InvalidInput("the API key has a control character, expected none");
  }
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  if (options.target.is_tls) {
    HW_ASSIGN_OR_RETURN(impl->tls, TlsContext::ForClient(options.tls_authorities, options.tls_verifies));
  }
  boost::system::error_code error;
  const auto found =
      tcp::resolver(impl->io).resolve(options.target.host, options.target.port, tcp::resolver::numeric_service, error);
  if (error) return Status::NotFound(fmt::format("{}: {}", options.target.host, error.message()));
  for (const auto& entry : found) impl->endpoints.push_back(entry.endpoint());
  if (impl->endpoints.empty()) return Status::NotFound(fmt::format("{}: has no address", options.target.host));
  return std::unique_ptr<HttpClient>(new HttpClient(std::move(impl)));
}

boost::asio::io_context& HttpClient::io() {
  return impl_->io;
}
const LoadTarget& HttpClient::target() const {
  return impl_->options.target;
}

std::unique_ptr<HttpClient::Call> HttpClient::Start(const HttpCallRequest& request, HttpCallListener& listener) {
  auto call = std::make_shared<HttpExchangeCall>(*impl_, RequestText(impl_->options, request), listener);
  call->Start();
  return std::make_unique<HeldCall>(std::move(call));
}

Result<HttpClient::Reply> HttpClient::Ask(const HttpCallRequest& request) {
  WholeReply reply;
  {
    const std::unique_ptr<Call> call = Start(request, reply);
    impl_->io.restart();
    impl_->io.run();
  }
  if (!reply.end.failure.empty()) return Status::Io(fmt::format("{}: {}", reply.end.failure, reply.end.message));
  return std::move(reply.reply);
}

}  // namespace headwise
