#include "engine/engine_impl.h"

#include <fmt/format.h>

#include <algorithm>

#include "kv/kv_bytes.h"
#include "model/rope.h"

namespace headwise {
namespace {

double SecondsSince(RequestState::Clock::time_point start) {
  return std::chrono::duration<double>(RequestState::Clock::now() - start).count();
}

// A row of logits is host memory; runs that want every row take smaller chunks once the vocabulary is large.
constexpr int64_t kMaxLogitFloatsPerStep = int64_t{16} << 20;

// What else heads of the two plans must have in common, in the words of an error.
std::string ForkCondition(const KvFormats& formats) {
  std::string text;
  if (formats.full != formats.bounded) {
    text += "; with two KV formats also heads that keep every token under both plans or under neither";
  }
  if (formats.full == KvFormat::kQ4 || formats.bounded == KvFormat::kQ4) {
    text += "; with a q4 cache also sinks that fill as many pages";
  }
  return text;
}

}  // namespace

EngineImpl::EngineImpl(Parts parts)
    : parts_(std::move(parts)),
      dense_plan_(std::make_shared<HeadPlan>(HeadPlan::Dense(parts_.model->config.shape()))),
      windows_(LayerWindowsOf(parts_.model->config)),
      decoder_(*parts_.model, *parts_.memory->backend, parts_.compute) {}

std::shared_ptr<const HeadPlan> EngineImpl::PlanOrDense(const std::shared_ptr<const HeadPlan>& plan) const {
  return plan == nullptr ? dense_plan_ : plan;
}

int64_t EngineImpl::WorstCaseBytes(const HeadPlan& plan, const SequenceLimits& limits) const {
  const auto pages_in = [&](KvFormat format) {
    return PageSizesOf(
        *parts_.memory->backend,
        {.head_dim = parts_.model->config.head_dim, .page_tokens = parts_.options.page_tokens, .format = format});
  };
  return PeakKvBytes({.plan = &plan,
                      .limits = limits,
                      .windows = windows_,
                      .chunk_tokens = parts_.options.chunk_tokens,
                      .page_tokens = parts_.options.page_tokens,
                      .full_pages = pages_in(parts_.memory->formats.full),
                      .bounded_pages = pages_in(parts_.memory->formats.bounded)});
}

Status EngineImpl::CheckMemory(int64_t needed_bytes) const {
  const int64_t limit = parts_.memory->limit_bytes;
  if (limit == 0 || needed_bytes <= limit) return Status::Ok();
  return Status::OutOfMemory(
      fmt::format("the KV cache needs {} bytes at worst, {} are available (the KV limit): allow fewer tokens, use a "
                  "plan that keeps less, or raise the limit",
                  needed_bytes, limit));
}

Status EngineImpl::CheckPlan(const HeadPlan& plan) const {
  HW_RETURN_IF_ERROR(ValidatePlan(plan, "plan"));
  HW_RETURN_IF_ERROR(CheckPlanFits(plan, parts_.model->config.shape(), "plan"));
  for (int64_t layer_idx = 0; layer_idx < plan.shape.num_layers; ++layer_idx) {
    if (windows_.At(layer_idx) == kNoLimit) continue;
    for (int64_t kv_head = 0; kv_head < plan.shape.num_kv_heads; ++kv_head) {
      const HeadRule& rule = plan.At(layer_idx, kv_head);
      // The window drops sinks while the prompt is read; positions in the cache would want them back after it.
      if (rule.positions == Positions::kCache && rule.start == RuleStart::kEndOfPrompt) {
        return Status::Unsupported(fmt::format(
            "plan: layer {}, KV head {}: positions in the cache from the end of the prompt cannot be combined with the "
            "layer's sliding window",
            layer_idx, kv_head));
      }
    }
  }
  return Status::Ok();
}

Status EngineImpl::CheckIds(std::span<const int32_t> ids, const char* what) const {
  if (ids.empty()) return Status::InvalidInput(fmt::format("{}: is empty, expected at least one token", what));
  const int64_t vocab_size = parts_.model->config.vocab_size;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size) {
      return Status::InvalidInput(
          fmt::format("{}: token {} is id {}, expected 0 to {}", what, i, ids[i], vocab_size - 1));
    }
  }
  return Status::Ok();
}

