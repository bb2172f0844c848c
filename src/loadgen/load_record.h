// What was seen of one request of a load run. Times are seconds from the beginning of the run.
#ifndef HEADWISE_LOADGEN_LOAD_RECORD_H_
#define HEADWISE_LOADGEN_LOAD_RECORD_H_

#include <cstdint>
#include <string>
#include <vector>

namespace headwise {

struct LoadRecord {
  int64_t request = 0;              // which one, from 0
  double arrival = 0;               // when it was to begin
  double start = 0;                 // when it began: later under a limit of concurrency
  double connected = 0;             // when its connection stood; 0: it never did
  std::vector<double> pieces = {};  // when pieces of the answer came; several tokens in one are one piece
  double end = 0;                   // when all of it had come, or it failed

  int64_t prompt_tokens = 0;  // 0: nobody told
  int64_t cached_tokens = 0;  // of the prompt, that the server says it did not read
  int64_t output_tokens = 0;
  bool is_counted = false;  // by the server's usage; else prompt_tokens are those sent, output_tokens the pieces
  int64_t wanted_tokens = 0;

  int status = 0;            // of HTTP; 0: none came
  std::string failure = {};  // empty: whole. Else a word: "connect", "tls", "reset", "timeout", "http_429", "protocol",
                             // "stream_error", "incomplete"
  std::string message = {};  // of a failure

  bool ok() const { return failure.empty(); }
};

}  // namespace headwise

#endif  // HEADWISE_LOADGEN_LOAD_RECORD_H_
