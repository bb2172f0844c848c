// From a user's text to the ids that a model wants to begin with.
#ifndef HEADWISE_ENGINE_PROMPT_H_
#define HEADWISE_ENGINE_PROMPT_H_

#include <headwise/engine.h>
#include <headwise/status.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace headwise {

// kAuto: what BeginOfText says.
enum class Bos { kAuto, kNever };

struct PromptOptions {
  Bos bos = Bos::kAuto;
  // kAsText: "<|im_end|>" in a prompt is just these characters, so a document cannot end a turn.
  SpecialText special = SpecialText::kAsText;
};

// The token that a text for this model begins with; models lean on it as their attention sink. The tokenizer's files
// decide; where they put none in front, config.json's bos_token_id counts if it is not also an end-of-text token, which
// is how families without such a token fill the field. Requires: engine.has_tokenizer().
std::optional<int32_t> BeginOfText(const Engine& engine);
std::optional<int32_t> BeginOfText(const Tokenizer& tokenizer, const ModelConfig& config);

// A model without a tokenizer is an error.
Status RequireTokenizer(const Engine& engine);

// A prompt beyond the trained length is allowed: Engine::Warn says what to expect.
void WarnBeyondTrainedLength(const Engine& engine, int64_t prompt_tokens);

// How many tokens all of the prompts begin with, at most one less than the shortest has: what can be read once for all
// of them. Requires: one prompt or more, none empty.
int64_t SharedTokens(std::span<const std::span<const int32_t>> prompts);

// Empty text, invalid UTF-8 and a model without a tokenizer are errors.
Result<std::vector<int32_t>> EncodePrompt(const Engine& engine, std::string_view text, const PromptOptions& options);

}  // namespace headwise

#endif  // HEADWISE_ENGINE_PROMPT_H_
