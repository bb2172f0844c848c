// The head of a response, as bytes.
#ifndef HEADWISE_SERVER_HTTP_HEAD_H_
#define HEADWISE_SERVER_HTTP_HEAD_H_

#include <string>
#include <string_view>

#include "server/http.h"

namespace headwise {

// How a client knows where the body ends.
enum class BodyEnd {
  kLength,
  kChunks,
  kClose,   // of the connection: HTTP/1.0 knows nothing else for a body that comes in pieces
  kNoBody,  // of 204 and 304
};

struct HttpHeadOptions {
  BodyEnd end = BodyEnd::kLength;
  bool keep_alive = true;
  bool is_http_1_0 = false;  // the client's
};

bool HasNoBody(int status);

// Status line and fields. Of the response's fields those are left out that the carrier writes, and those whose name is
// none; what would end a value's line becomes a space.
std::string HttpHead(const HttpResponse& response, const HttpHeadOptions& options);

}  // namespace headwise

#endif  // HEADWISE_SERVER_HTTP_HEAD_H_
