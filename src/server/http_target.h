// What a request line asks for: its target, taken apart and decoded.
#ifndef HEADWISE_SERVER_HTTP_TARGET_H_
#define HEADWISE_SERVER_HTTP_TARGET_H_

#include <headwise/status.h>

#include <string>
#include <string_view>
#include <vector>

#include "server/http.h"

namespace headwise {

struct HttpTarget {
  std::string path;   // percent signs decoded
  std::string query;  // as it came, without the "?"
};

// "/path?query" or "http://host/path?query". Refused: other forms ("*", "host:port"), invalid escapes, control
// characters and what is not UTF-8 (also behind escapes), segments "." and "..", and a fragment, which no client sends.
Result<HttpTarget> ParseHttpTarget(std::string_view target);

// The fields of a query, "a=1&b=two+words", in their order: percent signs decoded, "+" is a space. Refused: what
// ParseHttpTarget refuses in a path.
Result<std::vector<HttpField>> ParseHttpQuery(std::string_view query);

}  // namespace headwise

#endif  // HEADWISE_SERVER_HTTP_TARGET_H_