Result<std::shared_ptr<Sequence>> EngineImpl::Reserve(const SequenceOptions& options) const {
  const std::shared_ptr<const HeadPlan> plan = PlanOrDense(options.plan);
  HW_RETURN_IF_ERROR(CheckPlan(*plan));
  const SequenceLimits limits{.prompt_tokens = options.prompt_tokens, .max_tokens = options.max_tokens};
  const int64_t needed_bytes = WorstCaseBytes(*plan, limits);
  HW_RETURN_IF_ERROR(CheckMemory(needed_bytes));
  if (needed_bytes > parts_.memory->available_bytes()) {
    return Status::OutOfMemory(fmt::format("the KV cache needs {} bytes at worst, {} of the limit of {} are available",
                                           needed_bytes, parts_.memory->available_bytes(), parts_.memory->limit_bytes));
  }
  auto sequence = std::make_shared<Sequence>(parts_.memory, needed_bytes);
  sequence->plan = plan;
  sequence->limits = limits;
  return sequence;
}

Result<std::shared_ptr<Sequence>> EngineImpl::NewSequence(const SequenceOptions& options) {
  HW_ASSIGN_OR_RETURN(std::shared_ptr<Sequence> sequence, Reserve(options));
  sequence->rope_frequencies = RopeFrequencies(parts_.model->config, options.prompt_tokens);
  sequence->cache = std::make_unique<KvCache>(parts_.memory->pools(), parts_.model->config.num_kv_heads,
                                              ResolveRules(*sequence->plan, sequence->limits, windows_));
  return sequence;
}

Result<std::shared_ptr<Sequence>> EngineImpl::Fork(const Sequence& sequence) {
  // Reserved as if nothing were shared: either side may come to copy every page.
  if (sequence.reserved_bytes() > parts_.memory->available_bytes()) {
    return Status::OutOfMemory(fmt::format("a fork needs {} bytes at worst, {} of the limit of {} are available",
                                           sequence.reserved_bytes(), parts_.memory->available_bytes(),
                                           parts_.memory->limit_bytes));
  }
  auto fork = std::make_shared<Sequence>(parts_.memory, sequence.reserved_bytes());
  fork->plan = sequence.plan;
  fork->limits = sequence.limits;
  fork->rope_frequencies = sequence.rope_frequencies;
  fork->cache = sequence.cache->Fork();
  fork->history = sequence.history;
  fork->keeps_history = sequence.keeps_history;
  fork->pending = sequence.pending;
  return fork;
}

Result<std::shared_ptr<Sequence>> EngineImpl::Fork(const Sequence& sequence, const SequenceOptions& options) {
  HW_ASSIGN_OR_RETURN(std::shared_ptr<Sequence> fork, Reserve(options));
  fork->cache = sequence.cache->ForkAs(ResolveRules(*fork->plan, fork->limits, windows_));
  if (fork->cache == nullptr) {
    return Status::InvalidInput(fmt::format(
        "fork: the {} tokens so far were read under other rules than the new plan's; expected heads that keep their "
        "rule, or rules that hold from the end of a longer prompt{}",
        sequence.cache->num_tokens(), ForkCondition(parts_.memory->formats)));
  }
  fork->rope_frequencies = sequence.rope_frequencies;
  fork->history = sequence.history;
  fork->keeps_history = sequence.keeps_history;
  fork->pending = sequence.pending;
  return fork;
}

