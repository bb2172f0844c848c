#include "conversation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <string_view>
#include <utility>

#include "common_options.h"
#include "output.h"

namespace headwise {

const std::string* Conversation::system() const {
  return !messages_.empty() && messages_.front().role == "system" ? &messages_.front().content : nullptr;
}

void Conversation::Reset() {
  messages_.resize(system() == nullptr ? 0 : 1);
  sequence_.reset();
}

void Conversation::Begin(const std::string& system) {
  messages_.assign(1, {.role = "system", .content = system});
  sequence_.reset();
}

Status Conversation::TakeUp(std::vector<ChatMessage> messages) {
  // Some forms have no place for a system prompt until a user has spoken.
  if (messages.size() > 1) {
    HW_ASSIGN_OR_RETURN(
        const std::vector<int32_t> ids,
        options_.format.Encode({.messages = messages, .end = ChatEnd::kAsGiven, .variables = options_.variables}));
    if (static_cast<int64_t>(ids.size()) >= options_.max_tokens) {
      return Status::InvalidInput(fmt::format("has {} tokens, expected less than the {} of this conversation",
                                              ids.size(), options_.max_tokens));
    }
  }
  messages_ = std::move(messages);
  sequence_.reset();
  return Status::Ok();
}

Result<bool> Conversation::Turn(const std::string& message) {
  HW_ASSIGN_OR_RETURN(NextTurn turn, Encode(message));
  const auto prompt_tokens = static_cast<int64_t>(turn.ids.size());
  const int64_t num_read = turn.goes_on ? Engine::NumTokens(*sequence_) : 0;
  // One more for the last token of the turn before, which is read with this one.
  const int64_t room = options_.max_tokens - num_read - prompt_tokens - 1;
  if (room < 1) return false;
  if (!turn.goes_on) {
    // First: its memory is for the new one.
    sequence_.reset();
    HW_ASSIGN_OR_RETURN(
        sequence_, engine_.NewSequence(
                       {.plan = options_.plan, .prompt_tokens = prompt_tokens, .max_tokens = options_.max_tokens}));
  }

  std::string answer;
  Request request;
  request.prompt = std::move(turn.ids);
  request.sequence = sequence_;
  request.sampling = options_.sampling;
  request.max_new_tokens = std::min(options_.max_new_tokens, room);
  request.stop_tokens = options_.format.stop_ids();
  request.on_text = [&](std::string_view text) {
    answer += text;
    return WriteOutput(text);
  };
  request.output = Request::Output::kStreamOnly;
  HW_ASSIGN_OR_RETURN(const RequestResult result, Generate(engine_, std::move(request), guard_));
  // It was meant for this answer, whether that ended by it or just before.
  guard_.Forget();
  WriteOutput("\n");
  HW_RETURN_IF_ERROR(CheckOutput());
  const bool is_stopped = result.finish == FinishReason::kCancelled;
  if (is_stopped) fmt::print(stderr, "[stopped]\n");
  if (options_.stats) fmt::print(stderr, "{}", FormatMetrics(result.metrics, engine_));
  if (is_stopped && result.metrics.new_tokens == 0) {
    // The cache may have half of the message. What was said before is read again with the next one.
    sequence_.reset();
    return true;
  }
  last_answer_ = result.finish == FinishReason::kEos ? AnswerEnd::kClosed : AnswerEnd::kCut;
  messages_.push_back({.role = "user", .content = message});
  messages_.push_back({.role = "assistant", .content = std::move(answer)});
  return true;
}

Result<NextTurn> Conversation::Encode(const std::string& message) const {
  std::vector<ChatMessage> messages = messages_;
  messages.push_back({.role = "user", .content = message});
  const ChatPrompt prompt = {.messages = messages, .variables = options_.variables};
  if (sequence_ != nullptr) return options_.format.EncodeNextTurn(prompt, last_answer_);
  HW_ASSIGN_OR_RETURN(std::vector<int32_t> ids, options_.format.Encode(prompt));
  return NextTurn{.goes_on = false, .ids = std::move(ids)};
}

}  // namespace headwise
