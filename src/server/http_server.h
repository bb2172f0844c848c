// An HTTP/1.1 server for many slow clients on few threads: connections, limits, TLS, replies in pieces. It knows
// nothing of models. Boost.Asio and Boost.Beast carry it, and are named in its source alone.
#ifndef HEADWISE_SERVER_HTTP_SERVER_H_
#define HEADWISE_SERVER_HTTP_SERVER_H_

#include <headwise/status.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/http.h"

namespace headwise {

// What one client may take. Whoever goes beyond gets the status that HTTP has for it, where he can still be told, and
// his connection is closed; nobody else notices.
struct HttpLimits {
  int64_t max_connections = 4096;  // more are accepted and closed with 503
  int64_t header_bytes = 32 << 10;
  int64_t body_bytes = 64 << 20;
  std::chrono::milliseconds header_time{15'000};  // from the first byte of a request to the end of its header
  std::chrono::milliseconds body_time{60'000};
  std::chrono::milliseconds idle_time{75'000};   // between requests of a connection that is kept open
  std::chrono::milliseconds write_time{60'000};  // without one byte taken by a client that has some to take
  int64_t unsent_bytes = 4 << 20;  // of a reply in pieces, that wait for its client when another piece comes
  // Of all replies together. Where more wait, clients that are far behind (64 KiB) are given up.
  int64_t all_unsent_bytes = 128 << 20;
};

struct HttpServerOptions {
  std::string host = "127.0.0.1";    // an address or a name; "0.0.0.0" and "::" for all
  int port = 0;                      // 0: any that is free; HttpServer::port tells
  int num_threads = 2;               // that carry bytes
  int num_handler_threads = 32;      // that handlers run on; requests wait where all are taken
  std::string tls_certificate = {};  // files in PEM; both or neither. With them it speaks HTTPS alone
  std::string tls_key = {};
  HttpLimits limits = {};
  // An answer to what a request's header alone says, in place of the handler's: then its body is not read, and the
  // connection is closed. Nothing: it goes on. On threads that carry bytes: it may not wait. Small requests, which come
  // with their bodies, it does not see. Empty: nothing.
  std::function<std::optional<HttpResponse>(const HttpRequest& header)> check_header = {};
  // What the carrier itself refuses (a header too long, bytes that are no HTTP) looks like other errors of the API.
  // Empty: plain text.
  std::function<std::string(int status, std::string_view message)> error_body = {};
};

// A client that closes his sending side while a reply is under way counts as gone, even if he would still read it: that
// is how a client that leaves looks. So does one that takes no byte for write_time. One that has sent 16 KiB of further
// requests is read no further until his reply has ended, and is noticed to be gone when something is sent to him.
class HttpServer {
 public:
  // Listens when it returns. An error names the address, or the file, and what was wrong.
  static Result<std::unique_ptr<HttpServer>> Start(const HttpServerOptions& options, HttpHandler handler);
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  // Stop(0).
  ~HttpServer();

  int port() const;
  int64_t num_connections() const;

  // Listens no more and closes connections that wait for a request; those with one under way get to the end of their
  // reply, for at most `grace`. Then the rest is closed. When it returns no handler runs and no OnGone is called any
  // more. Replies that are let go later do nothing. Not from a handler or an OnGone, which it waits for.
  void Stop(std::chrono::milliseconds grace);

 private:
  class Impl;
  explicit HttpServer(std::shared_ptr<Impl> impl);

  std::shared_ptr<Impl> impl_;
};

}  // namespace headwise

#endif  // HEADWISE_SERVER_HTTP_SERVER_H_