Result<RequestId> EngineImpl::Submit(Request request) {
  HW_RETURN_IF_ERROR(CheckIds(request.prompt, "prompt"));
  HW_RETURN_IF_ERROR(ValidateSampling(request.sampling));
  HW_RETURN_IF_ERROR(ValidateStops(request.stop));
  if (request.max_new_tokens < 0) {
    return Status::InvalidInput(fmt::format("max_new_tokens is {}, expected 0 or more", request.max_new_tokens));
  }
  const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
  auto state = std::make_unique<RequestState>();
  if (request.sequence != nullptr) {
    const Sequence& sequence = *request.sequence;
    if (sequence.in_use) return Status::InvalidInput("sequence: another request is running on it");
    const int64_t total =
        sequence.cache->num_tokens() + (sequence.pending ? 1 : 0) + prompt_tokens + request.max_new_tokens;
    if (total > sequence.limits.max_tokens) {
      return Status::InvalidInput(fmt::format("the text would grow to {} tokens, the sequence was made for {}", total,
                                              sequence.limits.max_tokens));
    }
  } else {
    const std::shared_ptr<const HeadPlan> plan = PlanOrDense(request.plan);
    HW_RETURN_IF_ERROR(CheckPlan(*plan));
    HW_RETURN_IF_ERROR(CheckMemory(
        WorstCaseBytes(*plan, {.prompt_tokens = prompt_tokens, .max_tokens = prompt_tokens + request.max_new_tokens})));
  }
  state->id = next_id_++;
  state->sampler.emplace(request.sampling);
  if (parts_.tokenizer != nullptr) state->decoder.emplace(*parts_.tokenizer, SpecialDisplay::kSkip);
  state->stops.emplace(request.stop);
  state->unread = request.prompt;
  state->result.metrics.prompt_tokens = prompt_tokens;
  if (request.sequence != nullptr) request.sequence->in_use = true;
  state->request = std::move(request);
  waiting_.push_back(state.get());
  const RequestId id = state->id;
  requests_.emplace(id, std::move(state));
  return id;
}

void EngineImpl::Cancel(RequestId id) {
  const std::lock_guard lock(cancel_mutex_);
  cancelled_.insert(id);
}

void EngineImpl::TakeCancellations() {
  std::set<RequestId> cancelled;
  {
    const std::lock_guard lock(cancel_mutex_);
    cancelled.swap(cancelled_);
  }
  for (const RequestId id : cancelled) {
    const auto it = requests_.find(id);
    if (it != requests_.end() && it->second->running()) Finish(*it->second, FinishReason::kCancelled);
  }
}

Status EngineImpl::Admit() {
  while (!waiting_.empty()) {
    RequestState& state = *waiting_.front();
    Request& request = state.request;
    if (request.sequence != nullptr) {
      state.sequence = request.sequence;
      if (state.sequence->pending) {
        state.unread.insert(state.unread.begin(), *state.sequence->pending);
        state.sequence->pending.reset();
      }
    } else {
      const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
      auto sequence = NewSequence(
          {.plan = request.plan, .prompt_tokens = prompt_tokens, .max_tokens = prompt_tokens + request.max_new_tokens});
      if (!sequence.ok()) {
        // Others will finish and give their bytes back; with nobody left to wait for, it is an error.
        if (sequence.status().code() == StatusCode::kOutOfMemory && !active_.empty()) return Status::Ok();
        const Status status = sequence.status();
        Finish(state, FinishReason::kCancelled);
        return status;
      }
      state.sequence = *std::move(sequence);
      state.sequence->in_use = true;
    }
    if (request.sampling.repetition_penalty != 1.0f) {
      state.sequence->keeps_history = true;
      state.sequence->history.insert(state.sequence->history.end(), state.unread.begin(), state.unread.end());
    }
    state.admitted = RequestState::Clock::now();
    waiting_.pop_front();
    active_.push_back(&state);
  }
  return Status::Ok();
}

Result<std::vector<StepSequence>> EngineImpl::PlanStep(std::vector<RequestState*>& members) {
  std::vector<StepSequence> step;
  int64_t budget = parts_.options.chunk_tokens;
  for (RequestState* state : active_) {
    const auto unread = static_cast<int64_t>(state->Unread().size());
    // Decoding requests always get their token, so that a long prompt of another does not stall them.
    const int64_t num_new = unread == 1 ? 1 : std::min({unread, budget, state->sequence->cache->MaxStepTokens()});
    if (num_new <= 0) continue;
    HW_RETURN_IF_ERROR(state->sequence->cache->PlanStep(num_new));
    if (unread > 1) budget -= num_new;
    StepSequence sequence{.cache = state->sequence->cache.get(),
                          .ids = state->Unread().first(static_cast<size_t>(num_new)),
                          .rope_frequencies = &state->sequence->rope_frequencies,
                          .wanted = {}};
    step.push_back(sequence);
    members.push_back(state);
  }
  return step;
}

