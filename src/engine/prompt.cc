#include "engine/prompt.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "model/model_config.h"

namespace headwise {

std::optional<int32_t> BeginOfText(const Engine& engine) {
  return BeginOfText(engine.tokenizer(), engine.config());
}

std::optional<int32_t> BeginOfText(const Tokenizer& tokenizer, const ModelConfig& config) {
  const bool says = tokenizer.AddsBos() || tokenizer.OmitsBos();
  return BeginOfText(says ? std::optional<bool>(tokenizer.AddsBos()) : std::nullopt, tokenizer.bos_id(), config);
}

std::optional<int32_t> BeginOfText(std::optional<bool> adds_bos, std::optional<int32_t> bos_id,
                                   const ModelConfig& config) {
  if (adds_bos) return *adds_bos ? bos_id : std::nullopt;
  if (!config.bos_id) return std::nullopt;
  const bool ends_texts =
      std::find(config.eos_ids.begin(), config.eos_ids.end(), *config.bos_id) != config.eos_ids.end();
  return ends_texts ? std::nullopt : config.bos_id;
}

std::vector<int32_t> StartOfText(const Engine& engine) {
  return StartOfText(engine.tokenizer(), engine.config());
}

std::vector<int32_t> StartOfText(const Tokenizer& tokenizer, const ModelConfig& config) {
  const std::optional<int32_t> bos = BeginOfText(tokenizer, config);
  if (!bos) return {};
  const std::span<const int32_t> start = tokenizer.start_ids();
  return start.empty() ? std::vector<int32_t>{*bos} : std::vector<int32_t>(start.begin(), start.end());
}

Status RequireTokenizer(const Engine& engine) {
  if (engine.has_tokenizer()) return Status::Ok();
  return Status::NotFound(
      "the model has no tokenizer; expected a tokenizer.json or tokenizer.model in its folder, or a .gguf file with "
      "one");
}

void WarnBeyondTrainedLength(const Engine& engine, int64_t prompt_tokens) {
  const int64_t trained_length = engine.config().trained_length;
  if (trained_length <= 0 || prompt_tokens <= trained_length) return;
  engine.Warn(fmt::format(
      "the prompt has {} tokens, the model was trained on texts of at most {}: expect worse answers, except under "
      "rules that count positions inside the cache",
      prompt_tokens, trained_length));
}

int64_t SharedTokens(std::span<const std::span<const int32_t>> prompts) {
  const std::span<const int32_t> first = prompts.front();
  auto shared = static_cast<std::ptrdiff_t>(first.size()) - 1;
  for (const std::span<const int32_t> prompt : prompts) {
    const auto most = std::min(shared, static_cast<std::ptrdiff_t>(prompt.size()) - 1);
    shared = std::mismatch(prompt.begin(), prompt.begin() + most, first.begin()).first - prompt.begin();
  }
  return shared;
}

Result<std::vector<int32_t>> EncodePrompt(const Engine& engine, std::string_view text, const PromptOptions& options) {
  HW_RETURN_IF_ERROR(RequireTokenizer(engine));
  if (text.empty()) return Status::InvalidInput("prompt: is empty, expected at least one character");
  Result<std::vector<int32_t>> encoded = engine.tokenizer().Encode(text, options.special);
  if (!encoded.ok()) return std::move(encoded).status().Annotate("prompt");
  std::vector<int32_t> ids = *std::move(encoded);
  if (options.bos == Bos::kNever) return ids;
  const std::vector<int32_t> start = StartOfText(engine);
  if (start.empty() || (!ids.empty() && ids.front() == start.front())) return ids;
  ids.insert(ids.begin(), start.begin(), start.end());
  return ids;
}

}  // namespace headwise
