// What the files of a model folder say for chat templates: the templates, and the names of tokens in them.
#ifndef HEADWISE_TEXT_CHAT_TEMPLATE_FILES_H_
#define HEADWISE_TEXT_CHAT_TEMPLATE_FILES_H_

#include <headwise/status.h>

#include <filesystem>
#include <vector>

#include "base/json.h"
#include "text/tokenizer.h"

namespace headwise {

// chat_template.jinja ("default") and additional_chat_templates/NAME.jinja. Where there is no such file, what `config`,
// the folder's tokenizer_config.json, has as "chat_template": one, or a list of {"name": ..., "template": ...}.
Result<std::vector<ChatTemplateText>> ReadChatTemplates(const std::filesystem::path& folder, const JsonObject& config);

// "..._token" of such a config, an object, and the entries of its "extra_special_tokens" and
// "model_specific_special_tokens". A start or end token that it does not mention is that of `parts`; null says that
// there is none.
std::vector<NamedToken> ReadNamedTokens(const Json& config, const TokenizerParts& parts);

}  // namespace headwise

#endif  // HEADWISE_TEXT_CHAT_TEMPLATE_FILES_H_
