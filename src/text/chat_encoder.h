// The two ways in which conversations become tokens: <headwise/chat.h> says what they have in common.
#ifndef HEADWISE_TEXT_CHAT_ENCODER_H_
#define HEADWISE_TEXT_CHAT_ENCODER_H_

#include <headwise/chat.h>
#include <headwise/status.h>
#include <headwise/tokenizer.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headwise {

// Functions as those of ChatFormat.
class ChatEncoder {
 public:
  virtual ~ChatEncoder() = default;
  virtual std::string_view name() const = 0;
  virtual bool is_template() const = 0;
  virtual Result<std::vector<int32_t>> Encode(const ChatPrompt& prompt) const = 0;
  virtual const std::vector<int32_t>& stop_ids() const = 0;
  // Requires: prompt.messages ends with an answer and a message that is none; the prompt's end is kOpenAssistantTurn.
  virtual Result<NextTurn> EncodeNextTurn(const ChatPrompt& prompt, AnswerEnd last_answer) const = 0;
};

// A row of the table of built-in forms; an error that lists them for a name that none has. Both borrow the tokenizer.
Result<std::shared_ptr<const ChatEncoder>> MakeFormEncoder(const Tokenizer& tokenizer,
                                                           const ChatFormatOptions& options);
Result<std::shared_ptr<const ChatEncoder>> MakeTemplateEncoder(const Tokenizer& tokenizer,
                                                               const ChatFormatOptions& options,
                                                               std::vector<ChatTemplateText> templates);

// The form of a model without a template, by the markers in its vocabulary; nothing if they do not tell.
std::optional<std::string> DetectChatForm(const Tokenizer& tokenizer);

// Appends the id if there is one and it is not there yet.
void AddStopId(std::optional<int32_t> id, std::vector<int32_t>& ids);

}  // namespace headwise

#endif  // HEADWISE_TEXT_CHAT_ENCODER_H_
