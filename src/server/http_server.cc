#include "server/http_server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/post.hpp>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/process_memory.h"
#include "server/handler_pool.h"
#include "server/http_connection.h"

namespace headwise {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using Strand = HttpConnection::Strand;
using Socket = HttpConnection::Socket;
using Acceptor = asio::basic_socket_acceptor<tcp, Strand>;
using Clock = std::chrono::steady_clock;
using Timer = asio::basic_waitable_timer<Clock, asio::wait_traits<Clock>, Strand>;

// Connections at a time that are told that there are too many; more are closed without a word.
constexpr size_t kMaxRefused = 64;
// Bodies whose memory is given back once they are answered.
constexpr size_t kLongBody = size_t{1} << 20;
// After an error of accepting, which is there to stay for a while: no descriptors, no memory.
constexpr std::chrono::milliseconds kAcceptPause(100);
// Longer than any process runs; a deadline at the end of time would overflow.
constexpr std::chrono::milliseconds kLongestGrace = std::chrono::hours(24 * 365 * 10);

// An endpoint's hold on its exchange.
class ExchangeReply : public HttpReply {
 public:
  explicit ExchangeReply(std::shared_ptr<HttpExchange> exchange) : exchange_(std::move(exchange)) {}
  ~ExchangeReply() override { Abandon(); }
  void Abandon() {
    OrGiveUp([&] { exchange_->Abandon(); });
  }
  void Send(HttpResponse response) override {
    OrGiveUp([&] { exchange_->Send(std::move(response)); });
  }
  void Begin(HttpResponse response) override {
    OrGiveUp([&] { exchange_->Begin(response); });
  }
  bool Write(std::string_view piece) override {
    bool is_read = false;
    OrGiveUp([&] { is_read = exchange_->Write(piece); });
    return is_read;
  }
  void End() override {
    OrGiveUp([&] { exchange_->End(); });
  }
  void OnGone(std::function<void()> on_gone) override {
    OrGiveUp([&] { exchange_->OnGone(std::move(on_gone)); });
  }

 private:
  template <typename Call>
  void OrGiveUp(const Call& call) noexcept {
    try {
      call();
    } catch (...) {  // memory is short
      GiveUp();
    }
  }
  void GiveUp() noexcept {
    try {
      exchange_->GiveUp();
    } catch (...) {
      // It is marked; its connection sees it when it next moves.
    }
  }

  std::shared_ptr<HttpExchange> exchange_;
};

// So that a client that vanished without a word is noticed while nothing is sent to it, and no piece waits for others.
void SetSocketOptions(Socket& socket) {
  error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
  constexpr int kIdleSeconds = 60;
  constexpr int kSecondsBetween = 15;
  constexpr int kNumProbes = 4;
  ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_KEEPIDLE, &kIdleSeconds, sizeof(kIdleSeconds));
  ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_KEEPINTVL, &kSecondsBetween, sizeof(kSecondsBetween));
  ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_KEEPCNT, &kNumProbes, sizeof(kNumProbes));
}

Status CheckOptions(const HttpServerOptions& options) {
  const auto positive = [](std::string_view name, int64_t value) {
    return value > 0 ? Status::Ok() : Status::InvalidInput(fmt::format("{} is {}, expected 1 or more", name, value));
  };
  if (options.port < 0 || options.port > 65535) {
    return Status::InvalidInput(fmt::format("port is {}, expected 0 to 65535", options.port));
  }
  HW_RETURN_IF_ERROR(positive("num_threads", options.num_threads));
  HW_RETURN_IF_ERROR(positive("num_handler_threads", options.num_handler_threads));
  HW_RETURN_IF_ERROR(positive("max_connections", options.limits.max_connections));
  HW_RETURN_IF_ERROR(positive("header_bytes", options.limits.header_bytes));
  HW_RETURN_IF_ERROR(positive("header_time", options.limits.header_time.count()));
  HW_RETURN_IF_ERROR(positive("body_time", options.limits.body_time.count()));
  HW_RETURN_IF_ERROR(positive("idle_time", options.limits.idle_time.count()));
  HW_RETURN_IF_ERROR(positive("write_time", options.limits.write_time.count()));
  HW_RETURN_IF_ERROR(positive("unsent_bytes", options.limits.unsent_bytes));
  HW_RETURN_IF_ERROR(positive("all_unsent_bytes", options.limits.all_unsent_bytes));
  if (options.limits.body_bytes < 0) {
    return Status::InvalidInput(fmt::format("body_bytes is {}, expected 0 or more", options.limits.body_bytes));
  }
  if (options.tls_certificate.empty() != options.tls_key.empty()) {
    return Status::InvalidInput(fmt::format("TLS: a {} without a {}, expected both or neither",
                                            options.tls_key.empty() ? "certificate" : "key",
                                            options.tls_key.empty() ? "key" : "certificate"));
  }
  return Status::Ok();
}

