// Conversations as token ids, as the model was trained on them: by the chat template that it brings (a program in the
// language of Jinja2, run under limits), or in one of the published forms that are built in. What people wrote is
// ordinary text in either: special tokens are looked for in the template's own text alone, so no message can forge a
// marker, whatever the template does with it.
#ifndef HEADWISE_CHAT_H_
#define HEADWISE_CHAT_H_

#include <headwise/status.h>
#include <headwise/tokenizer.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headwise {

class Engine;       // headwise/engine.h
class ChatEncoder;  // text/chat_encoder.h

struct ChatMessage {
  std::string role;  // "system" (first only), "user" or "assistant"; of others templates decide
  std::string content;
  // For messages that have more than a role and a text (tool_calls, name, tool_call_id, reasoning_content, a content
  // that is a list of parts): all of it as a JSON object. Templates read this and not the two, which say the same as
  // far as they can; built-in forms refuse it.
  std::string json = {};
};

enum class ChatEnd {
  kOpenAssistantTurn,  // ready for the model to answer
  kAsGiven,
};

// What a template is given. All but the messages and their end is refused by built-in forms.
struct ChatPrompt {
  std::span<const ChatMessage> messages = {};
  ChatEnd end = ChatEnd::kOpenAssistantTurn;
  // As JSON; empty: none.
  std::string_view tools = {};      // a list of functions as the model's template expects them
  std::string_view documents = {};  // a list of objects
  std::string_view variables = {};  // an object: further variables, "enable_thinking" for one
};

// How the answer before ended.
enum class AnswerEnd {
  kClosed,  // with a stop token, which is part of the text already
  kCut,     // by a limit or by the user: the end token is still to come
};

struct NextTurn {
  // False where the template writes differently now what was said before, as some leave out earlier thoughts.
  bool goes_on = true;
  // What follows the answer in the same sequence, or, where it does not go on, the whole conversation for a new one.
  std::vector<int32_t> ids = {};
};

struct ChatFormatOptions {
  // A built-in form: "chatml", "llama-2", "llama-3", "mistral", "mistral-v3" or "vicuna". Empty: the model's own
  // template; where it has none, the form that the markers in its vocabulary tell.
  std::string form = {};
  // A template in place of the model's own; its origin opens messages about it.
  std::optional<ChatTemplateText> chat_template = std::nullopt;
  // The id that every text for the model begins with. Built-in forms put it in front. Llama and Mistral forms have one
  // in any case: there it only says which, in place of the tokenizer's. A template writes its own or none.
  std::optional<int32_t> bos_id = std::nullopt;
  // Ids that end the model's texts, besides the tokenizer's.
  std::vector<int32_t> eos_ids = {};
};

// How the conversations of one model become tokens. Cheap to copy; safe to use from several threads at once.
class ChatFormat {
 public:
  // Borrows the tokenizer. An error if there is no such form, if the model's files tell none, or if its template cannot
  // be read: the message then says where it stands, the line and what to name instead.
  static Result<ChatFormat> Find(const Tokenizer& tokenizer, const ChatFormatOptions& options = {});

  // The built-in form's name, or where the template stands.
  std::string_view name() const;
  bool is_template() const;

  // The whole prompt, start token included. With tools given the model's template named "tool_use" is taken, if it has
  // one. An error if the form does not allow the order of the roles, the tokenizer lacks a marker, or the template
  // refuses the conversation (its own words), fails or takes too long.
  Result<std::vector<int32_t>> Encode(const ChatPrompt& prompt) const;

  // The ids that end an answer: the end of text, and the end-of-turn markers of the form, or the special token that the
  // template writes behind an answer; those of them that the tokenizer has.
  const std::vector<int32_t>& stop_ids() const;

  // For a conversation that goes on in a live KV cache, which has everything up to its last answer: what to read next,
  // so that only what is new is encoded, however long it has lasted. `prompt` is all of it, the answer and the new
  // message last, and but for these two what Encode or EncodeNextTurn was given the time before. Under a template it
  // goes on where the new text begins with the old one and the answer as it was; white space around it does not count.
  Result<NextTurn> EncodeNextTurn(const ChatPrompt& prompt, AnswerEnd last_answer) const;

 private:
  explicit ChatFormat(std::shared_ptr<const ChatEncoder> encoder) : encoder_(std::move(encoder)) {}

  std::shared_ptr<const ChatEncoder> encoder_;
};

// The format of the engine's model: as ChatFormat::Find has it, with the start and end tokens that the model's config
// tells. Borrows the engine. A model without a tokenizer is an error.
Result<ChatFormat> FindChatFormat(const Engine& engine, ChatFormatOptions options = {});

}  // namespace headwise

#endif  // HEADWISE_CHAT_H_
