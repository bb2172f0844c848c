// From a user's text to the ids that a model wants to begin with. Conversations: headwise/chat.h.
#ifndef HEADWISE_PROMPT_H_
#define HEADWISE_PROMPT_H_

#include <headwise/status.h>
#include <headwise/tokenizer.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace headwise {

class Engine;  // headwise/engine.h

// kAuto: what BeginOfText says.
enum class Bos { kAuto, kNever };

struct PromptOptions {
  Bos bos = Bos::kAuto;
  // kAsText: "<|im_end|>" in a prompt is just these characters, so a document cannot end a turn.
  SpecialText special = SpecialText::kAsText;
};

// Empty text, invalid UTF-8 and a model without a tokenizer are errors.
Result<std::vector<int32_t>> EncodePrompt(const Engine& engine, std::string_view text,
                                          const PromptOptions& options = {});

// The token that a text for this model begins with; models lean on it as their attention sink. The tokenizer's files
// decide; where they say neither that there is one nor that there is none (Tokenizer::OmitsBos), config.json's
// bos_token_id counts if it is not also an end-of-text token, which is how families without such a token fill the
// field. Requires: engine.has_tokenizer().
std::optional<int32_t> BeginOfText(const Engine& engine);
// All ids that a text begins with: that token alone, or for a few families (GLM) more behind it; empty where there is
// none.
std::vector<int32_t> StartOfText(const Engine& engine);

}  // namespace headwise

#endif  // HEADWISE_PROMPT_H_
