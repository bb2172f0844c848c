// One row per model family: how to read its config.json and where its tensors are. A new family is one file with these
// two functions and one row in registry.cc.
#ifndef HEADWISE_MODEL_FAMILIES_FAMILY_H_
#define HEADWISE_MODEL_FAMILIES_FAMILY_H_

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "model/model_config.h"
#include "model/model_weights.h"
#include "weights/weight_source.h"

namespace headwise {

struct ModelFamily {
  std::string_view name;                      // also a config.json "model_type"
  std::vector<std::string_view> other_names;  // further "model_type" values it answers to
  std::string_view description;               // one line, for help texts
  Result<ModelConfig> (*read_config)(const JsonObject& config);
  // Host views; every shape is checked against `config`.
  Result<ModelWeights> (*read_weights)(const ModelConfig& config, const WeightSource& source);
};

std::span<const ModelFamily> ModelFamilies();
// By the "model_type" of a config.json; the error lists what is supported.
Result<const ModelFamily*> FindFamily(std::string_view model_type, std::string_view origin);

}  // namespace headwise

#endif  // HEADWISE_MODEL_FAMILIES_FAMILY_H_
