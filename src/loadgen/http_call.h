// One exchange of HttpClient: a connection that is made, a request that is written, an answer that is read. Private to
// the client.
#ifndef HEADWISE_LOADGEN_HTTP_CALL_H_
#define HEADWISE_LOADGEN_HTTP_CALL_H_

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/optional.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "loadgen/http_client.h"
#include "server/transport.h"

namespace headwise {

// A body that is read as it comes: what is there is taken after every step of the parser, nothing is reserved for what
// a server only announces.
struct PassingBody {
  using value_type = std::string;
  class reader {
   public:
    template <bool kIsRequest, class Fields>
    reader(boost::beast::http::header<kIsRequest, Fields>&, value_type& body) : body_(body) {}
    void init(const boost::optional<std::uint64_t>&, boost::beast::error_code& error) { error = {}; }
    template <class Buffers>
    size_t put(const Buffers& buffers, boost::beast::error_code& error) {
      error = {};
      size_t size = 0;
      for (auto at = boost::asio::buffer_sequence_begin(buffers); at != boost::asio::buffer_sequence_end(buffers);
           ++at) {
        const boost::asio::const_buffer buffer(*at);
        body_.append(static_cast<const char*>(buffer.data()), buffer.size());
        size += buffer.size();
      }
      return size;
    }
    void finish(boost::beast::error_code& error) { error = {}; }

   private:
    value_type& body_;
  };
};

// What all calls of a client share. Outlives them.
struct HttpCallShared {
  HttpClientOptions options;
  std::vector<boost::asio::ip::tcp::endpoint> endpoints;
  size_t best_endpoint = 0;  // that was connected to last
  std::unique_ptr<TlsContext> tls;
  boost::asio::io_context io{1};  // last: calls that it still holds have sessions of `tls`
};

// What waits for the system keeps it alive; a call that was cancelled tells its listener nothing more.
class HttpExchangeCall : public std::enable_shared_from_this<HttpExchangeCall> {
 public:
  HttpExchangeCall(HttpCallShared& shared, std::string request, HttpCallListener& listener);

  void Start();
  void Cancel();

 private:
  using Clock = HttpCallListener::Clock;
  using ErrorCode = boost::system::error_code;

  void Connect(size_t num_tried);
  void OnConnected();
  // Goes on as far as it can without waiting, then waits.
  void Advance();
  // Each true where it moved on and may be called again.
  bool Shake();
  bool Send();
  bool Receive();
  // False where it has come to an end, or waits.
  bool Note(const IoStep& step);
  void WaitFor(boost::asio::ip::tcp::socket::wait_type type);
  bool Parse(std::string_view bytes);
  bool TellBody();
  void OnServerEnd();
  void WatchPatience();
  void End(std::string failure, std::string message);

  HttpCallShared& shared_;
  HttpCallListener* listener_;  // null: cancelled, or told of the end
  boost::asio::ip::tcp::socket socket_;
  boost::asio::steady_timer timer_;
  std::unique_ptr<Transport> transport_;
  bool has_shaken_ = false;
  std::string out_;
  size_t num_sent_ = 0;
  std::string in_;  // what the parser did not take yet
  boost::beast::http::response_parser<PassingBody> parser_;
  bool has_told_head_ = false;
  Clock::time_point last_moved_;
};

}  // namespace headwise

#endif  // HEADWISE_LOADGEN_HTTP_CALL_H_
