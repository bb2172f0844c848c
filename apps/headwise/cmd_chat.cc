// headwise chat: a conversation in the terminal. The KV cache lives on from turn to turn: nothing is read twice.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <optional>
#include <utility>

#include "commands.h"
#include "common_options.h"
#include "generate.h"
#include "model/model_config.h"
#include "text/chat_template.h"

namespace headwise {
namespace {

// More than anyone types or any model writes; far from the end of int64.
constexpr int64_t kForEver = int64_t{1} << 40;

struct ChatOptions {
  EngineOptions engine;
  SamplingOptions sampling;
  std::string plan;
  int64_t max_new_tokens = 512;
  int64_t max_context = 0;
  bool stats = false;
};

// True if no head grows without end: all are streams with numbers, or the model's own window bounds them.
bool RunsForEver(const HeadPlan* plan, const ModelConfig& config) {
  const auto is_bounded = [&](const HeadRule& rule) {
    return rule.kind == HeadRule::Kind::kStream ||
           (rule.kind == HeadRule::Kind::kFull && config.sliding_window.has_value());
  };
  if (plan == nullptr) return is_bounded(HeadRule::Full());
  return std::all_of(plan->rules.begin(), plan->rules.end(), is_bounded);
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
      : options_(options), engine_(engine), form_(form), plan_(std::move(plan)), max_tokens_(max_tokens) {}

  // False when the context is full.
  Result<bool> Turn(const std::string& message) {
    HW_ASSIGN_OR_RETURN(std::vector<int32_t> prompt, EncodeTurn(message));
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
    request.sampling = options_.sampling;
    request.max_new_tokens = std::min(options_.max_new_tokens, room);
    request.on_text = ShowText;
    request.output = Request::Output::kStreamOnly;
    HW_ASSIGN_OR_RETURN(const RequestResult result, Generate(engine_, std::move(request)));
    ShowText("\n");
    if (result.finish == FinishReason::kCancelled) fmt::print(stderr, "[stopped]\n");
    if (options_.stats) fmt::print(stderr, "{}", FormatMetrics(result.metrics, engine_));
    last_finish_ = result.finish;
    return true;
  }

 private:
  const ChatOptions& options_;
  Engine& engine_;
  ChatForm form_;
  std::shared_ptr<const HeadPlan> plan_;
  int64_t max_tokens_;
  std::shared_ptr<Sequence> sequence_;
  std::optional<FinishReason> last_finish_;
};

}  // namespace
}  // namespace headwise