Result<bool> EngineImpl::Step() {
  TakeCancellations();
  HW_RETURN_IF_ERROR(Admit());
  std::vector<RequestState*> members;
  HW_ASSIGN_OR_RETURN(std::vector<StepSequence> step, PlanStep(members));
  if (step.empty()) return false;
  // A request wants logits once its last unread token is read, unless it wants no token at all.
  std::vector<int32_t> last(step.size());
  for (size_t i = 0; i < step.size(); ++i) {
    last[i] = static_cast<int32_t>(step[i].ids.size()) - 1;
    const bool is_last = step[i].ids.size() == members[i]->Unread().size();
    if (is_last && members[i]->request.max_new_tokens > 0) step[i].wanted = {&last[i], 1};
  }
  HW_RETURN_IF_ERROR(decoder_.Step(step, output_));
  const auto vocab_size = static_cast<size_t>(parts_.model->config.vocab_size);
  size_t row = 0;
  for (size_t i = 0; i < step.size(); ++i) {
    std::span<float> logits;
    if (!step[i].wanted.empty()) logits = std::span(output_.logits).subspan(row++ * vocab_size, vocab_size);
    AfterStep(*members[i], static_cast<int64_t>(step[i].ids.size()), logits);
  }
  return !active_.empty() || !waiting_.empty();
}

void EngineImpl::AfterStep(RequestState& state, int64_t num_read, std::span<float> logits) {
  state.num_read += static_cast<size_t>(num_read);
  UpdateMetrics(state);
  if (!state.Unread().empty()) return;
  state.unread.clear();
  state.num_read = 0;
  if (logits.empty()) {
    state.result.metrics.prefill_seconds = SecondsSince(state.admitted);
    Finish(state, FinishReason::kLength);
    return;
  }
  const int32_t id = state.sampler->Sample(logits, state.sequence->history);
  if (state.result.metrics.new_tokens == 0) {
    state.result.metrics.prefill_seconds = SecondsSince(state.admitted);
    state.first_token = RequestState::Clock::now();
  }
  TakeToken(state, id);
}

void EngineImpl::TakeToken(RequestState& state, int32_t id) {
  const Request& request = state.request;
  RequestResult& result = state.result;
  const bool collect = request.output == Request::Output::kCollect;
  state.sequence->pending = id;
  if (state.sequence->keeps_history) state.sequence->history.push_back(id);
  result.metrics.decode_seconds = SecondsSince(state.first_token);

  const std::vector<int32_t>& eos_ids = parts_.model->config.eos_ids;
  const auto contains = [id](const std::vector<int32_t>& ids) {
    return std::find(ids.begin(), ids.end(), id) != ids.end();
  };
  if (request.eos == EosMode::kStop && (contains(eos_ids) || contains(request.stop_tokens))) {
    Finish(state, FinishReason::kEos);
    return;
  }
  ++result.metrics.new_tokens;
  if (collect) result.tokens.push_back(id);
  bool go_on = !request.on_token || request.on_token(id);
  bool stopped = false;
  if (state.decoder) {
    const std::string text = state.stops->Push(state.decoder->Push(id));
    stopped = state.stops->stopped();
    if (collect) result.text += text;
    if (!text.empty() && request.on_text && !request.on_text(text)) go_on = false;
  }
  if (stopped) {
    Finish(state, FinishReason::kStopString);
  } else if (!go_on) {
    Finish(state, FinishReason::kCancelled);
  } else if (result.metrics.new_tokens >= request.max_new_tokens) {
    Finish(state, FinishReason::kLength);
  } else {
    // Goes into the cache with the next step.
    state.sequence->pending.reset();
    state.unread.assign(1, id);
  }
}

void EngineImpl::Finish(RequestState& state, FinishReason reason) {
  state.result.finish = reason;
  if (state.decoder && state.sequence != nullptr && reason != FinishReason::kStopString) {
    std::string text = state.stops->Push(state.decoder->Flush());
    text += state.stops->Flush();
    if (state.request.output == Request::Output::kCollect) state.result.text += text;
    if (!text.empty() && state.request.on_text && reason != FinishReason::kCancelled) state.request.on_text(text);
  }
  if (state.sequence != nullptr) UpdateMetrics(state);
  // A kept sequence goes on from what was read; a prompt that was cut short by a cancellation is not part of it.
  if (state.request.sequence != nullptr) state.request.sequence->in_use = false;
  std::erase(active_, &state);
  std::erase(waiting_, &state);
  state.sequence.reset();
}

