#include "model/load_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "model/families/config_reader.h"
#include "model/families/family.h"
#include "model/gguf_model.h"

namespace headwise {

Result<ModelConfig> ModelConfigFromJson(const Json& root, const std::string& origin) {
  HW_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(root, origin));
  HW_ASSIGN_OR_RETURN(const std::string model_type, object.String("model_type"));
  HW_ASSIGN_OR_RETURN(const ModelFamily* family, FindFamily(model_type, origin));
  HW_ASSIGN_OR_RETURN(ModelConfig config, family->read_config(object));
  config.family = family->name;
  HW_RETURN_IF_ERROR(ValidateConfig(config, origin));
  return config;
}

Result<ModelConfig> ParseModelConfig(std::string_view text, const std::string& origin) {
  HW_ASSIGN_OR_RETURN(const Json root, ParseJson(text, origin));
  return ModelConfigFromJson(root, origin);
}

Result<ModelConfig> ReadModelConfig(const std::string& path) {
  if (IsGgufPath(path)) {
    HW_ASSIGN_OR_RETURN(const std::unique_ptr<GgufFile> file, OpenGgufModel(path));
    return GgufModelConfig(*file);
  }
  const std::string config = (std::filesystem::path(path) / "config.json").string();
  HW_ASSIGN_OR_RETURN(const std::string text, ReadFile(config));
  return ParseModelConfig(text, config);
}

Status AddGenerationEosIds(const std::string& folder, ModelConfig& config) {
  const std::string path = (std::filesystem::path(folder) / "generation_config.json").string();
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return Status::Ok();
  HW_ASSIGN_OR_RETURN(const Json root, ReadJsonFile(path));
  HW_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(root, path));
  if (!object.Has("eos_token_id")) return Status::Ok();
  HW_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, ReadTokenIds(object, "eos_token_id", config.vocab_size));
  for (const int32_t id : ids) {
    if (std::ranges::find(config.eos_ids, id) == config.eos_ids.end()) config.eos_ids.push_back(id);
  }
  return Status::Ok();
}

}  // namespace headwise
