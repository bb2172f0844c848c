// What an endpoint says and what its connection sends, between their threads: the state of one reply. It outlives
// whichever of them ends first. It knows no sockets.
#ifndef HEADWISE_SERVER_HTTP_EXCHANGE_H_
#define HEADWISE_SERVER_HTTP_EXCHANGE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "server/http.h"

namespace headwise {

// What all replies of a server have said and their clients have not taken yet.
struct UnsentBytes {
  int64_t most = 0;
  std::atomic<int64_t> now = 0;
};

class HttpExchange {
 public:
  struct Options {
    bool is_head = false;
    bool is_http_1_0 = false;
    bool keep_alive = true;
    int64_t unsent_bytes = 0;
    int64_t unsent_bytes_when_full = 0;  // in place of these, where the replies together have more than their most
    std::shared_ptr<UnsentBytes> all_unsent;
    // Tells the connection that there is something to take. Called under the exchange's lock, so that nothing is posted
    // to a connection that has marked it gone: it must not call back.
    std::function<void()> wake;
    // Runs a function on a thread of the server's, if there still is one.
    std::function<void(std::function<void()>)> call_later;
  };

  explicit HttpExchange(Options options) : options_(std::move(options)), keep_alive_(options_.keep_alive) {}
  HttpExchange(const HttpExchange&) = delete;
  ~HttpExchange();

  // The endpoint's side: HttpReply's calls.
  void Send(HttpResponse response);
  void Begin(const HttpResponse& response);
  bool Write(std::string_view piece);
  void End();
  void OnGone(std::function<void()> on_gone);
  // It will say no more, and later calls do nothing.
  void Abandon();
  // There is no memory for what it says.
  void GiveUp();

  // The connection's side.
  enum class Next {
    kWaits,      // there will be more
    kEnds,       // these bytes were all
    kBreaksOff,  // these bytes were all that will come of it
    kFails,      // abandoned before it began: Fail says so to the client
    kIsGone,     // too far behind
  };
  // Swaps what is to be sent into `bytes`, which is empty.
  Next Take(std::string& bytes);
  void Sent(size_t num_bytes);
  // The answer to what was abandoned.
  void Fail(const HttpResponse& response);
  bool has_ended() const;
  bool is_gone() const;
  // Whether the next request may come on the same connection; what CloseAfter takes back, as long as the head is
  // unsaid.
  bool keep_alive() const;
  void CloseAfter();
  // The end of a body that only the end of the connection tells. Then breaking off must look like a failure.
  bool ends_by_close() const;
  // The client is gone. The function that wants to know is given once, empty where nobody does.
  std::function<void()> MarkGone();

 private:
  enum class State { kOpen, kBegun, kEnded, kAbandoned, kGone };

  // Requires of these: mutex_ is held.
  void AppendHead(const HttpResponse& response, bool is_whole);
  void Wake();
  void CountUnsent(int64_t more);
  bool IsBehind() const;

  const Options options_;
  mutable std::mutex mutex_;
  // All guarded by mutex_.
  State state_ = State::kOpen;
  std::string output_;        // not yet taken
  int64_t unsent_ = 0;        // bytes of output_, and those taken and not yet sent
  bool is_woken_ = false;     // the connection will come and take
  bool is_detached_ = false;  // it is closed: nothing is posted to a server that may have ended
  bool keep_alive_;           // after this reply
  bool is_said_ = false;      // the head
  bool has_body_ = true;      // bytes of it are sent
  bool is_chunked_ = false;   // and in chunks
  bool ends_by_close_ = false;
  std::function<void()> on_gone_;
};

}  // namespace headwise

#endif  // HEADWISE_SERVER_HTTP_EXCHANGE_H_
