// What a streamed answer of /v1/completions says, whoever sends it: OpenAI, vLLM, llama.cpp, headwise.
#ifndef HEADWISE_LOADGEN_COMPLETION_STREAM_H_
#define HEADWISE_LOADGEN_COMPLETION_STREAM_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "loadgen/sse_reader.h"

namespace headwise {

struct StreamUsage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;  // 0 where the server does not say
};

// How an answer went wrong.
struct StreamFailure {
  std::string kind;     // "protocol" or "stream_error"
  std::string message;  // what was found
};

class CompletionStream {
 public:
  // Bytes that were there at `now`, in seconds of whatever clock. False: nothing more is wanted, because the answer has
  // come to its end or because of failure().
  bool Feed(std::string_view bytes, double now);

  // When pieces with text came, in order. Where none had any, when the answer's end was announced: tokens without text
  // are tokens too.
  const std::vector<double>& piece_times() const { return piece_times_; }
  const std::optional<StreamUsage>& usage() const { return usage_; }
  // The server has said that nothing more comes: "[DONE]".
  bool is_done() const { return is_done_; }
  // The model has come to an end: a finish_reason was among the pieces.
  bool is_finished() const { return is_finished_; }
  const std::optional<StreamFailure>& failure() const { return failure_; }

 private:
  bool OnData(std::string_view data, double now);
  bool Fail(std::string kind, std::string message);

  SseReader reader_;
  std::vector<double> piece_times_;
  std::optional<StreamUsage> usage_;
  bool is_done_ = false;
  bool is_finished_ = false;
  std::optional<StreamFailure> failure_;
};

// The sentence in an error's body, {"error": {"message": ...}} or {"message": ...} or {"detail": ...}; else its
// beginning.
std::string ErrorMessageOf(std::string_view body);

}  // namespace headwise

#endif  // HEADWISE_LOADGEN_COMPLETION_STREAM_H_
