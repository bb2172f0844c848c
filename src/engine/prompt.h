// From a user's text to the ids that a model wants to begin with.
#ifndef HEADWISE_ENGINE_PROMPT_H_
#define HEADWISE_ENGINE_PROMPT_H_

#include <headwise/engine.h>
#include <headwise/status.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace headwise {

struct PromptOptions {
  // kAuto: the beginning-of-text token first, where the model's config names one. Models lean on it as their sink.
  enum class Bos { kAuto, kNever } bos = Bos::kAuto;
  // kText: "<|im_end|>" in a prompt is just these characters; a document cannot end a turn. kParse: it is the token.
  enum class Special { kText, kParse } special = Special::kText;
};

// Empty text, invalid UTF-8 and a model without a tokenizer are errors.
Result<std::vector<int32_t>> EncodePrompt(const Engine& engine, std::string_view text, const PromptOptions& options);

}  // namespace headwise

#endif  // HEADWISE_ENGINE_PROMPT_H_
