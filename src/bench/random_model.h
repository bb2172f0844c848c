// Models of known shapes with random weights: speed without a download. What they compute means nothing.
#ifndef HEADWISE_BENCH_RANDOM_MODEL_H_
#define HEADWISE_BENCH_RANDOM_MODEL_H_

#include <headwise/status.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <optional>

#include "model/model.h"

namespace headwise {

// "llama-3.2-1b", "llama-3-8b", "qwen3-4b", "gemma-3-4b", ...
std::vector<std::string> NamedShapes();
// Unknown names are an error that lists the known ones.
Result<ModelConfig> ConfigOfShape(const std::string& name);

struct RandomModelOptions {
  std::string shape;
  DType weights = DType::kBF16;            // of all matrices; CanQuantize (tensor/blocks.h)
  std::optional<int64_t> num_layers = {};  // fewer than the shape has, where memory does not take all
  uint64_t seed = 0;
  int num_threads = 1;  // that fill the weights
};

// Sized so that activations keep their scale from layer to layer. Takes no more memory than the weights have bytes, and
// one matrix more where the backend makes its own of them.
Result<std::unique_ptr<Model>> MakeRandomModel(const RandomModelOptions& options, Backend& backend);

}  // namespace headwise

#endif  // HEADWISE_BENCH_RANDOM_MODEL_H_
