// The file of `run --prompts`: a JSON object a line, each a request of its own.
#ifndef HEADWISE_APPS_PROMPT_LINES_H_
#define HEADWISE_APPS_PROMPT_LINES_H_

#include <headwise/chat.h>
#include <headwise/engine.h>
#include <headwise/status.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "run_request.h"

namespace headwise {

// One line: a prompt or messages, and what it has in place of the command's options.
struct PromptLine {
  std::string origin;                 // "<file>:<line>", which opens messages
  Json id;                            // as it stands there; null where it has none
  std::optional<std::string> prompt;  // or:
  std::vector<ChatMessage> messages;
  ChatInputs inputs;
  SamplingOptions sampling;  // but for the seed
  std::optional<uint64_t> seed;
  std::vector<std::string> stop;
  std::optional<int64_t> logprobs;
  int64_t max_new_tokens = 0;  // -1: as many as --max-context allows
};

// The lines of options.prompts, "-": of standard input. All that shows without a model is checked: keys, types, ranges.
// `inputs` are those of lines that have none.
Result<std::vector<PromptLine>> ReadPromptLines(const RunOptions& options, const ChatInputs& inputs);

// Whether a line is a conversation: it has messages, or a prompt under --chat.
bool IsChat(const PromptLine& line, const RunOptions& options);

// The request of one line, but for the plan, the seed and max_new_tokens, which depends on the room there is. `format`
// may be null where the line is no conversation.
Result<Request> MakeRequest(const PromptLine& line, const RunOptions& options, const Engine& engine,
                            const ChatFormat* format);

}  // namespace headwise

#endif  // HEADWISE_APPS_PROMPT_LINES_H_
