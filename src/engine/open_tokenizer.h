// The tokenizer of a model, wherever the model has it.
#ifndef HEADWISE_ENGINE_OPEN_TOKENIZER_H_
#define HEADWISE_ENGINE_OPEN_TOKENIZER_H_

#include <headwise/status.h>

#include <memory>
#include <string>

#include "text/tokenizer.h"
#include "weights/gguf.h"

namespace headwise {

// Of a Hugging Face folder or a .gguf file. kNotFound if it has none.
Result<std::unique_ptr<Tokenizer>> OpenTokenizer(const std::string& model);

// The same of a file's metadata.
Result<std::unique_ptr<Tokenizer>> TokenizerFromMetadata(const GgufMetadata& metadata);

}  // namespace headwise

#endif  // HEADWISE_ENGINE_OPEN_TOKENIZER_H_
