// How models write calls of functions, and answers that hold them.
#ifndef HEADWISE_SERVER_TOOL_SYNTAX_H_
#define HEADWISE_SERVER_TOOL_SYNTAX_H_

#include <headwise/chat.h>
#include <headwise/tokenizer.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "grammar/call_grammar.h"
#include "server/tool_fields.h"

namespace headwise {

enum class ToolSyntax {
  kHermes,   // <tool_call>\n{"name": ..., "arguments": {...}}\n</tool_call>, among text: Qwen's and Hermes' models
  kLlama,    // {"name": ..., "parameters": {...}} as the whole answer, one call: Llama 3.1 and after
  kMistral,  // [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...] at the end of the answer
  // The template knows of no tools, or writes them in none of these ways: they are told in a system prompt, and called
  // as kHermes does.
  kGeneric,
};

// By what stands in the template that conversations with tools take.
ToolSyntax FindToolSyntax(std::string_view chat_template);

// The token that begins calls and is no text; nothing where the syntax or the vocabulary has none.
std::optional<int32_t> CallMarker(ToolSyntax syntax, const Tokenizer& tokenizer);

// Requires: there are tools to call. `form`: of answers that call nothing, where they are not text of any kind; null
// where they are, or where every answer is a call.
CallGrammar MakeCallGrammar(ToolSyntax syntax, const ApiTools& tools, std::optional<int32_t> marker,
                            const GrammarSource* form = nullptr);
// How an answer begins that is calls, with the name of one of the functions or a marker: what ToolCallReader tells it
// by where the answer is calls or a text of a form.
std::vector<std::string> CallBeginnings(ToolSyntax syntax, const ApiTools& tools);

// A conversation as the template takes it. Arguments of calls, which OpenAI has as texts, are objects to templates;
// under kGeneric the tools are told, and calls and results become text.
std::vector<ChatMessage> MessagesWithTools(ToolSyntax syntax, const std::vector<ChatMessage>& messages,
                                           const std::string& tools_json);

// What of a call is new. `id` and `name` come with its beginning.
struct ToolCallDelta {
  size_t index = 0;
  std::string id = {};
  std::string name = {};
  std::string arguments = {};  // a piece of JSON

  bool begins() const { return !name.empty(); }
};

// Text and calls out of an answer under MakeCallGrammar, as it comes. White space between text and a call, and between
// calls, is nobody's. A call that the answer ends in before its arguments begin is none.
class ToolCallReader {
 public:
  // With `beginnings` an answer that begins with none of them is text throughout, whatever is in it.
  explicit ToolCallReader(ToolSyntax syntax, std::vector<std::string> beginnings = {})
      : syntax_(syntax), beginnings_(std::move(beginnings)) {}

  struct Piece {
    std::string text;
    std::vector<ToolCallDelta> calls;
  };
  Piece Push(std::string_view text);
  // What was held back, at the end.
  Piece Finish();

  size_t num_calls() const { return num_calls_; }

 private:
  enum class State { kBegin, kForm, kText, kHeader, kArguments, kAfter, kOver };

  // Where it can be told what the answer is: the state that follows.
  std::optional<State> ReadBegin() const;
  void ReadText(Piece& piece);
  bool ReadHeader(Piece& piece);
  void ReadArguments(Piece& piece);
  bool ReadAfter();
  void Show(std::string_view text, Piece& piece);

  ToolSyntax syntax_;
  std::vector<std::string> beginnings_;
  State state_ = State::kBegin;
  std::string rest_;   // not yet understood
  std::string space_;  // white space that is shown if text follows
  size_t num_calls_ = 0;
  int depth_ = 0;  // of the arguments' brackets
  bool in_string_ = false;
  bool is_escaped_ = false;
};

// What stands for the marker in the text that ToolCallReader is given.
inline constexpr std::string_view kMistralMarker = "[TOOL_CALLS]";

}  // namespace headwise

#endif  // HEADWISE_SERVER_TOOL_SYNTAX_H_
