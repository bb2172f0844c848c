// The tokenizer inside a .gguf file. OpenTokenizer (<headwise/tokenizer.h>) is implemented beside it.
#ifndef HEADWISE_ENGINE_OPEN_TOKENIZER_H_
#define HEADWISE_ENGINE_OPEN_TOKENIZER_H_

#include <headwise/status.h>
#include <headwise/tokenizer.h>

#include <memory>

#include "weights/gguf.h"

namespace headwise {

// kNotFound if the file has none.
Result<std::unique_ptr<Tokenizer>> TokenizerFromMetadata(const GgufMetadata& metadata);

}  // namespace headwise

#endif  // HEADWISE_ENGINE_OPEN_TOKENIZER_H_
