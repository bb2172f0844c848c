// Models of known shapes with random bf16 weights: speed without a download. What they compute means nothing.
#ifndef HEADWISE_EVAL_RANDOM_MODEL_H_
#define HEADWISE_EVAL_RANDOM_MODEL_H_

#include <headwise/status.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/model.h"

namespace headwise {

// "llama-3.2-1b", "llama-3-8b", "llama-2-7b", "headwise-17m".
std::vector<std::string> NamedShapes();
// Unknown names are an error that lists the known ones.
Result<ModelConfig> ConfigOfShape(const std::string& name);

struct RandomModelOptions {
  std::string shape;
  uint64_t seed = 0;
  int num_threads = 1;  // that fill the weights
};

// Two bytes per weight, no more. Sized so that activations keep their scale from layer to layer.
Result<std::unique_ptr<Model>> MakeRandomModel(const RandomModelOptions& options, Backend& backend);

}  // namespace headwise

#endif  // HEADWISE_EVAL_RANDOM_MODEL_H_
