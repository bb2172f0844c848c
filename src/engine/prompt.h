// What else prompts need; see <headwise/prompt.h>.
#ifndef HEADWISE_ENGINE_PROMPT_H_
#define HEADWISE_ENGINE_PROMPT_H_

#include <headwise/engine.h>
#include <headwise/prompt.h>
#include <headwise/status.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace headwise {

// The same rules as for an engine, of its two parts.
std::optional<int32_t> BeginOfText(const Tokenizer& tokenizer, const ModelConfig& config);
std::vector<int32_t> StartOfText(const Tokenizer& tokenizer, const ModelConfig& config);

// The same of what a tokenizer's files say: `adds_bos` is absent where they say nothing.
std::optional<int32_t> BeginOfText(std::optional<bool> adds_bos, std::optional<int32_t> bos_id,
                                   const ModelConfig& config);

// A model without a tokenizer is an error.
Status RequireTokenizer(const Engine& engine);

// A prompt beyond the trained length is allowed: Engine::Warn says what to expect.
void WarnBeyondTrainedLength(const Engine& engine, int64_t prompt_tokens);

// How many tokens all of the prompts begin with, at most one less than the shortest has: what can be read once for all
// of them. Requires: one prompt or more, none empty.
int64_t SharedTokens(std::span<const std::span<const int32_t>> prompts);

}  // namespace headwise

#endif  // HEADWISE_ENGINE_PROMPT_H_
