// headwise chat: a conversation in the terminal. The KV cache lives on from turn to turn: nothing is read twice.
#include <fmt/format.h>
#include <headwise/chat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <optional>
#include <utility>

#include "commands.h"
#include "common_options.h"
#include "engine/prompt.h"
#include "generate.h"
#include "model/model_config.h"
#include "option_checks.h"

namespace headwise {
namespace {

// More than anyone types or any model writes; far from the end of int64.
constexpr int64_t kForEver = int64_t{1} << 40;

struct ChatOptions {
  EngineOptions engine;
  SamplingFlags sampling;
  std::string plan;
  int64_t max_new_tokens = 512;
  int64_t max_context = 0;
  std::string chat_form;
  bool stats = false;
};

// True if no head grows without end: all are streams with numbers, or their layers' own windows bound them.
bool RunsForEver(const HeadPlan* plan, const ModelConfig& config) {
  const LayerWindows windows = LayerWindowsOf(config);
  for (int64_t layer_idx = 0; layer_idx < config.num_layers; ++layer_idx) {
    const bool has_window = windows.At(layer_idx) < kNoLimit;
    for (int64_t kv_head = 0; kv_head < config.num_kv_heads; ++kv_head) {
      const HeadRule rule = plan == nullptr ? HeadRule::Full() : plan->At(layer_idx, kv_head);
      const bool is_bounded =
          rule.kind == HeadRule::Kind::kStream || (rule.kind == HeadRule::Kind::kFull && has_window);
      if (!is_bounded) return false;
    }
  }
  return true;
}

// The next line that says something; nothing at the end of input.
std::optional<std::string> ReadMessage() {
  const bool is_terminal = isatty(STDIN_FILENO) == 1;
  for (std::string line;;) {
    if (is_terminal) fmt::print(stderr, "> ");
    if (!std::getline(std::cin, line)) return std::nullopt;
    if (line.find_first_not_of(" \t\r") != std::string::npos) return line;
  }
}

// One conversation: what its turns share.
class Conversation {
 public:
  Conversation(const ChatOptions& options, Engine& engine, ChatForm form, std::shared_ptr<const HeadPlan> plan,
               int64_t max_tokens)
      : options_(options),
        sampling_(SamplingOf(options.sampling)),
        engine_(engine),
        form_(form),
        plan_(std::move(plan)),
        max_tokens_(max_tokens) {}

  // False when the context is full.
  Result<bool> Turn(const std::string& message) {
    HW_ASSIGN_OR_RETURN(std::vector<int32_t> prompt, Encode(message));
    const auto prompt_tokens = static_cast<int64_t>(prompt.size());
    if (sequence_ == nullptr) {
      HW_ASSIGN_OR_RETURN(
          sequence_, engine_.NewSequence({.plan = plan_, .prompt_tokens = prompt_tokens, .max_tokens = max_tokens_}));
    }
    // One more for the last token of the turn before, which is read with this one.
    const int64_t room = max_tokens_ - Engine::NumTokens(*sequence_) - prompt_tokens - 1;
    if (room < 1) return false;

    Request request;
    request.prompt = std::move(prompt);
    request.sequence = sequence_;
    request.sampling = sampling_;
    request.max_new_tokens = std::min(options_.max_new_tokens, room);
    request.stop_tokens = ChatStopIds(engine_.tokenizer(), form_);
    request.on_text = WriteOutput;
    request.output = Request::Output::kStreamOnly;
    HW_ASSIGN_OR_RETURN(const RequestResult result, Generate(engine_, std::move(request), InterruptGuard()));
    WriteOutput("\n");
    HW_RETURN_IF_ERROR(CheckOutput());
    if (result.finish == FinishReason::kCancelled) fmt::print(stderr, "[stopped]\n");
    if (options_.stats) fmt::print(stderr, "{}", FormatMetrics(result.metrics, engine_));
    last_answer_ = result.finish == FinishReason::kEos ? AnswerEnd::kClosed : AnswerEnd::kCut;
    return true;
  }

 private:
  Result<std::vector<int32_t>> Encode(const std::string& message) const {
    const Tokenizer& tokenizer = engine_.tokenizer();
    if (sequence_ == nullptr) return EncodeFirstTurn(tokenizer, form_, message, BeginOfText(engine_));
    return EncodeNextTurn(tokenizer, form_, message, last_answer_);
  }

  const ChatOptions& options_;
  SamplingOptions sampling_;
  Engine& engine_;
  ChatForm form_;
  std::shared_ptr<const HeadPlan> plan_;
  int64_t max_tokens_;
  std::shared_ptr<Sequence> sequence_;
  AnswerEnd last_answer_ = AnswerEnd::kCut;
};

Status RunChat(const ChatOptions& options) {
  HW_RETURN_IF_ERROR(CheckRange("--max-new-tokens", options.max_new_tokens, 1, kMaxSequenceTokens));
  HW_RETURN_IF_ERROR(CheckRange("--max-context", options.max_context, 0, kMaxSequenceTokens));
  HW_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::Create(options.engine));
  HW_RETURN_IF_ERROR(RequireTokenizer(*engine));
  HW_ASSIGN_OR_RETURN(const std::shared_ptr<const HeadPlan> plan, LoadPlan(options.plan, *engine));
  HW_ASSIGN_OR_RETURN(const ChatForm form, FindChatForm(engine->tokenizer(), options.chat_form));
  const bool is_endless = options.max_context == 0 && RunsForEver(plan.get(), engine->config());
  int64_t max_tokens = options.max_context > 0 ? options.max_context : engine->config().trained_length;
  if (is_endless) {
    max_tokens = kForEver;
    fmt::print(stderr, "This conversation can run for ever at constant memory: no head keeps everything.\n");
  } else {
    fmt::print(stderr, "This conversation can grow to {} tokens{}.\n", max_tokens,
               options.max_context > 0 ? "" : ", the model's trained length (--max-context changes it)");
  }
  Conversation conversation(options, *engine, form, plan, max_tokens);
  while (const std::optional<std::string> message = ReadMessage()) {
    HW_ASSIGN_OR_RETURN(const bool has_room, conversation.Turn(*message));
    if (!has_room) {
      fmt::print(stderr, "The context is full: no room for this message in {} tokens.\n", max_tokens);
      break;
    }
  }
  return Status::Ok();
}

}  // namespace

void AddChatCommand(CommandLine& line) {
  auto options = std::make_shared<ChatOptions>();
  CLI::App& command = *line.app.add_subcommand("chat", "Talk with a model; Ctrl-C ends an answer, twice the program");
  AddEngineOptions(command, options->engine);
  AddSamplingOptions(command, options->sampling);
  command.add_option("--plan", options->plan, "Head plan; every head full without one");
  command.add_option("--max-new-tokens,-n", options->max_new_tokens, "Longest answer")->capture_default_str();
  command.add_option("--max-context", options->max_context,
                     "Most tokens of the whole conversation; 0: no limit where no head keeps everything, otherwise the "
                     "trained length");
  command.add_option("--chat-form", options->chat_form, "chatml, llama-2, llama-3, mistral, mistral-v3 or vicuna");
  command.add_flag("--stats", options->stats, "Speeds, KV bytes and memory after every answer");
  OnChosen(line, command, std::move(options), RunChat);
}

}  // namespace headwise
