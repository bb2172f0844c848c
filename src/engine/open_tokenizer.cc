#include "engine/open_tokenizer.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "model/gguf_model.h"
#include "text/gguf_tokenizer.h"

namespace headwise {
namespace {

Status ReadId(const GgufMetadata& metadata, const char* key, std::optional<int64_t>& id) {
  if (!metadata.Has(key)) return Status::Ok();
  HW_ASSIGN_OR_RETURN(id, metadata.Int(key));
  return Status::Ok();
}

Status ReadBool(const GgufMetadata& metadata, const char* key, std::optional<bool>& value) {
  if (!metadata.Has(key)) return Status::Ok();
  HW_ASSIGN_OR_RETURN(value, metadata.BoolOr(key, false));
  return Status::Ok();
}

Status ReadArrays(const GgufMetadata& metadata, GgufTokenizer& file) {
  const auto has = [&](const char* key) { return metadata.Has(key); };
  if (has("tokenizer.ggml.tokens")) {
    HW_ASSIGN_OR_RETURN(file.tokens, metadata.Strings("tokenizer.ggml.tokens"));
  }
  if (has("tokenizer.ggml.token_type")) {
    HW_ASSIGN_OR_RETURN(file.token_types, metadata.Ints("tokenizer.ggml.token_type"));
  }
  if (has("tokenizer.ggml.scores")) {
    HW_ASSIGN_OR_RETURN(file.scores, metadata.Doubles("tokenizer.ggml.scores"));
  }
  if (file.kind == "gpt2") {
    HW_ASSIGN_OR_RETURN(file.merges, metadata.Strings("tokenizer.ggml.merges"));
  }
  return Status::Ok();
}

// The default one, and those that the list names.
Result<std::vector<ChatTemplateText>> ReadChatTemplates(const GgufMetadata& metadata) {
  std::vector<ChatTemplateText> templates;
  const auto add = [&](std::string name, const std::string& key) -> Status {
    HW_ASSIGN_OR_RETURN(std::string source, metadata.String(key));
    templates.push_back({.name = std::move(name),
                         .source = std::move(source),
                         .origin = fmt::format("{}: \"{}\"", metadata.origin(), key)});
    return Status::Ok();
  };
  if (metadata.Has(kChatTemplateKey)) HW_RETURN_IF_ERROR(add("default", kChatTemplateKey));
  if (!metadata.Has(kChatTemplateNamesKey)) return templates;
  HW_ASSIGN_OR_RETURN(const std::span<const std::string> names, metadata.Strings(kChatTemplateNamesKey));
  for (const std::string& name : names) {
    // Some list the one that has a key without a name.
    const std::string key = ChatTemplateKey(name);
    if (name != "default" || metadata.Has(key)) HW_RETURN_IF_ERROR(add(name, key));
  }
  return templates;
}

}  // namespace

std::string ChatTemplateKey(std::string_view name) {
  return fmt::format("{}.{}", kChatTemplateKey, name);
}

Result<std::unique_ptr<Tokenizer>> TokenizerFromMetadata(const GgufMetadata& metadata,
                                                         std::function<void(std::string_view)> on_warning) {
  GgufTokenizer file;
  file.on_warning = std::move(on_warning);
  file.origin = metadata.origin();
  HW_ASSIGN_OR_RETURN(file.architecture, metadata.StringOr("general.architecture", ""));
  HW_ASSIGN_OR_RETURN(file.kind, metadata.StringOr("tokenizer.ggml.model", "none"));
  HW_ASSIGN_OR_RETURN(file.tokenizer_json, metadata.StringOr("tokenizer.huggingface.json", ""));
  if ((file.kind == "none" || file.kind == "no_vocab") && file.tokenizer_json.empty()) {
    return Status::NotFound(fmt::format("{}: no tokenizer, expected \"tokenizer.ggml.model\"", metadata.origin()));
  }
  HW_ASSIGN_OR_RETURN(file.splitting, metadata.StringOr("tokenizer.ggml.pre", ""));
  HW_ASSIGN_OR_RETURN(file.chat_templates, ReadChatTemplates(metadata));
  HW_RETURN_IF_ERROR(ReadArrays(metadata, file));
  HW_RETURN_IF_ERROR(ReadId(metadata, "tokenizer.ggml.bos_token_id", file.bos_id));
  HW_RETURN_IF_ERROR(ReadId(metadata, "tokenizer.ggml.eos_token_id", file.eos_id));
  HW_RETURN_IF_ERROR(ReadId(metadata, "tokenizer.ggml.unknown_token_id", file.unknown_id));
  HW_RETURN_IF_ERROR(ReadId(metadata, "tokenizer.ggml.padding_token_id", file.padding_id));
  HW_RETURN_IF_ERROR(ReadBool(metadata, "tokenizer.ggml.add_bos_token", file.adds_bos));
  HW_RETURN_IF_ERROR(ReadBool(metadata, "tokenizer.ggml.add_space_prefix", file.adds_space_prefix));
  HW_ASSIGN_OR_RETURN(const bool removes_spaces, metadata.BoolOr("tokenizer.ggml.remove_extra_whitespaces", false));
  if (removes_spaces) {
    return Status::Unsupported(
        fmt::format("{}: \"tokenizer.ggml.remove_extra_whitespaces\" is true, which is not supported, expected false",
                    metadata.origin()));
  }
  return MakeGgufTokenizer(file);
}

Result<std::unique_ptr<Tokenizer>> OpenTokenizer(const std::string& model,
                                                 std::function<void(std::string_view)> on_warning) {
  if (!IsGgufPath(model)) return LoadTokenizer(model);
  HW_ASSIGN_OR_RETURN(const std::unique_ptr<GgufFile> file, OpenGgufModel(model));
  return TokenizerFromMetadata(file->metadata(), std::move(on_warning));
}

}  // namespace headwise
