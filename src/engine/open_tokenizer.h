// The tokenizer inside a .gguf file. OpenTokenizer (<headwise/tokenizer.h>) is implemented beside it.
#ifndef HEADWISE_ENGINE_OPEN_TOKENIZER_H_
#define HEADWISE_ENGINE_OPEN_TOKENIZER_H_

#include <headwise/status.h>
#include <headwise/tokenizer.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "weights/gguf.h"

namespace headwise {

// Where a .gguf file has its chat templates: the default one, the list of the others' names, and one of those.
inline constexpr const char* kChatTemplateKey = "tokenizer.chat_template";
inline constexpr const char* kChatTemplateNamesKey = "tokenizer.chat_templates";
std::string ChatTemplateKey(std::string_view name);

// kNotFound if the file has none. `on_warning` as in OpenTokenizer.
Result<std::unique_ptr<Tokenizer>> TokenizerFromMetadata(const GgufMetadata& metadata,
                                                         std::function<void(std::string_view)> on_warning = {});

}  // namespace headwise

#endif  // HEADWISE_ENGINE_OPEN_TOKENIZER_H_
