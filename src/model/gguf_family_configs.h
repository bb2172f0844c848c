// The keys of a .gguf file that one family's config.json has its own names for. Inside model/gguf_*.cc only.
#ifndef HEADWISE_MODEL_GGUF_FAMILY_CONFIGS_H_
#define HEADWISE_MODEL_GGUF_FAMILY_CONFIGS_H_

#include <headwise/status.h>

#include "base/json.h"
#include "model/gguf_keys.h"

namespace headwise {

// Adds all but what every family has: vocabulary, token ids, tied embeddings, zero sink.
Status AddGgufFamilyKeys(const GgufSource& source, const GgufHeads& heads, Json& config);

}  // namespace headwise

#endif  // HEADWISE_MODEL_GGUF_FAMILY_CONFIGS_H_
