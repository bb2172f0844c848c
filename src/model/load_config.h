// A model's config.json, or what a .gguf file has in place of one, as a ModelConfig.
#ifndef HEADWISE_MODEL_LOAD_CONFIG_H_
#define HEADWISE_MODEL_LOAD_CONFIG_H_

#include <string>
#include <string_view>

#include "base/json.h"
#include "model/model_config.h"

namespace headwise {

// Of a Hugging Face folder or a .gguf file.
Result<ModelConfig> ReadModelConfig(const std::string& path);
// `origin` opens every message.
Result<ModelConfig> ParseModelConfig(std::string_view text, const std::string& origin);
Result<ModelConfig> ModelConfigFromJson(const Json& root, const std::string& origin);

// Adds the end-of-sequence ids that a folder's generation_config.json names and config.json does not (Llama 3's
// <|eot_id|>).
Status AddGenerationEosIds(const std::string& folder, ModelConfig& config);

}  // namespace headwise

#endif  // HEADWISE_MODEL_LOAD_CONFIG_H_
