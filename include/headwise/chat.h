// Conversations as token ids, in the forms that published chat models were trained on. A form is a row of a table: the
// markers around a turn, as special tokens where the form has them. What people wrote is encoded as ordinary text, so
// no message can forge a marker. A model's own chat template (a Jinja program) is only looked at to tell which form it
// is.
#ifndef HEADWISE_CHAT_H_
#define HEADWISE_CHAT_H_

#include <headwise/status.h>
#include <headwise/tokenizer.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headwise {

class Engine;  // headwise/engine.h

struct ChatMessage {
  std::string role;  // "system" (first only), "user" or "assistant"
  std::string content;
};

enum class ChatForm {
  kChatMl,  // Qwen, Yi, and the bundled model
  kLlama2,
  kLlama3,
  kMistral,    // 7B Instruct v0.1 and v0.2: [INST] is text
  kMistralV3,  // v0.3 and later: [INST] is a special token
  kVicuna,     // v1.1 and later
};

// "chatml", "llama-2", "llama-3", "mistral", "mistral-v3", "vicuna".
Result<ChatForm> ChatFormByName(std::string_view name);
std::string_view ChatFormName(ChatForm form);

// The form named `name`, or, where that is empty, the one that the tokenizer's files tell.
Result<ChatForm> FindChatForm(const Tokenizer& tokenizer, const std::string& name);

// By the chat template's text, and where there is none by the markers in the vocabulary; nothing if neither tells.
std::optional<ChatForm> DetectChatForm(const Tokenizer& tokenizer);

enum class ChatEnd {
  kOpenAssistantTurn,  // ready for the model to answer
  kAsGiven,
};

struct ChatPrompt {
  ChatForm form;
  std::span<const ChatMessage> messages;
  ChatEnd end = ChatEnd::kOpenAssistantTurn;
  // The id that every text for this model begins with. Llama and Mistral forms have one in any case: there it only
  // says which, in place of the tokenizer's.
  std::optional<int32_t> bos_id = std::nullopt;
};

// The whole prompt, start token included. An error if the form does not allow the order of the roles, or the tokenizer
// lacks a marker.
Result<std::vector<int32_t>> EncodeChat(const Tokenizer& tokenizer, const ChatPrompt& prompt);

// The ids that end an answer: the form's end-of-turn marker and the end of text, those of them that the tokenizer has.
std::vector<int32_t> ChatStopIds(const Tokenizer& tokenizer, ChatForm form);

// What a request needs to answer a conversation: its `prompt` and its `stop_tokens`.
struct ChatIds {
  std::vector<int32_t> prompt;
  std::vector<int32_t> stop_tokens;
};

// In the model's own form, or in the one named `form`. A model without a tokenizer is an error, and one whose files do
// not tell their form.
Result<ChatIds> EncodeChat(const Engine& engine, std::span<const ChatMessage> messages, const std::string& form = "");

// ---- A conversation that goes on in a live KV cache: only what is new is encoded, however long it has lasted. ----

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

#endif  // HEADWISE_CHAT_H_