error_code ListenOn(const tcp::endpoint& endpoint, Acceptor& acceptor) {
  error_code error;
  acceptor.open(endpoint.protocol(), error);
  if (error) return error;
  ::fcntl(acceptor.native_handle(), F_SETFD, FD_CLOEXEC);  // no other program is to inherit it
  acceptor.set_option(asio::socket_base::reuse_address(true), error);
  if (error) return error;
  if (endpoint.address().is_v6()) {
    // "::" is every address, those of IPv4 too.
    error_code ignored;
    acceptor.set_option(asio::ip::v6_only(!endpoint.address().is_unspecified()), ignored);
  }
  acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  return error;
}

}  // namespace

class HttpServer::Impl : public ConnectionOwner, public std::enable_shared_from_this<Impl> {
 public:
  Impl(const HttpServerOptions& options, HttpHandler handler)
      : options_(options), handler_(std::move(handler)), handlers_(options.num_handler_threads) {}

  Status Start() {
    HW_RETURN_IF_ERROR(CheckOptions(options_));
    if (!handler_) return Status::InvalidInput("handler: is empty, expected a function");
    if (!options_.tls_certificate.empty()) {
      HW_ASSIGN_OR_RETURN(tls_, TlsContext::Load(options_.tls_certificate, options_.tls_key));
    }
    HW_RETURN_IF_ERROR(Listen());
    try {
      for (int i = 0; i < options_.num_threads; ++i) threads_.emplace_back([this] { Carry(); });
    } catch (const std::system_error& error) {
      return Status::Io(fmt::format("cannot start {} threads: {}", options_.num_threads, error.what()));
    }
    for (const auto& listener : listeners_) {
      asio::post(listener->acceptor.get_executor(), [this, &listener = *listener] { Accept(listener); });
    }
    return Status::Ok();
  }

  int port() const { return port_; }
  int64_t num_connections() const {
    const std::lock_guard lock(mutex_);
    return static_cast<int64_t>(connections_.size() - num_refused_);
  }

