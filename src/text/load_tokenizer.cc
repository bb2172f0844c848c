// Finds a model folder's tokenizer files and joins what they say.
#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "base/json.h"
#include "text/chat_template_files.h"
#include "text/tokenizer.h"
#include "text/tokenizer_files.h"

namespace headwise {
namespace {

namespace fs = std::filesystem;

bool Exists(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// "bos_token": "<s>" or {"content": "<s>", ...}; nothing if absent.
Result<std::optional<int32_t>> ReadTokenName(const JsonObject& config, const char* key, const TokenizerParts& parts) {
  std::optional<int32_t> none;
  if (!config.Has(key)) return none;
  std::string content;
  if (config.At(key).is_object()) {
    HW_ASSIGN_OR_RETURN(const JsonObject object, config.Object(key));
    HW_ASSIGN_OR_RETURN(content, object.String("content"));
  } else {
    HW_ASSIGN_OR_RETURN(content, config.String(key));
  }
  return FindSpecial(parts, content);
}

Result<std::vector<AddedToken>> ReadAddedTokensDecoder(const JsonObject& config) {
  std::vector<AddedToken> tokens;
  if (!config.Has("added_tokens_decoder")) return tokens;
  HW_ASSIGN_OR_RETURN(const JsonObject decoder, config.Object("added_tokens_decoder"));
  for (const auto& [key, value] : config.At("added_tokens_decoder").items()) {
    int64_t id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size()) {
      return Status::InvalidInput(fmt::format("{}: \"{}\", expected an id", decoder.origin(), key));
    }
    HW_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(value, decoder.origin()));
    HW_ASSIGN_OR_RETURN(AddedToken token, ReadAddedToken(object, id));
    if (!token.content.empty()) tokens.push_back(std::move(token));
  }
  return tokens;
}

Status ApplyConfig(const JsonObject& config, TokenizerParts& parts) {
  HW_ASSIGN_OR_RETURN(const auto bos_id, ReadTokenName(config, "bos_token", parts));
  HW_ASSIGN_OR_RETURN(const auto eos_id, ReadTokenName(config, "eos_token", parts));
  if (bos_id) parts.bos_id = bos_id;
  if (eos_id) parts.eos_id = eos_id;
  if (config.Has("add_bos_token")) {
    HW_ASSIGN_OR_RETURN(parts.adds_bos, config.Bool("add_bos_token"));
  }
  return Status::Ok();
}

Result<TokenizerParts> ReadModelFile(const fs::path& folder, const std::vector<AddedToken>& more) {
  const fs::path json = folder / "tokenizer.json";
  const fs::path model = folder / "tokenizer.model";
  if (Exists(json)) {
    HW_ASSIGN_OR_RETURN(const std::string text, ReadFile(json));
    return ReadTokenizerJson(text, json.string());
  }
  if (!Exists(model)) {
    return Status::NotFound(
        fmt::format("{}: no tokenizer, expected tokenizer.json or tokenizer.model", folder.string()));
  }
  HW_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(model));
  HW_ASSIGN_OR_RETURN(TokenizerParts parts, ReadSentencePieceModel(bytes, more, model.string()));
  // A model file does not say; the models that come with one begin texts with <s> unless their config says no.
  parts.adds_bos = parts.bos_id.has_value();
  return parts;
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> LoadTokenizer(const fs::path& model_folder) {
  const fs::path config_path = model_folder / "tokenizer_config.json";
  Json config_json = Json::object();
  if (Exists(config_path)) {
    HW_ASSIGN_OR_RETURN(config_json, ReadJsonFile(config_path.string()));
  }
  HW_ASSIGN_OR_RETURN(const JsonObject config, JsonObject::Of(config_json, config_path.string()));
  HW_ASSIGN_OR_RETURN(const std::vector<AddedToken> more, ReadAddedTokensDecoder(config));
  HW_ASSIGN_OR_RETURN(TokenizerParts parts, ReadModelFile(model_folder, more));
  HW_RETURN_IF_ERROR(ApplyConfig(config, parts));
  HW_ASSIGN_OR_RETURN(parts.chat_templates, ReadChatTemplates(model_folder, config));
  GuessBosAndEos(parts);
  parts.named_tokens = ReadNamedTokens(config_json, parts);
  return Tokenizer::FromParts(std::move(parts));
}

}  // namespace headwise
