// Which server load is sent to: an http or https address, as OpenAI's clients take it.
#ifndef HEADWISE_LOADGEN_LOAD_TARGET_H_
#define HEADWISE_LOADGEN_LOAD_TARGET_H_

#include <headwise/status.h>

#include <string>
#include <string_view>

namespace headwise {

struct LoadTarget {
  bool is_tls = false;
  std::string host;  // without the brackets of an IPv6 address
  std::string port;  // "8080"
  std::string path;  // in front of "/v1" and "/tokenize"; empty or "/something"

  // The value of the field Host: "[::1]:8080".
  std::string Authority() const;
};

// "http://127.0.0.1:8080", "https://name/v1": with "/v1" at the end, as OpenAI's clients have it, or without, as vLLM's
// bench has it. An error says what was found and what was expected.
Result<LoadTarget> ParseBaseUrl(std::string_view url);

}  // namespace headwise

#endif  // HEADWISE_LOADGEN_LOAD_TARGET_H_
