// The tokenizer inside a .gguf file. OpenTokenizer (<headwise/tokenizer.h>) is implemented beside it.
#ifndef HEADWISE_ENGINE_OPEN_TOKENIZER_H_
#define HEADWISE_ENGINE_OPEN_TOKENIZER_H_

#include <headwise/status.h>
#include <headwise/tokenizer.h>

#include <functional>
#include <memory>
#include <string_view>

#include "weights/gguf.h"

namespace headwise {

// kNotFound if the file has none. `on_warning` as in OpenTokenizer.
Result<std::unique_ptr<Tokenizer>> TokenizerFromMetadata(const GgufMetadata& metadata,
                                                         std::function<void(std::string_view)> on_warning = {});

}  // namespace headwise

#endif  // HEADWISE_ENGINE_OPEN_TOKENIZER_H_