  void Stop(std::chrono::milliseconds grace) {
    const std::lock_guard stop_lock(stop_mutex_);
    if (has_stopped_) return;
    is_stopping_ = true;
    for (const auto& listener : listeners_) {
      asio::post(listener->acceptor.get_executor(), [&listener = *listener] {
        error_code ignored;
        listener.acceptor.close(ignored);
        listener.pause.cancel(ignored);
      });
    }
    for (const auto& connection : Connections()) connection->Stop();
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, std::min(grace, kLongestGrace), [&] { return connections_.empty(); });
    }
    for (const auto& connection : Connections()) connection->Abort();
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return connections_.empty(); });
    }
    handlers_.Finish();
    work_.reset();
    for (std::thread& thread : threads_) thread.join();
    handler_ = nullptr;  // what it holds ends with the server, not with the last of its replies
    options_.error_body = nullptr;
    has_stopped_ = true;
  }

  // ConnectionOwner.
  const HttpServerOptions& options() const override { return options_; }
  bool is_stopping() const override { return is_stopping_; }
  std::shared_ptr<UnsentBytes> all_unsent() const override { return all_unsent_; }
  bool Handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) override {
    return handlers_.Run(
        [this, request = std::make_shared<HttpRequest>(std::move(request)), exchange = std::move(exchange)]() mutable {
          const bool is_long = request->body.size() >= kLongBody;
          Answer(*request, exchange);
          request.reset();
          // Else every handler's heap keeps what the longest body once took of it.
          if (is_long) ReturnFreeMemory();
        });
  }
  void Post(std::function<void()> function) override {
    asio::post(io_, [function = std::move(function)] {
      try {
        function();
      } catch (...) {
        // Nobody is there to tell.
      }
    });
  }
  void Remove(HttpConnection* connection) override {
    std::shared_ptr<HttpConnection> removed;  // may be the last to hold it, and it us
    const std::lock_guard lock(mutex_);
    const auto found = connections_.find(connection);
    if (found == connections_.end()) return;
    removed = std::move(found->second);
    connections_.erase(found);
    if (removed->is_refused()) --num_refused_;
    if (connections_.empty()) changed_.notify_all();
  }

 private:
  struct Listener {
    Acceptor acceptor;
    Timer pause;
  };

  // On every address that the name has.
  Status Listen() {
    if (options_.host.empty()) return Status::InvalidInput("host is empty, expected an address or a name");
    error_code error;
    tcp::resolver resolver(io_);
    const auto flags = tcp::resolver::passive | tcp::resolver::numeric_service;
    const auto found = resolver.resolve(options_.host, std::to_string(options_.port), flags, error);
    if (error) return Status::NotFound(fmt::format("host {}: {}", options_.host, error.message()));
    Status first_error;
    for (const auto& entry : found) {
      tcp::endpoint endpoint = entry.endpoint();
      if (!listeners_.empty()) endpoint.port(static_cast<uint16_t>(port_));
      const auto strand = asio::make_strand(io_);
      auto listener = std::make_unique<Listener>(Listener{Acceptor(strand), Timer(strand)});
      const error_code failure = ListenOn(endpoint, listener->acceptor);
      if (failure && first_error.ok()) {
        first_error = Status::Io(fmt::format("cannot listen on {}: {}", TextOf(endpoint), failure.message()));
      }
      // Half of a name's clients would reach somebody else.
      if (failure == asio::error::address_in_use) return first_error;
      if (failure) continue;
      port_ = listener->acceptor.local_endpoint().port();
      listeners_.push_back(std::move(listener));
    }
    // A name may have an address of a family that this machine lacks.
    return listeners_.empty() ? first_error : Status::Ok();
  }

  // What a thread that carries bytes does.
  void Carry() {
    while (true) {
      try {
        io_.run();
        return;
      } catch (...) {
        // Memory was short; what was under way has been given up, others go on.
      }
    }
  }

  void Accept(Listener& listener) {
    listener.acceptor.async_accept(asio::make_strand(io_), [this, &listener](const error_code& error, Socket socket) {
      OnAccepted(listener, error, std::move(socket));
    });
  }
  void OnAccepted(Listener& listener, const error_code& error, Socket socket) {
    if (is_stopping_) return;
    if (!error) {
      try {
        Admit(std::move(socket));
      } catch (...) {
        // Memory is short, for this client.
      }
    }
    if (!error || error == asio::error::connection_aborted) return Accept(listener);
    listener.pause.expires_after(kAcceptPause);
    listener.pause.async_wait([this, &listener](const error_code&) {
      if (!is_stopping_) Accept(listener);
    });
  }
  void Admit(Socket socket) {
    const int fd = socket.native_handle();
    ::fcntl(fd, F_SETFD, FD_CLOEXEC);
    SetSocketOptions(socket);
    std::unique_ptr<Transport> transport = tls_ != nullptr ? tls_->NewTransport(fd) : NewPlainTransport(fd);
    if (transport == nullptr) return;
    std::shared_ptr<HttpConnection> connection;
    {
      const std::lock_guard lock(mutex_);
      const auto num_admitted = static_cast<int64_t>(connections_.size() - num_refused_);
      const bool is_refused = num_admitted >= options_.limits.max_connections;
      if (is_stopping_ || (is_refused && num_refused_ >= kMaxRefused)) return;
      connection =
          std::make_shared<HttpConnection>(shared_from_this(), std::move(socket), std::move(transport), is_refused);
      connections_.emplace(connection.get(), connection);
      if (is_refused) ++num_refused_;
    }
    connection->Start();
  }

  void Answer(HttpRequest& request, const std::shared_ptr<HttpExchange>& exchange) noexcept {
    if (exchange->is_gone()) return;
    const auto reply = std::make_shared<ExchangeReply>(exchange);
    try {
      handler_(std::move(request), reply);
    } catch (...) {
      reply->Abandon();
    }
  }

  std::vector<std::shared_ptr<HttpConnection>> Connections() const {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<HttpConnection>> connections;
    for (const auto& [key, connection] : connections_) connections.push_back(connection);
    return connections;
  }

  HttpServerOptions options_;
  // Replies may outlive the server.
  const std::shared_ptr<UnsentBytes> all_unsent_ = std::make_shared<UnsentBytes>(options_.limits.all_unsent_bytes);
  HttpHandler handler_;
  std::unique_ptr<TlsContext> tls_;
  int port_ = 0;
  asio::io_context io_;
  asio::executor_work_guard<asio::io_context::executor_type> work_ = asio::make_work_guard(io_);
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::atomic<bool> is_stopping_ = false;
  mutable std::mutex mutex_;
  std::condition_variable changed_;  // connections_ is empty
  std::unordered_map<HttpConnection*, std::shared_ptr<HttpConnection>> connections_;
  size_t num_refused_ = 0;  // of connections_
  std::mutex stop_mutex_;
  bool has_stopped_ = false;
  HandlerPool handlers_;
  std::vector<std::thread> threads_;
};

HttpServer::HttpServer(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() {
  Stop(std::chrono::milliseconds(0));
}

Result<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpServerOptions& options, HttpHandler handler) {
  // Stops, where it fails half-way.
  std::unique_ptr<HttpServer> server(new HttpServer(std::make_shared<Impl>(options, std::move(handler))));
  HW_RETURN_IF_ERROR(server->impl_->Start());
  return server;
}

int HttpServer::port() const {
  return impl_->port();
}
int64_t HttpServer::num_connections() const {
  return impl_->num_connections();
}
void HttpServer::Stop(std::chrono::milliseconds grace) {
  impl_->Stop(grace);
}

}  // namespace headwise
