// From what a client sent to the ids that a model reads.
#ifndef HEADWISE_SERVER_PROMPT_ENCODING_H_
#define HEADWISE_SERVER_PROMPT_ENCODING_H_

#include <cstdint>
#include <vector>

#include "server/model_host.h"
#include "server/openai_request.h"

namespace headwise {

// A text gets the model's start token in front where it has none; ids are taken as they are.
ApiResult<std::vector<int32_t>> EncodeApiPrompt(const ServedModel& model, const ApiPrompt& prompt);
// As the model's chat format has it, with the tools that may be called. 400 for a model without one.
ApiResult<std::vector<int32_t>> EncodeConversation(const ServedModel& model, const ApiConversation& conversation,
                                                   const ApiTools& tools = {});

// How many tokens an answer may have: what was asked for, or `otherwise`, but no more than the context has room for.
// An error where the prompt and what was asked for are more than that.
ApiResult<int64_t> NewTokensFor(const ServedModel& model, int64_t prompt_tokens, std::optional<int64_t> asked,
                                int64_t otherwise);

}  // namespace headwise

#endif  // HEADWISE_SERVER_PROMPT_ENCODING_H_
