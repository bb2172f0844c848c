// An HTTP exchange as the server's endpoints see it: what was asked, and a reply that may be given from any thread,
// whole or piece by piece, without ever waiting for the client. Who carries it is http_server.h.
#ifndef HEADWISE_SERVER_HTTP_H_
#define HEADWISE_SERVER_HTTP_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headwise {

struct HttpField {
  std::string name;  // of a request in lower case
  std::string value;
};

struct HttpRequest {
  std::string method;  // "GET"
  std::string path;    // "/v1/models": without the query, percent signs decoded, "." and ".." refused before
  std::string query;   // as it came, without the "?"
  std::vector<HttpField> fields;
  std::string body;
  std::string peer;  // the client's address, for logs

  // The first field of that name, in lower case; empty where there is none.
  std::string_view Field(std::string_view name) const {
    for (const HttpField& field : fields) {
      if (field.name == name) return field.value;
    }
    return {};
  }
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body = {};
  std::vector<HttpField> fields = {};  // besides those that the carrier writes: lengths, dates, whether it stays open
};

// The reply of one exchange. Any thread may call it, one at a time; no call waits for the client.
//
//   reply->Send({.body = "{}"});
//
//   reply->Begin({.content_type = "text/event-stream"});
//   reply->Write("data: ...\n\n");  // false: nobody reads any more, stop the work
//   reply->End();
//
// A reply that is let go without an end becomes a 500, or a connection that breaks off where a piece was sent.
class HttpReply {
 public:
  virtual ~HttpReply() = default;

  // The whole reply. Once, in place of Begin.
  virtual void Send(HttpResponse response) = 0;

  // The beginning of one that comes piece by piece; its body is the first piece, or empty.
  virtual void Begin(HttpResponse response) = 0;
  // False where the client is gone, or so far behind that the connection was given up. Then all later calls do nothing.
  virtual bool Write(std::string_view piece) = 0;
  virtual void End() = 0;

  // Called once, on any thread, when the client is gone before the end of the reply, also where it has gone already.
  // Not called once the reply has ended. Set before Begin, at most once. It must not wait.
  virtual void OnGone(std::function<void()> on_gone) = 0;
};

// Answers a request, now or later, on whatever thread. It is called on threads that may be kept for as long as it takes
// to read the request (not for as long as a model takes to answer).
using HttpHandler = std::function<void(HttpRequest request, std::shared_ptr<HttpReply> reply)>;

}  // namespace headwise

#endif  // HEADWISE_SERVER_HTTP_H_
