// What `run` is asked, and the requests and results that it makes of it, for one prompt (cmd_run.cc) and for many
// (run_lines.cc).
#ifndef HEADWISE_APPS_RUN_REQUEST_H_
#define HEADWISE_APPS_RUN_REQUEST_H_

#include <headwise/engine.h>
#include <headwise/status.h>
#include <headwise/token_constraint.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "chat_options.h"
#include "common_options.h"
#include "preset_options.h"

namespace headwise {

struct RunOptions {
  EngineOptions engine;
  PresetFlags preset;
  SamplingFlags sampling;
  std::string plan;
  std::optional<std::string> prompt;
  std::optional<std::string> prompt_file;
  std::optional<std::string> prompts;  // JSON lines
  std::string stdin_mark;
  std::string out;  // of `prompts`; empty: standard output
  int64_t batch = 8;
  int64_t max_new_tokens = 256;
  int64_t max_context = 0;
  std::vector<std::string> stop;
  std::optional<int64_t> logprobs;
  std::string json_schema;  // files; empty: none
  std::string grammar;
  bool ignore_eos = false;
  bool chat = false;
  ChatFlags chat_flags;
  bool special = false;
  bool no_bos = false;
  bool stats = false;
  bool json = false;
};

// The ids of `text` as a prompt.
Status FillPrompt(const RunOptions& options, const Engine& engine, const std::string& text, Request& request);
// The ids of a conversation, and what ends the answer.
Status FillChat(const ChatFormat& format, std::span<const ChatMessage> messages, const ChatInputs& inputs,
                Request& request);
// Of one with a single message of a user.
Status FillMessage(const ChatFormat& format, const std::string& text, const ChatInputs& inputs, Request& request);

// What --json-schema or --grammar asks for; null where neither does.
Result<std::shared_ptr<const TokenConstraint>> ReadConstraint(const RunOptions& options, const Engine& engine);

// --max-context bounds prompt and answer together; without a number of new tokens (-1) it is the only bound.
Result<int64_t> NewTokensWithin(const RunOptions& options, const Engine& engine, int64_t max_new_tokens,
                                int64_t prompt_tokens);

// Text, tokens, how it ended, the seed of what was drawn, and log-probabilities where there are some.
void AddAnswer(const RequestResult& result, const SamplingOptions& sampling, const Engine& engine, Json& json);

}  // namespace headwise

#endif  // HEADWISE_APPS_RUN_REQUEST_H_
