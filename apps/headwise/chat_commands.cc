#include "chat_commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "text/chat_messages.h"
#include "text/escape.h"

namespace headwise {
namespace {

constexpr const char* kHelp =
    "/help         this list\n"
    "/reset        begin anew; the system prompt stays\n"
    "/system TEXT  begin anew with this system prompt; without TEXT: show the one there is\n"
    "/save FILE    write the conversation as JSON: [{\"role\": ..., \"content\": ...}, ...]\n"
    "/load FILE    go on with such a conversation, its system prompt included\n"
    "/quit, /exit  end the program\n"
    "//...         a message that begins with one slash\n"
    "Ctrl-C ends an answer; at the prompt it clears the line, and pressed again ends the program.\n";

enum class Argument { kNone, kOptional, kFile };

template <typename... T>
void Say(fmt::format_string<T...> format, T&&... arguments) {
  fmt::print(stderr, "{}", EscapeControls(fmt::format(format, std::forward<T>(arguments)...)));
}

std::string_view Trim(std::string_view text) {
  constexpr const char* kBlanks = " \t\r";
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

AfterCommand Help(std::string_view, Conversation&) {
  Say("{}", kHelp);
  return AfterCommand::kGoOn;
}

AfterCommand Quit(std::string_view, Conversation&) {
  return AfterCommand::kQuit;
}

AfterCommand Reset(std::string_view, Conversation& conversation) {
  conversation.Reset();
  Say("[a new conversation]\n");
  return AfterCommand::kGoOn;
}

AfterCommand System(std::string_view text, Conversation& conversation) {
  if (text.empty()) {
    const std::string* system = conversation.system();
    Say("{}\n", system == nullptr ? "[no system prompt]" : *system);
  } else {
    conversation.Begin(std::string(text));
    Say("[a new conversation with this system prompt]\n");
  }
  return AfterCommand::kGoOn;
}

AfterCommand Save(std::string_view file, Conversation& conversation) {
  const std::string text = ToJson(conversation.messages()).dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  const Status status = WriteFileAtomically(std::string(file), text);
  if (status.ok()) {
    Say("[{}: {} messages]\n", file, conversation.messages().size());
  } else {
    Say("{}\n", status.message());
  }
  return AfterCommand::kGoOn;
}

Result<size_t> LoadInto(const std::string& file, Conversation& conversation) {
  HW_ASSIGN_OR_RETURN(const std::string text, ReadFile(file));
  HW_RETURN_IF_ERROR(ParseJson(text, file).status());
  HW_ASSIGN_OR_RETURN(std::vector<ChatMessage> messages,
                      ReadChatMessages(nlohmann::ordered_json::parse(text, nullptr, false), file));
  HW_RETURN_IF_ERROR(CheckWholeTurns(messages, file));
  const size_t num_messages = messages.size();
  HW_RETURN_IF_ERROR(conversation.TakeUp(std::move(messages)).Annotate(file));
  return num_messages;
}

AfterCommand Load(std::string_view file, Conversation& conversation) {
  const Result<size_t> num_messages = LoadInto(std::string(file), conversation);
  if (num_messages.ok()) {
    Say("[{}: {} messages]\n", file, *num_messages);
  } else {
    Say("{}; the conversation is as it was\n", num_messages.status().message());
  }
  return AfterCommand::kGoOn;
}

struct Command {
  std::string_view name;
  Argument argument;
  AfterCommand (*run)(std::string_view argument, Conversation& conversation);
};
constexpr Command kCommands[] = {
    {"/help", Argument::kNone, Help}, {"/reset", Argument::kNone, Reset}, {"/system", Argument::kOptional, System},
    {"/save", Argument::kFile, Save}, {"/load", Argument::kFile, Load},   {"/quit", Argument::kNone, Quit},
    {"/exit", Argument::kNone, Quit},
};

}  // namespace

bool IsChatCommand(std::string_view line) {
  return line.starts_with('/') && !line.starts_with("//");
}

AfterCommand RunChatCommand(std::string_view line, Conversation& conversation) {
  const std::string_view name = line.substr(0, line.find_first_of(" \t\r"));
  const std::string_view argument = Trim(line.substr(name.size()));
  const auto command = std::ranges::find(kCommands, name, &Command::name);
  if (command == std::end(kCommands)) {
    Say("{} is no command: /help has a list; a message that begins with a slash is typed with two\n", name);
  } else if (command->argument == Argument::kNone && !argument.empty()) {
    Say("{}: found \"{}\" behind it, expected nothing\n", name, argument);
  } else if (command->argument == Argument::kFile && argument.empty()) {
    Say("{}: expected a file behind it\n", name);
  } else {
    return command->run(argument, conversation);
  }
  return AfterCommand::kGoOn;
}

}  // namespace headwise
