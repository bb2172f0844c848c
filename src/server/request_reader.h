// One HTTP request out of bytes as they come, in whatever pieces. It knows no sockets, and is the one place that knows
// the parser.
#ifndef HEADWISE_SERVER_REQUEST_READER_H_
#define HEADWISE_SERVER_REQUEST_READER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "server/http.h"

namespace headwise {

class RequestReader {
 public:
  enum class State { kHeader, kBody, kDone, kRefused };

  RequestReader(int64_t header_bytes, int64_t body_bytes);
  RequestReader(const RequestReader&) = delete;
  ~RequestReader();

  // Takes what it can of the next bytes, and tells how many. What it leaves it wants again, with more behind it; once
  // the request is done, what is left belongs to the next one. Requires: neither done nor refused.
  size_t Read(std::string_view bytes);

  State state() const;
  // Why it was refused, as an answer.
  int refusal_status() const;
  const std::string& refusal_message() const;

  bool is_head() const;  // as soon as the request line was read
  // These once the header was read.
  bool is_http_1_0() const;
  bool keep_alive() const;
  const HttpRequest& request() const;  // without its body
  bool expects_continue() const;       // the client waits for a word before it sends the body

  // Requires: done.
  HttpRequest TakeRequest();

 private:
  class Parser;
  std::unique_ptr<Parser> parser_;
};

}  // namespace headwise

#endif  // HEADWISE_SERVER_REQUEST_READER_H_
