// One client's connection: reads a request, hands it on, sends its reply, reads the next one. Private to the server:
// it names Boost.
#ifndef HEADWISE_SERVER_HTTP_CONNECTION_H_
#define HEADWISE_SERVER_HTTP_CONNECTION_H_

#include <boost/asio/basic_stream_socket.hpp>
#include <boost/asio/basic_waitable_timer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/strand.hpp>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/http_exchange.h"
#include "server/http_server.h"
#include "server/request_reader.h"
#include "server/transport.h"

namespace headwise {

class HttpConnection;

// "127.0.0.1:8080", "[::1]:8080".
std::string TextOf(const boost::asio::ip::tcp::endpoint& endpoint);

// What a connection knows of its server.
class ConnectionOwner {
 public:
  virtual ~ConnectionOwner() = default;

  virtual const HttpServerOptions& options() const = 0;
  virtual bool is_stopping() const = 0;
  virtual std::shared_ptr<UnsentBytes> all_unsent() const = 0;
  // Has a handler answer; false where no thread can be had for it.
  virtual bool Handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) = 0;
  // Runs it on a thread that carries bytes.
  virtual void Post(std::function<void()> function) = 0;
  virtual void Remove(HttpConnection* connection) = 0;
};

// Everything but Start, Stop and Abort runs on the connection's strand. What waits keeps it alive; nobody else needs
// to. An idle connection holds no buffers: sockets are waited for, and read into memory of the thread's.
//
// A client that says no more while a reply is under way counts as gone, also where he would still read it (a
// half-closed connection): nothing else tells that he has left. Once the reply has ended, it is still sent.
class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  using Strand = boost::asio::strand<boost::asio::io_context::executor_type>;
  using Socket = boost::asio::basic_stream_socket<boost::asio::ip::tcp, Strand>;

  // One that is refused is told so, and no more.
  HttpConnection(std::shared_ptr<ConnectionOwner> owner, Socket socket, std::unique_ptr<Transport> transport,
                 bool is_refused);
  HttpConnection(const HttpConnection&) = delete;

  bool is_refused() const { return is_refused_; }

  // From any thread.
  void Start();
  void Stop();   // closes it where no request is under way, and after that request otherwise
  void Abort();  // closes it

 private:
  using Clock = std::chrono::steady_clock;
  using Timer = boost::asio::basic_waitable_timer<Clock, boost::asio::wait_traits<Clock>, Strand>;
  using WaitType = boost::asio::socket_base::wait_type;
  enum class State {
    kHandshake,
    kIdle,    // no byte of a request
    kHeader,  // the reader's
    kBody,
    kReply,    // an exchange's, or without one our own
    kDrained,  // all is said; reads on for a moment, because to close on unread bytes would take back what was said
    kClosed,
  };

  void Post(void (HttpConnection::*step)());
  // Whatever is thrown (memory is short) ends the connection.
  void Run(void (HttpConnection::*step)()) noexcept;

  // Goes on as far as it can without waiting, then waits.
  void Advance();
  void Shake();
  // Each one step, and whether it moved anything.
  bool Send();
  bool Receive();
  void Wait();
  void WaitFor(WaitType type, bool& is_waiting);
  void Note(IoStep::Kind kind);

  // More of what is to be sent into out_. False where there is nothing, now or any more.
  bool NextOutput();
  void OnReplySent();
  void OnBlocked(bool has_moved);
  // The client takes bytes of what the system holds for him.
  bool HasTakenBytes();

  void OnBytes(std::string_view bytes);
  void OnHeader();
  void OnRequest();
  void OnEnd(bool has_failed);
  // An answer of the carrier's own, and the end of the connection.
  void Refuse(int status, std::string_view message) { Refuse(ErrorResponse(status, message)); }
  void Refuse(const HttpResponse& response);
  HttpResponse ErrorResponse(int status, std::string_view message) const;

  void SetDeadline(Clock::time_point deadline);
  void SetDeadlineIn(std::chrono::milliseconds time) { SetDeadline(Clock::now() + time); }
  void ArmTimer(Clock::time_point time);
  void OnTimer();
  void OnDeadline();

  void OnStop();
  void Drain();
  // The client is gone, or we give up on him: closes, and tells who wants to know.
  void Leave();
  void Close();

  const HttpServerOptions& options() const { return owner_->options(); }

  const std::shared_ptr<ConnectionOwner> owner_;
  Socket socket_;
  Timer timer_;
  std::unique_ptr<Transport> transport_;
  const bool is_refused_;
  State state_ = State::kHandshake;
  bool wants_read_ = false;
  bool wants_write_ = false;
  bool is_waiting_to_read_ = false;
  bool is_waiting_to_write_ = false;
  bool has_ended_ = false;  // the client says no more
  bool is_blocked_ = false;
  int unsent_by_system_ = 0;  // when it became blocked, or was last seen to move
  Clock::time_point deadline_ = Clock::time_point::max();
  Clock::time_point timer_time_ = Clock::time_point::max();  // what the timer waits for, never after deadline_
  int64_t timer_number_ = 0;
  std::string unread_;  // bytes that were read and taken by no request yet
  std::unique_ptr<RequestReader> reader_;
  std::shared_ptr<HttpExchange> exchange_;
  std::string out_;  // what is being sent
  size_t num_sent_ = 0;
};

}  // namespace headwise

#endif  // HEADWISE_SERVER_HTTP_CONNECTION_H_
