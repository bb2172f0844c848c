// Answers in OpenAI's form: whole objects and the chunks of a stream. Whoever fills them is completion_job.h.
#ifndef HEADWISE_SERVER_OPENAI_RESPONSE_H_
#define HEADWISE_SERVER_OPENAI_RESPONSE_H_

#include <headwise/engine.h>
#include <headwise/tokenizer.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "server/openai_request.h"
#include "server/tool_syntax.h"

namespace headwise {

// Fields in the order in which they are documented, for people who read them.
using ApiJson = nlohmann::ordered_json;

// What all objects of one reply say.
struct ResponseHead {
  ApiKind kind = ApiKind::kCompletion;
  std::string id;
  int64_t created = 0;  // seconds since 1970
  std::string model;
  std::string fingerprint;  // of the arithmetic: answers to equal requests with equal seeds may differ where it does
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;  // of prompts, that were not read because a request before had
  // Headwise's own: what the KV caches of all choices took, each counted as if it were alone.
  std::string plan;
  int64_t kv_bytes = 0;
  int64_t kv_bytes_full = 0;
  int64_t kv_bytes_bounded = 0;
  int64_t kv_peak_bytes = 0;

  void Add(const RequestMetrics& metrics);
};

// A token of an answer, or of a prompt that is echoed.
struct LoggedToken {
  int32_t id = 0;
  std::optional<float> logprob;  // none of the first token of a prompt
  std::vector<TokenLogprob> top;
  int64_t text_offset = 0;  // in characters of the choice's text
};

// The tokens of a growing text, let out as their text is: so that a stop string, which is cut off, takes its tokens
// with it, in a stream as in a whole answer.
class TokenLog {
 public:
  // Borrows the tokenizer. `first_offset`: of its first token, in characters.
  TokenLog(const Tokenizer& tokenizer, int64_t first_offset) : decoder_(tokenizer), num_characters_(first_offset) {}

  void Push(LoggedToken token);
  // Those whose text begins within the first `num_bytes` of the text.
  std::vector<LoggedToken> TakeWithin(size_t num_bytes);
  std::vector<LoggedToken> TakeAll() { return TakeWithin(SIZE_MAX); }

 private:
  struct Waiting {
    LoggedToken token;
    size_t begin = 0;  // in bytes
  };

  StreamDecoder decoder_;
  size_t num_bytes_ = 0;
  int64_t num_characters_;
  std::deque<Waiting> waiting_;
};

// The "logprobs" of a choice, in the form of the endpoint.
ApiJson LogprobsJson(ApiKind kind, std::span<const LoggedToken> tokens, const Tokenizer& tokenizer);

int64_t CountCharacters(std::string_view text);

// "stop", "length", or "tool_calls" of an answer that ended by itself and has some; of a text that ended otherwise
// there is no choice to show.
const char* FinishReasonName(FinishReason finish, bool has_calls = false);

ApiJson UsageJson(const Usage& usage);

// One of `choices` of a whole answer. `logprobs` may be null; calls are whole, of chats alone.
ApiJson ChoiceJson(ApiKind kind, int64_t index, const std::string& text, ApiJson logprobs, FinishReason finish,
                   std::span<const ToolCallDelta> calls = {});
ApiJson ResponseJson(const ResponseHead& head, ApiJson choices, const Usage& usage);

// A chunk of a stream with one piece of one choice. The first of a chat's choice says who speaks.
enum class Piece { kFirst, kText, kLast };
ApiJson ChunkJson(const ResponseHead& head, int64_t index, Piece piece, const std::string& text, ApiJson logprobs,
                  std::optional<FinishReason> finish, bool has_calls = false);
// One with pieces of calls.
ApiJson CallsChunkJson(const ResponseHead& head, int64_t index, std::span<const ToolCallDelta> calls, ApiJson logprobs);
// The last chunk, where usage is asked for.
ApiJson UsageChunkJson(const ResponseHead& head, const Usage& usage);

// As bytes: text that is no UTF-8 becomes U+FFFD.
std::string ToText(const ApiJson& json);
// One event of a stream.
std::string EventText(const ApiJson& json);
inline constexpr const char* kLastEvent = "data: [DONE]\n\n";

}  // namespace headwise

#endif  // HEADWISE_SERVER_OPENAI_RESPONSE_H_
