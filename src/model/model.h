// A loaded model: its architecture and its weights in a backend's memory.
#ifndef HEADWISE_MODEL_MODEL_H_
#define HEADWISE_MODEL_MODEL_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "model/model_config.h"
#include "model/model_weights.h"
#include "weights/weight_source.h"

namespace headwise {

struct Model {
  ModelConfig config;
  ModelWeights weights;               // in the backend's memory
  ConstTensorView alibi_slopes;       // [Hq] f32, absent without ALiBi
  ConstTensorView zero_sink_logits;   // [Hq] f32 zeros, present where config.zero_sink
  std::vector<DeviceBuffer> vectors;  // behind biases, norms and the like, where the device cannot read host memory
  std::string source_hash;
  std::unique_ptr<WeightSource> source;  // keeps the mapped files alive

  // The number formats of its matrices, each once.
  std::vector<DType> MatrixTypes() const;
};

// Told how many bytes of a model's matrices a backend has, of how many: EngineOptions::on_load.
using LoadProgress = std::function<void(int64_t done_bytes, int64_t total_bytes)>;

// Reads a Hugging Face folder or a .gguf file. Errors name the file, what was found and what was expected.
Result<std::unique_ptr<Model>> LoadModel(const std::string& path, Backend& backend,
                                         FileAccess access = FileAccess::kMap, const LoadProgress& progress = {});

// The weights of the model at `path`, under the names that its family gives them. `config` is the model's.
Result<std::unique_ptr<WeightSource>> OpenModelWeights(const std::string& path, const ModelConfig& config,
                                                       FileAccess access = FileAccess::kMap);

// What the model asks of operations that the backend does not do, by name.
Status CheckFeatures(const ModelConfig& config, const ModelWeights& weights, const Backend& backend);

// A model from weights already in host memory, which go to the backend in the order in which a token goes through them.
// What the backend has copied is let go: of `host_weights`, and of
// `source` where they are views into one.
Result<std::unique_ptr<Model>> MakeModel(ModelConfig config, ModelWeights host_weights, Backend& backend,
                                         const WeightSource* source = nullptr, const LoadProgress& progress = {});

}  // namespace headwise

#endif  // HEADWISE_MODEL_MODEL_H_
