// What a line of `chat` that begins with a slash does.
#ifndef HEADWISE_APPS_CHAT_COMMANDS_H_
#define HEADWISE_APPS_CHAT_COMMANDS_H_

#include <string_view>

#include "conversation.h"

namespace headwise {

enum class AfterCommand { kGoOn, kQuit };

// Whether `line` is for the program: it begins with one slash. With two it is a message that begins with one.
bool IsChatCommand(std::string_view line);

// What is wrong with a command is said on standard error, where all of this goes; the conversation stays as it was.
// Requires: IsChatCommand(line).
AfterCommand RunChatCommand(std::string_view line, Conversation& conversation);

}  // namespace headwise

#endif  // HEADWISE_APPS_CHAT_COMMANDS_H_
