// The conversations that published chat models were trained on, as rows of a table: the markers around a turn, as
// special tokens where the form has them.
#ifndef HEADWISE_TEXT_CHAT_FORM_TABLE_H_
#define HEADWISE_TEXT_CHAT_FORM_TABLE_H_

#include <array>
#include <cstdint>
#include <string_view>

namespace headwise {

// Stands for the start or end token in a row; the tokenizer says which those are.
inline constexpr std::string_view kBos = "{bos}";
inline constexpr std::string_view kEos = "{eos}";

// One stretch around a message. `special` tokens are ids, `text` is joined with its neighbours before it is encoded:
// words are cut across the joint, as they were in training.
struct Mark {
  std::string_view special = {};
  std::string_view text = {};
};
using Marks = std::array<Mark, 4>;

enum class SystemPlace { kOwnTurn, kInFirstUser, kInLastUser };
enum class BosRule { kIfGiven, kOnce, kEveryUserTurn };
enum class Trim { kNothing, kEnds };
enum class Roles { kAny, kAlternate };

struct ChatFormRow {
  std::string_view name;
  Marks before_system, after_system;  // around the system prompt, wherever it stands
  Marks before_user, after_user;
  Marks before_assistant, after_assistant;
  Marks open_assistant;
  SystemPlace system_place = SystemPlace::kOwnTurn;
  BosRule bos = BosRule::kIfGiven;
  Trim trim = Trim::kNothing;
  Roles roles = Roles::kAlternate;
  std::string_view default_system = {};
  std::array<std::string_view, 3> stops = {};
};

constexpr Marks ChatMlTurn(std::string_view role) {
  return {{{"<|im_start|>", role}}};
}
inline constexpr Marks kChatMlEnd = {{{"<|im_end|>", "\n"}}};
constexpr Marks Llama3Turn(std::string_view role) {
  return {{{"<|start_header_id|>", role}, {"<|end_header_id|>", "\n\n"}}};
}
inline constexpr Marks kLlama3End = {{{"<|eot_id|>", ""}}};

inline constexpr ChatFormRow kForms[] = {
    {.name = "chatml",
     .before_system = ChatMlTurn("system\n"),
     .after_system = kChatMlEnd,
     .before_user = ChatMlTurn("user\n"),
     .after_user = kChatMlEnd,
     .before_assistant = ChatMlTurn("assistant\n"),
     .after_assistant = kChatMlEnd,
     .open_assistant = ChatMlTurn("assistant\n"),
     .roles = Roles::kAny,
     .stops = {"<|im_end|>", "<|endoftext|>"}},
    {.name = "llama-2",
     .before_system = {{{"", "<<SYS>>\n"}}},
     .after_system = {{{"", "\n<</SYS>>\n\n"}}},
     .before_user = {{{"", "[INST] "}}},
     .after_user = {{{"", " [/INST]"}}},
     .before_assistant = {{{"", " "}}},
     .after_assistant = {{{"", " "}, {kEos, ""}}},
     .open_assistant = {},
     .system_place = SystemPlace::kInFirstUser,
     .bos = BosRule::kEveryUserTurn,
     .trim = Trim::kEnds},
    {.name = "llama-3",
     .before_system = Llama3Turn("system"),
     .after_system = kLlama3End,
     .before_user = Llama3Turn("user"),
     .after_user = kLlama3End,
     .before_assistant = Llama3Turn("assistant"),
     .after_assistant = kLlama3End,
     .open_assistant = Llama3Turn("assistant"),
     .bos = BosRule::kOnce,
     .trim = Trim::kEnds,
     .roles = Roles::kAny,
     .stops = {"<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"}},
    {.name = "mistral",
     .before_system = {},
     .after_system = {{{"", "\n\n"}}},
     .before_user = {{{"", "[INST] "}}},
     .after_user = {{{"", " [/INST]"}}},
     .before_assistant = {{{"", " "}}},
     .after_assistant = {{{kEos, ""}}},
     .open_assistant = {},
     .system_place = SystemPlace::kInFirstUser,
     .bos = BosRule::kOnce},
    {.name = "mistral-v3",
     .before_system = {},
     .after_system = {{{"", "\n\n"}}},
     .before_user = {{{"[INST]", " "}}},
     .after_user = {{{"[/INST]", ""}}},
     .before_assistant = {{{"", " "}}},
     .after_assistant = {{{kEos, ""}}},
     .open_assistant = {},
     .system_place = SystemPlace::kInLastUser,
     .bos = BosRule::kOnce},
    {.name = "vicuna",
     .before_system = {},
     .after_system = {{{"", " "}}},
     .before_user = {{{"", "USER: "}}},
     .after_user = {{{"", " "}}},
     .before_assistant = {{{"", "ASSISTANT: "}}},
     .after_assistant = {{{kEos, ""}}},
     .open_assistant = {{{"", "ASSISTANT:"}}},
     .bos = BosRule::kOnce,
     .default_system = "A chat between a curious user and an artificial intelligence assistant. The assistant gives "
                       "helpful, detailed, and polite answers to the user's questions."},
};

}  // namespace headwise

#endif  // HEADWISE_TEXT_CHAT_FORM_TABLE_H_
