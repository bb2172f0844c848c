#include "model/load_config.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/file.h"
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
    HW_ASSIGN_OR_RETURN(const std::unique_ptr<GgufFile> file, OpenGgufFile(path));
    return GgufModelConfig(*file);
  }
  const std::string config = (std::filesystem::path(path) / "config.json").string();
  HW_ASSIGN_OR_RETURN(const std::string text, ReadFile(config));
  return ParseModelConfig(text, config);
}

}  // namespace headwise
