#include <headwise/chat.h>
#include <headwise/engine.h>

#include <utility>

#include "engine/prompt.h"
#include "model/model_config.h"

namespace headwise {

Result<ChatFormat> FindChatFormat(const Engine& engine, ChatFormatOptions options) {
  HW_RETURN_IF_ERROR(RequireTokenizer(engine));
  if (!options.bos_id) options.bos_id = BeginOfText(engine);
  const auto& eos_ids = engine.config().eos_ids;
  options.eos_ids.insert(options.eos_ids.end(), eos_ids.begin(), eos_ids.end());
  return ChatFormat::Find(engine.tokenizer(), options);
}

}  // namespace headwise
