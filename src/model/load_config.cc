#include "model/load_config.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/file.h"
#include "model/families/family.h"

namespace headwise {

Result<ModelConfig> ParseModelConfig(std::string_view text, const std::string& origin) {
  HW_ASSIGN_OR_RETURN(const Json root, ParseJson(text, origin));
  HW_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(root, origin));
  HW_ASSIGN_OR_RETURN(const std::string model_type, object.String("model_type"));
  HW_ASSIGN_OR_RETURN(const ModelFamily* family, FindFamily(model_type, origin));
  HW_ASSIGN_OR_RETURN(ModelConfig config, family->read_config(object));
  config.family = family->name;
  HW_RETURN_IF_ERROR(ValidateConfig(config, origin));
  return config;
}

Result<ModelConfig> ReadModelConfig(const std::string& folder) {
  const std::string path = (std::filesystem::path(folder) / "config.json").string();
  HW_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  return ParseModelConfig(text, path);
}

}  // namespace headwise
