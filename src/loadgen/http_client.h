// HTTP/1.1 exchanges, any number of them at a time on one thread: each on a connection of its own, in the clear or in
// TLS. Boost.Asio and Boost.Beast carry them.
#ifndef HEADWISE_LOADGEN_HTTP_CLIENT_H_
#define HEADWISE_LOADGEN_HTTP_CLIENT_H_

#include <headwise/status.h>

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "loadgen/load_target.h"

namespace headwise {

struct HttpClientOptions {
  LoadTarget target = {};
  std::string tls_authorities = {};  // a PEM file; empty: those that the system trusts
  bool tls_verifies = true;
  std::string api_key = {};  // sent as Authorization: Bearer; empty: none
  // Without a byte of the server for so long an exchange is given up.
  std::chrono::milliseconds patience{600'000};
};

struct HttpCallRequest {
  std::string method = "GET";
  std::string path;       // behind the target's
  std::string body = {};  // JSON
};

// How an exchange came to its end.
struct HttpCallEnd {
  std::string failure =
      {};  // empty: the answer is whole. Else as in LoadRecord, or "stopped": its listener wanted no more
  std::string message = {};
};

// Told what comes, on the thread that runs the client, in this order.
class HttpCallListener {
 public:
  using Clock = std::chrono::steady_clock;

  virtual ~HttpCallListener() = default;
  // The connection stands, its TLS too.
  virtual void OnConnected(Clock::time_point /*now*/) {}
  virtual void OnHead(int status, std::string_view content_type) = 0;
  // A part of the body that was there at `now`. False: no more is wanted, and the exchange ends as "stopped".
  virtual bool OnBody(std::string_view bytes, Clock::time_point now) = 0;
  // Once, whatever comes to pass, but where the exchange was cancelled.
  virtual void OnEnd(const HttpCallEnd& end, Clock::time_point now) = 0;
};

// Thread-safety: none; it runs where io() does.
class HttpClient {
 public:
  // Answers of more bytes fail with "protocol".
  static constexpr size_t kMaxBodyBytes = size_t{64} << 20;

  // Looks the host up and reads certificates. An error says what was wrong.
  static Result<std::unique_ptr<HttpClient>> Open(const HttpClientOptions& options);
  HttpClient(const HttpClient&) = delete;
  ~HttpClient();

  boost::asio::io_context& io();
  const LoadTarget& target() const;

  // A running exchange. Cancelled where it is let go before its end.
  class Call {
   public:
    virtual ~Call() = default;
  };
  // Begins at once; `listener` outlives the call. Not more than one step is done here: listeners are told from io().
  std::unique_ptr<Call> Start(const HttpCallRequest& request, HttpCallListener& listener);

  // A whole answer, waited for: nothing else may be under way.
  struct Reply {
    int status = 0;
    std::string body;
  };
  // An error is one of connecting or of HTTP; whatever status came is none.
  Result<Reply> Ask(const HttpCallRequest& request);

 private:
  struct Impl;
  explicit HttpClient(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace headwise

#endif  // HEADWISE_LOADGEN_HTTP_CLIENT_H_
