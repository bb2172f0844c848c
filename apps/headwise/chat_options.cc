#include "chat_options.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "base/file.h"
#include "base/json.h"

namespace headwise {
namespace {

constexpr const char* kForm = "--chat-form";
constexpr const char* kTemplate = "--chat-template";
constexpr const char* kVariables = "--chat-template-kwargs";
constexpr const char* kTools = "--tools";
constexpr const char* kDocuments = "--documents";

// The text of a JSON file with a list.
Result<std::string> ReadList(const std::string& file) {
  if (file.empty()) return std::string();
  HW_ASSIGN_OR_RETURN(std::string text, ReadFile(file));
  HW_ASSIGN_OR_RETURN(const Json json, ParseJson(text, file));
  if (json.is_array()) return text;
  return Status::InvalidInput(fmt::format("{}: found {}, expected a list", file, json.type_name()));
}

}  // namespace

const char* ChatFlags::Given() const {
  if (!form.empty()) return kForm;
  if (!template_file.empty()) return kTemplate;
  if (!variables.empty()) return kVariables;
  if (!tools_file.empty()) return kTools;
  return documents_file.empty() ? nullptr : kDocuments;
}

void AddChatFormatOptions(CLI::App& command, ChatFlags& flags) {
  CLI::Option* form = command.add_option(
      kForm, flags.form,
      "chatml, llama-2, llama-3, mistral, mistral-v3 or vicuna, in place of the model's own chat template; without "
      "either, the form that its vocabulary tells");
  command.add_option(kTemplate, flags.template_file, "A file with a chat template, in place of the model's own")
      ->excludes(form);
  command.add_option(kVariables, flags.variables,
                     "A JSON object of variables for the chat template: '{\"enable_thinking\": false}'");
}

void AddChatInputOptions(CLI::App& command, ChatFlags& flags) {
  command.add_option(kTools, flags.tools_file, "A JSON file with a list of functions for the chat template");
  command.add_option(kDocuments, flags.documents_file, "A JSON file with a list of documents for the chat template");
}

Result<ChatSetup> ReadChatSetup(const ChatFlags& flags) {
  ChatSetup setup;
  setup.format.form = flags.form;
  setup.inputs.variables = flags.variables;
  if (!flags.template_file.empty()) {
    HW_ASSIGN_OR_RETURN(std::string source, ReadFile(flags.template_file));
    setup.format.chat_template =
        ChatTemplateText{.name = "default", .source = std::move(source), .origin = flags.template_file};
  }
  if (!flags.variables.empty()) {
    HW_ASSIGN_OR_RETURN(const Json json, ParseJson(flags.variables, kVariables));
    HW_RETURN_IF_ERROR(JsonObject::Of(json, kVariables).status());
  }
  HW_ASSIGN_OR_RETURN(setup.inputs.tools, ReadList(flags.tools_file));
  HW_ASSIGN_OR_RETURN(setup.inputs.documents, ReadList(flags.documents_file));
  return setup;
}

Result<ChatFormat> FindFormat(const ChatSetup& setup, const Engine& engine) {
  HW_ASSIGN_OR_RETURN(ChatFormat format, FindChatFormat(engine, setup.format));
  const char* useless = format.is_template()              ? nullptr
                        : !setup.inputs.variables.empty() ? kVariables
                        : !setup.inputs.tools.empty()     ? kTools
                        : !setup.inputs.documents.empty() ? kDocuments
                                                          : nullptr;
  if (useless == nullptr) return format;
  return Status::InvalidInput(
      fmt::format("{}: the chat form {} has no use for it, expected a chat template", useless, format.name()));
}

}  // namespace headwise
