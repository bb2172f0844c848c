#include <headwise/engine.h>
#include <headwise/model_info.h>
#include <headwise/tokenizer.h>

#include <utility>

#include "model/load_config.h"

namespace headwise {
namespace {

ModelInfo InfoOf(const ModelConfig& config) {
  ModelInfo info;
  info.shape = config.shape();
  info.model_dim = config.model_dim;
  info.ffn_dim = config.ffn_dim;
  info.vocab_size = config.vocab_size;
  info.trained_length = config.trained_length;
  for (int64_t layer_idx = 0; layer_idx < config.num_layers; ++layer_idx) {
    info.sliding_windows.push_back(config.layer(layer_idx).window);
  }
  info.bos_id = config.bos_id;
  info.eos_ids = config.eos_ids;
  return info;
}

}  // namespace

ModelInfo Engine::info() const {
  ModelInfo info = InfoOf(config());
  info.has_tokenizer = has_tokenizer();
  return info;
}

Result<ModelInfo> ReadModelInfo(const std::string& model) {
  HW_ASSIGN_OR_RETURN(ModelConfig config, ReadModelConfig(model));
  HW_RETURN_IF_ERROR(AddGenerationEosIds(model, config));
  ModelInfo info = InfoOf(config);
  const auto tokenizer = OpenTokenizer(model);
  if (!tokenizer.ok() && tokenizer.status().code() != StatusCode::kNotFound) return tokenizer.status();
  info.has_tokenizer = tokenizer.ok();
  return info;
}

}  // namespace headwise