void EngineImpl::UpdateMetrics(RequestState& state) {
  RequestMetrics& metrics = state.result.metrics;
  const KvCacheBytes bytes = state.sequence->cache->Bytes();
  metrics.kv_bytes = bytes.total();
  metrics.kv_bytes_full = bytes.full;
  metrics.kv_bytes_bounded = bytes.bounded;
  metrics.kv_peak_bytes = state.sequence->cache->PeakBytes();
}

const RequestResult& EngineImpl::Peek(RequestId id) const {
  const auto it = requests_.find(id);
  HW_CHECK(it != requests_.end(), "no request {}", id);
  return it->second->result;
}

RequestResult EngineImpl::Take(RequestId id) {
  const auto it = requests_.find(id);
  HW_CHECK(it != requests_.end(), "no request {}", id);
  if (it->second->running()) Finish(*it->second, FinishReason::kCancelled);
  RequestResult result = std::move(it->second->result);
  requests_.erase(it);
  return result;
}

Status EngineImpl::RunForced(const ForcedRun& run) {
  HW_RETURN_IF_ERROR(CheckIds(run.ids, "ids"));
  const auto num_ids = static_cast<int64_t>(run.ids.size());
  const int64_t prompt_tokens = run.prompt_tokens < 0 ? num_ids : run.prompt_tokens;
  if (prompt_tokens > num_ids) {
    return Status::InvalidInput(fmt::format("prompt_tokens is {}, but there are {} ids", prompt_tokens, num_ids));
  }
  std::shared_ptr<Sequence> sequence = run.sequence;
  if (sequence == nullptr) {
    HW_ASSIGN_OR_RETURN(sequence,
                        NewSequence({.plan = run.plan, .prompt_tokens = prompt_tokens, .max_tokens = num_ids}));
  }
  const bool every = run.rows == ForcedRun::Rows::kEvery;
  const ModelConfig& config = parts_.model->config;
  int64_t max_chunk = run.chunk_tokens > 0 ? run.chunk_tokens : parts_.options.chunk_tokens;
  if (every) max_chunk = std::min(max_chunk, std::max<int64_t>(1, kMaxLogitFloatsPerStep / config.vocab_size));
  size_t next_position = 0;
  for (int64_t begin = 0; begin < num_ids;) {
    const bool in_prompt = begin < prompt_tokens;
    const int64_t left = (in_prompt ? prompt_tokens : num_ids) - begin;
    const int64_t chunk = in_prompt || run.decode_tokens <= 0 ? max_chunk : std::min(run.decode_tokens, max_chunk);
    const int64_t num_new = std::min({left, chunk, sequence->cache->MaxStepTokens()});
    std::vector<int32_t> wanted;
    for (int64_t i = 0; every && i < num_new; ++i) wanted.push_back(static_cast<int32_t>(i));
    for (; !every && next_position < run.positions.size() && run.positions[next_position] < begin + num_new;
         ++next_position) {
      if (run.positions[next_position] < begin) {
        return Status::InvalidInput(fmt::format("position {} is not in ascending order", run.positions[next_position]));
      }
      wanted.push_back(static_cast<int32_t>(run.positions[next_position] - begin));
    }
    const StepSequence step{.cache = sequence->cache.get(),
                            .ids = run.ids.subspan(static_cast<size_t>(begin), static_cast<size_t>(num_new)),
                            .rope_frequencies = &sequence->rope_frequencies,
                            .wanted = wanted};
    HW_RETURN_IF_ERROR(sequence->cache->PlanStep(num_new));
    HW_RETURN_IF_ERROR(decoder_.Step({&step, 1}, output_));
    const auto vocab_size = static_cast<size_t>(config.vocab_size);
    const auto model_dim = static_cast<size_t>(config.model_dim);
    for (size_t row = 0; row < wanted.size(); ++row) {
      if (!run.on_row(begin + wanted[row], std::span(output_.logits).subspan(row * vocab_size, vocab_size),
                      std::span(output_.hidden).subspan(row * model_dim, model_dim))) {
        return Status::Cancelled("stopped by the caller");
      }
    }
    begin += num_new;
    if (run.on_progress) run.on_progress(begin);
  }
  if (next_position < run.positions.size()) {
    return Status::InvalidInput(fmt::format("position {} is beyond the {} ids", run.positions[next_position], num_ids));
  }
  return Status::Ok();
}

}  // namespace headwise
