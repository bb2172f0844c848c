// The options of `run` and `chat` that say how conversations become tokens.
#ifndef HEADWISE_APPS_CHAT_OPTIONS_H_
#define HEADWISE_APPS_CHAT_OPTIONS_H_

#include <headwise/chat.h>
#include <headwise/engine.h>
#include <headwise/status.h>

#include <CLI/CLI.hpp>
#include <string>

namespace headwise {

struct ChatFlags {
  std::string form;
  std::string template_file;
  std::string variables;  // JSON
  std::string tools_file;
  std::string documents_file;

  // One that was given, as it is called; null if none was.
  const char* Given() const;
};

// --chat-form, --chat-template and --chat-template-kwargs.
void AddChatFormatOptions(CLI::App& command, ChatFlags& flags);
// --tools and --documents.
void AddChatInputOptions(CLI::App& command, ChatFlags& flags);

// As in ChatPrompt.
struct ChatInputs {
  std::string tools;
  std::string documents;
  std::string variables;
};

// What the flags name, read.
struct ChatSetup {
  ChatFormatOptions format;
  ChatInputs inputs;
};

// All that is wrong without a model is found.
Result<ChatSetup> ReadChatSetup(const ChatFlags& flags);

// An error too where something was set up that the format has no use for. Borrows the engine.
Result<ChatFormat> FindFormat(const ChatSetup& setup, const Engine& engine);

}  // namespace headwise

#endif  // HEADWISE_APPS_CHAT_OPTIONS_H_
