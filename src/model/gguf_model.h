// A .gguf file as a model: its metadata as the config.json of a Hugging Face folder, its tensors under the names of a
// Hugging Face checkpoint, so that family files (model/families) need not know of it.
#ifndef HEADWISE_MODEL_GGUF_MODEL_H_
#define HEADWISE_MODEL_GGUF_MODEL_H_

#include <headwise/status.h>

#include <memory>
#include <set>
#include <string>

#include "base/json.h"
#include "model/model_config.h"
#include "weights/gguf.h"
#include "weights/weight_source.h"

namespace headwise {

// Whether a model's path means a file in place of a folder.
bool IsGgufPath(const std::string& path);

// The file of a model's path. Where it is none, the error says how a model of files in a folder is named.
Result<std::unique_ptr<GgufFile>> OpenGgufModel(const std::string& path, FileAccess access = FileAccess::kMap);

using GgufTensorNames = std::set<std::string, std::less<>>;

// The config.json that the file's family reads. Of what the metadata does not say, biases, tied embeddings, norms and
// sink logits are told by which tensors there are. Errors name the file, the key, what was found and what was expected.
Result<Json> GgufConfigJson(const GgufMetadata& metadata, const GgufTensorNames& tensors);

// The same, read and validated, with the frequency divisors that are kept as a tensor.
Result<ModelConfig> GgufModelConfig(const GgufFile& file);

// The weights under the family's names: views into the file, with RowOrder where rows are in another order than in the
// family's checkpoints. A tensor that the family would not read is an error: the model has a part that we do
// not compute. `config` is the file's.
Result<std::unique_ptr<WeightSource>> GgufModelWeights(std::unique_ptr<GgufFile> file, const ModelConfig& config);

}  // namespace headwise

#endif  // HEADWISE_MODEL_GGUF_MODEL_H_
