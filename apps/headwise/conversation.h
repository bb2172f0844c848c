// One conversation of `chat`: what was said, and the KV cache that has it, so that nothing is read twice, unless the
// model's chat template writes anew what was said before.
#ifndef HEADWISE_APPS_CONVERSATION_H_
#define HEADWISE_APPS_CONVERSATION_H_

#include <headwise/chat.h>
#include <headwise/engine.h>
#include <headwise/status.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "generate.h"

namespace headwise {

class Conversation {
 public:
  struct Options {
    ChatFormat format;
    std::string variables = {};  // as in ChatPrompt
    std::shared_ptr<const HeadPlan> plan = nullptr;
    SamplingOptions sampling = {};
    int64_t max_tokens = 0;  // of the whole of it
    int64_t max_new_tokens = 0;
    bool stats = false;
  };

  // Borrows the engine, which has a tokenizer, and the guard, whose Ctrl-C ends an answer.
  Conversation(Engine& engine, InterruptGuard& guard, Options options)
      : engine_(engine), guard_(guard), options_(std::move(options)) {}

  // All of it, a system prompt in front where there is one.
  std::span<const ChatMessage> messages() const { return messages_; }
  // Null where there is none.
  const std::string* system() const;

  // Forgets all but the system prompt.
  void Reset();
  // The same, with another one.
  void Begin(const std::string& system);
  // Goes on with `messages`, which are CheckWholeTurns. Where they do not fit, nothing has changed.
  Status TakeUp(std::vector<ChatMessage> messages);

  // Sends `message` and shows the answer as it comes. False where the context has no room for the two: then the message
  // was not sent. A message whose reading is interrupted is not part of the conversation either.
  Result<bool> Turn(const std::string& message);

 private:
  // What is to be read: the next turn where a cache has those before and the format lets them be, otherwise all of
  // them.
  Result<NextTurn> Encode(const std::string& message) const;

  Engine& engine_;
  InterruptGuard& guard_;
  Options options_;
  std::vector<ChatMessage> messages_;
  std::shared_ptr<Sequence> sequence_;  // null where nothing of it is in a cache
  AnswerEnd last_answer_ = AnswerEnd::kCut;
};

}  // namespace headwise

#endif  // HEADWISE_APPS_CONVERSATION_H_
