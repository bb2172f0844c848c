#include "run_request.h"

#include <fmt/format.h>
#include <headwise/grammar.h>
#include <headwise/tokenizer.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/file.h"
#include "engine/prompt.h"
#include "generate.h"
#include "model/model_config.h"

namespace headwise {
namespace {

Json TokenJson(const TokenLogprob& token, const Tokenizer& tokenizer) {
  const std::string_view text = tokenizer.BytesOf(token.id);
  Json bytes = Json::array();
  for (const char byte : text) bytes.push_back(static_cast<unsigned char>(byte));
  return {{"id", token.id}, {"token", text}, {"bytes", std::move(bytes)}, {"logprob", token.logprob}};
}

// The form of OpenAI's chat completions, and ids. What of a token is no character is U+FFFD in `token`, which printing
// makes of it.
Json LogprobsJson(const std::vector<TokenLogprobs>& logprobs, const Tokenizer& tokenizer) {
  Json content = Json::array();
  for (const TokenLogprobs& each : logprobs) {
    Json token = TokenJson(each.chosen, tokenizer);
    token["top_logprobs"] = Json::array();
    for (const TokenLogprob& top : each.top) token["top_logprobs"].push_back(TokenJson(top, tokenizer));
    content.push_back(std::move(token));
  }
  return {{"content", std::move(content)}};
}

}  // namespace

Status FillPrompt(const RunOptions& options, const Engine& engine, const std::string& text, Request& request) {
  HW_ASSIGN_OR_RETURN(request.prompt,
                      EncodePrompt(engine, text,
                                   {.bos = options.no_bos ? Bos::kNever : Bos::kAuto,
                                    .special = options.special ? SpecialText::kParse : SpecialText::kAsText}));
  return Status::Ok();
}

Result<std::shared_ptr<const TokenConstraint>> ReadConstraint(const RunOptions& options, const Engine& engine) {
  const bool has_schema = !options.json_schema.empty();
  const std::string& path = has_schema ? options.json_schema : options.grammar;
  if (path.empty()) return std::shared_ptr<const TokenConstraint>();
  GrammarSource source = {.kind = has_schema ? GrammarKind::kJsonSchema : GrammarKind::kGbnf};
  HW_ASSIGN_OR_RETURN(source.text, ReadFile(path));
  if (!engine.has_tokenizer()) {
    return Status::Unsupported(fmt::format("{}: the model has no tokenizer, whose texts it could be of", path));
  }
  HW_ASSIGN_OR_RETURN(const auto compiler, GrammarCompiler::Create(engine.tokenizer(), engine.config().vocab_size));
  Result<std::shared_ptr<const TokenConstraint>> constraint = compiler->Compile(source);
  if (!constraint.ok()) return std::move(constraint).status().Annotate(path);
  return constraint;
}

Status FillChat(const ChatFormat& format, std::span<const ChatMessage> messages, const ChatInputs& inputs,
                Request& request) {
  HW_ASSIGN_OR_RETURN(
      request.prompt,
      format.Encode(
          {.messages = messages, .tools = inputs.tools, .documents = inputs.documents, .variables = inputs.variables}));
  request.stop_tokens = format.stop_ids();
  return Status::Ok();
}

Status FillMessage(const ChatFormat& format, const std::string& text, const ChatInputs& inputs, Request& request) {
  if (text.empty()) return Status::InvalidInput("message: is empty, expected at least one character");
  const ChatMessage messages[] = {{.role = "user", .content = text}};
  return FillChat(format, messages, inputs, request);
}

Result<int64_t> NewTokensWithin(const RunOptions& options, const Engine& engine, int64_t max_new_tokens,
                                int64_t prompt_tokens) {
  const bool is_unlimited = max_new_tokens < 0;
  int64_t max_context = options.max_context;
  if (max_context == 0 && is_unlimited) max_context = engine.config().trained_length;
  if (max_context == 0) return max_new_tokens;
  if (prompt_tokens >= max_context) {
    return Status::InvalidInput(
        fmt::format("the prompt has {} tokens, expected less than --max-context {}", prompt_tokens, max_context));
  }
  const int64_t room = max_context - prompt_tokens;
  return is_unlimited ? room : std::min(max_new_tokens, room);
}

void AddAnswer(const RequestResult& result, const SamplingOptions& sampling, const Engine& engine, Json& json) {
  json["text"] = result.text;
  json["tokens"] = result.tokens;
  json["finish"] = NameOf(result.finish);
  if (sampling.temperature > 0) json["seed"] = sampling.seed;
  if (!result.logprobs.empty()) json["logprobs"] = LogprobsJson(result.logprobs, engine.tokenizer());
}

}  // namespace headwise
