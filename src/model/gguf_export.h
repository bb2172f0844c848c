// A checkpoint's config as the metadata of a .gguf file: the way back of model/gguf_model.h, over the same table of
// names.
#ifndef HEADWISE_MODEL_GGUF_EXPORT_H_
#define HEADWISE_MODEL_GGUF_EXPORT_H_

#include <headwise/status.h>

#include <string>
#include <vector>

#include "base/json.h"
#include "model/model_config.h"
#include "weights/gguf.h"

namespace headwise {

// The architecture's keys. `checkpoint` is the config.json that `config` was read from, for what it alone says. An
// error where the format has no architecture for the family, or no key for what the model does.
Result<GgufMetadata> GgufMetadataOf(const ModelConfig& config, const Json& checkpoint);

// What files keep of rotary embeddings in tensors because no key says it: kGgufRopeFreqs, kGgufRopeShort,
// kGgufRopeLong. Requires: GgufMetadataOf is no error.
struct GgufRopeTensor {
  std::string name;
  std::vector<float> values;  // [rotary_dims / 2]
};
std::vector<GgufRopeTensor> GgufRopeTensors(const ModelConfig& config);

}  // namespace headwise

#endif  // HEADWISE_MODEL_GGUF_EXPORT_H_
