// A conversation that goes on in a live KV cache: only what is new is encoded, however long it has lasted.
#ifndef HEADWISE_ENGINE_CHAT_TURNS_H_
#define HEADWISE_ENGINE_CHAT_TURNS_H_

#include <headwise/status.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace headwise {

// The form named `name`, or, where that is empty, the one that the tokenizer's files tell.
Result<ChatForm> FindChatForm(const Tokenizer& tokenizer, const std::string& name);

// Everything before the first answer.
Result<std::vector<int32_t>> EncodeFirstTurn(const Tokenizer& tokenizer, ChatForm form, const std::string& message,
                                             std::optional<int32_t> bos_id);

// How the answer before ended.
enum class AnswerEnd {
  kClosed,  // with its end token, which is part of the text already
  kCut,     // by a limit or by the user: the end token is still to come
};

// What comes between an answer and the next: the end of the last turn, the new message, the beginning of the answer.
Result<std::vector<int32_t>> EncodeNextTurn(const Tokenizer& tokenizer, ChatForm form, const std::string& message,
                                            AnswerEnd last_answer);

}  // namespace headwise

#endif  // HEADWISE_ENGINE_CHAT_TURNS_H_
