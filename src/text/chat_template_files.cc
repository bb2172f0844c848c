#include "text/chat_template_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "text/tokenizer_files.h"

namespace headwise {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDefault = "default";
constexpr const char* kConfigKey = "chat_template";

Status AddFile(const fs::path& path, std::string name, std::vector<ChatTemplateText>& templates) {
  HW_ASSIGN_OR_RETURN(std::string source, ReadFile(path.string()));
  templates.push_back({.name = std::move(name), .source = std::move(source), .origin = path.string()});
  return Status::Ok();
}

Result<std::vector<ChatTemplateText>> ReadFiles(const fs::path& folder) {
  std::vector<ChatTemplateText> templates;
  std::error_code error;
  const fs::path one = folder / "chat_template.jinja";
  if (fs::exists(one, error)) HW_RETURN_IF_ERROR(AddFile(one, kDefault, templates));
  std::vector<fs::path> more;
  for (auto it = fs::directory_iterator(folder / "additional_chat_templates", error);
       !error && it != fs::directory_iterator(); it.increment(error)) {
    if (it->path().extension() == ".jinja") more.push_back(it->path());
  }
  std::sort(more.begin(), more.end());
  for (const fs::path& path : more) HW_RETURN_IF_ERROR(AddFile(path, path.stem().string(), templates));
  return templates;
}

Result<std::vector<ChatTemplateText>> ReadConfig(const JsonObject& config) {
  std::vector<ChatTemplateText> templates;
  if (!config.Has(kConfigKey)) return templates;
  const std::string origin = fmt::format("{}: {}", config.origin(), kConfigKey);
  const Json& value = config.At(kConfigKey);
  if (!value.is_array()) {
    HW_ASSIGN_OR_RETURN(std::string source, config.String(kConfigKey));
    templates.push_back({.name = kDefault, .source = std::move(source), .origin = origin});
    return templates;
  }
  for (const Json& entry : value) {
    HW_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(entry, origin));
    HW_ASSIGN_OR_RETURN(std::string name, object.String("name"));
    HW_ASSIGN_OR_RETURN(std::string source, object.String("template"));
    const std::string named = fmt::format("{} \"{}\"", origin, name);
    templates.push_back({.name = std::move(name), .source = std::move(source), .origin = named});
  }
  return templates;
}

// "<s>" or {"content": "<s>", ...}; nothing for what is no token.
std::optional<std::string> TokenText(const Json& value) {
  const Json content = value.is_object() ? value.value("content", Json()) : value;
  return content.is_string() ? std::optional(content.get<std::string>()) : std::nullopt;
}

}  // namespace

Result<std::vector<ChatTemplateText>> ReadChatTemplates(const fs::path& folder, const JsonObject& config) {
  HW_ASSIGN_OR_RETURN(std::vector<ChatTemplateText> templates, ReadFiles(folder));
  if (!templates.empty()) return templates;
  return ReadConfig(config);
}

std::vector<NamedToken> ReadNamedTokens(const Json& config, const TokenizerParts& parts) {
  std::vector<NamedToken> tokens;
  const auto add = [&](const std::string& name, const Json& value) {
    if (std::optional<std::string> text = TokenText(value)) tokens.push_back({name, *std::move(text)});
  };
  for (const auto& [key, value] : config.items()) {
    if (key.ends_with("_token")) add(key, value);
  }
  for (const char* more : {"extra_special_tokens", "model_specific_special_tokens"}) {
    if (!config.contains(more) || !config[more].is_object()) continue;
    for (const auto& [key, value] : config[more].items()) add(key, value);
  }
  if (!config.contains("bos_token")) NameToken("bos_token", parts.bos_id, parts, tokens);
  if (!config.contains("eos_token")) NameToken("eos_token", parts.eos_id, parts, tokens);
  return tokens;
}

}  // namespace headwise
