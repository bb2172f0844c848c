#include "engine/generation.h"

#include <algorithm>
#include <utility>

#include "engine/token_logprobs.h"

namespace headwise {

Generation::Generation(RequestId id, SequenceNeed need, Request request, const Tokenizer* tokenizer,
                       const std::vector<int32_t>& eos_ids, std::shared_ptr<RequestObserver> observer,
                       KeepsText keeps_text)
    : RunningRequest(id, std::move(need), std::move(request.prompt), std::move(observer)),
      request_(std::move(request)),
      tokenizer_(tokenizer),
      eos_ids_(&eos_ids),
      sampler_(request_.sampling),
      text_(tokenizer, request_.stop) {
  SetTurn(request_.priority, std::move(request_.client));
  if (keeps_text == KeepsText::kYes) KeepWholeText();
  if (request_.constraint != nullptr) {
    std::vector<int32_t> end_ids = eos_ids;
    end_ids.insert(end_ids.end(), request_.stop_tokens.begin(), request_.stop_tokens.end());
    guide_.emplace(std::move(request_.constraint), std::move(end_ids));
  }
  if (!request_.reuse_prefix) return;
  prefix = std::make_unique<PrefixTrack>();
  prefix->text.assign(Unread().begin(), Unread().end());
  // So far that the same prompt has something left to read: whether for an answer, whose last token of a prompt says
  // how it begins, or without one for several answers that read that token each.
  prefix->last_mark = num_unread() - (request_.max_new_tokens > 0 ? 2 : 1);
}

StepWish Generation::Wish() const {
  const KvCache& cache = *text().cache;
  const int64_t num_tokens = std::min(num_unread(), cache.MaxStepTokens());
  return {.num_tokens = prefix == nullptr ? num_tokens : prefix->CutAtMark(cache.num_tokens(), num_tokens)};
}

// The last token of the prompt, or the last sample; none where no token is to follow.
void Generation::AddWanted(int64_t num_new, std::vector<int32_t>& wanted) const {
  if (num_new == num_unread() && request_.max_new_tokens > 0) wanted.push_back(static_cast<int32_t>(num_new) - 1);
}

RunningRequest::Next Generation::NextStep() const {
  const bool is_free = Draws() && !sampler_.FollowsText();
  if (!is_free || num_unread() > 0 || request_.max_new_tokens == 0) return Next::kUnknown;
  return result.metrics.new_tokens + 1 < request_.max_new_tokens ? Next::kOneToken : Next::kNothing;
}

const TokenDraw* Generation::NextDraw() {
  // What the step reads is noted once it is on its way, which is later.
  text().seen.Add(Unread());
  draw_ = sampler_.Next(text().seen);
  draw_.num_top = request_.logprobs.value_or(-1);
  return &draw_;
}

Verdict Generation::TakeRows(int64_t, const RequestRows& rows) {
  UpdateMetrics();
  if (num_unread() > 0) return {};
  if (result.metrics.new_tokens == 0) {
    result.metrics.prefill_seconds = SecondsSinceAdmission();
    first_token_ = Clock::now();
  }
  if (rows.num_rows == 0) return {.finish = FinishReason::kLength, .status = {}};
  if (rows.ids.empty()) return DrawToken(rows.logits);
  const int32_t id = rows.ids.back();
  sampler_.Take(id);
  if (!request_.logprobs) return TakeToken(id, std::nullopt);
  const auto num_top = std::min(static_cast<size_t>(*request_.logprobs), rows.top_ids.size());
  return TakeToken(id, LogprobsOf(id, rows.logprobs.first(1 + num_top), rows.top_ids.first(num_top)));
}

Verdict Generation::DrawToken(std::span<float> logits) {
  const auto error = [](Status status) { return Verdict{.finish = FinishReason::kError, .status = std::move(status)}; };
  if (request_.logprobs) raw_logits_.assign(logits.begin(), logits.end());
  if (guide_) {
    Result<bool> goes_on = guide_->Limit(logits);
    if (!goes_on.ok()) return error(std::move(goes_on).status());
    if (!*goes_on) return {.finish = FinishReason::kEos, .status = {}};
  }
  const int32_t id = sampler_.Sample(logits, text().seen);
  if (guide_) {
    Status taken = guide_->Take(id);
    if (!taken.ok()) return error(std::move(taken));
  }
  if (!request_.logprobs) return TakeToken(id, std::nullopt);
  return TakeToken(id, LogprobsOf(raw_logits_, id, *request_.logprobs));
}

bool Generation::EndsText(int32_t id) const {
  const bool is_eos = std::ranges::find(*eos_ids_, id) != eos_ids_->end();
  return (is_eos && request_.eos != EosMode::kIgnore) ||
         std::ranges::find(request_.stop_tokens, id) != request_.stop_tokens.end();
}

Verdict Generation::TakeToken(int32_t id, std::optional<TokenLogprobs> logprobs) {
  ReadNext(id);
  result.metrics.decode_seconds = std::chrono::duration<double>(Clock::now() - first_token_).count();
  if (EndsText(id)) return {.finish = FinishReason::kEos, .status = {}};

  ++result.metrics.new_tokens;
  std::string text = text_.Push(id);
  if (request_.output == Request::Output::kCollect) {
    result.tokens.push_back(id);
    if (logprobs) result.logprobs.push_back(*logprobs);
    result.text += text;
  }
  bool go_on = !request_.on_token || request_.on_token(id);
  if (!text.empty() && request_.on_text && running() && !request_.on_text(text)) go_on = false;
  if (observer() != nullptr) observer()->OnToken(id, std::move(text), std::move(logprobs));

  if (text_.stopped()) {
    CutTokens();
    return {.finish = FinishReason::kStopString, .status = {}};
  }
  if (!go_on) return {.finish = FinishReason::kCancelled, .status = {}};
  if (result.metrics.new_tokens >= request_.max_new_tokens) return {.finish = FinishReason::kLength, .status = {}};
  return {};
}

// A stop string begins anywhere in a token: how many the text before it takes shows when they are decoded again.
void Generation::CutTokens() {
  if (request_.output != Request::Output::kCollect) return;
  StreamDecoder decoder(*tokenizer_, SpecialDisplay::kSkip);
  size_t num_bytes = 0;
  size_t num_kept = 0;
  // Behind the last token's there may be half a character, which ends with the text.
  while (num_bytes < result.text.size() && num_kept < result.tokens.size()) {
    num_bytes += decoder.Push(result.tokens[num_kept++]).size();
  }
  result.tokens.resize(num_kept);
  if (request_.logprobs) result.logprobs.resize(num_kept);
}

std::string Generation::TakeRest(FinishReason& finish) {
  const bool had_stopped = text_.stopped();
  std::string rest = text_.Flush();
  if (request_.output == Request::Output::kCollect) result.text += rest;
  // Half a character at the end may complete a stop string.
  const bool may_stop = finish == FinishReason::kLength || finish == FinishReason::kEos;
  if (may_stop && !had_stopped && text_.stopped()) {
    CutTokens();
    finish = FinishReason::kStopString;
  }
  return rest;
}

void Generation::ShowRest(const std::string& rest) {
  const bool has_ended_well = result.finish != FinishReason::kCancelled && result.finish != FinishReason::kError;
  if (has_ended_well && !rest.empty() && request_.on_text) request_.on_text(rest);
}

}  // namespace headwise
