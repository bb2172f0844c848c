// A model folder's config.json as a ModelConfig.
#ifndef HEADWISE_MODEL_LOAD_CONFIG_H_
#define HEADWISE_MODEL_LOAD_CONFIG_H_

#include <string>
#include <string_view>

#include "model/model_config.h"

namespace headwise {

Result<ModelConfig> ReadModelConfig(const std::string& folder);
// `origin` opens every message.
Result<ModelConfig> ParseModelConfig(std::string_view text, const std::string& origin);

}  // namespace headwise

#endif  // HEADWISE_MODEL_LOAD_CONFIG_H_
