#include "engine/engine_impl.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "base/check.h"
#include "base/no_memory.h"
#include "engine/forced_reading.h"
#include "engine/generation.h"
#include "engine/scheduler.h"
#include "tensor/finite.h"

namespace headwise {
namespace {

// Of the longest gap, what a step is to take: the rest is for what a machine does besides, and for the way to a client.
// On two cores steps took up to 1.5 times what was expected of them.
constexpr double kGapShare = 0.8;

// Runs what may call back into the program. An exception of its callbacks ends the request they belong to, and so does
// memory that it or they cannot have.
template <typename Function>
Status GuardCallbacks(const Function& function) {
  try {
    function();
    return Status::Ok();
  } catch (const std::bad_alloc& error) {
    return NoMemoryStatus(error, "the output of a request");
  } catch (const std::exception& exception) {
    return Status::Cancelled(fmt::format("a callback threw: {}", exception.what()));
  } catch (...) {
    return Status::Cancelled("a callback threw something that is no std::exception");
  }
}

}  // namespace

EngineImpl::EngineImpl(Parts parts)
    : parts_(std::move(parts)),
      sequences_(parts_.model->config, parts_.memory, parts_.options),
      prefixes_(sequences_),
      admission_(parts_.model->config, sequences_, prefixes_, parts_.options),
      preemption_(sequences_, admission_, parts_.options),
      decoder_(*parts_.model, *parts_.memory->backend, parts_.compute) {}

Result<std::shared_ptr<RunningRequest>> EngineImpl::Prepare(Request request,
                                                            std::shared_ptr<RequestObserver> observer) {
  if (request.logprobs && request.output == Request::Output::kStreamOnly && observer == nullptr) {
    return Status::InvalidInput("logprobs: are asked for, but output is kStreamOnly, which keeps none");
  }
  HW_ASSIGN_OR_RETURN(SequenceNeed need, admission_.Check(request));
  const auto keeps_text = admission_.MayReadAgain(request) ? Generation::KeepsText::kYes : Generation::KeepsText::kNo;
  request.sequence.reset();  // the claim holds it, and lets go of it at the end
  return WithTicket(std::make_shared<Generation>(next_id_++, std::move(need), std::move(request),
                                                 parts_.tokenizer.get(), parts_.model->config.eos_ids,
                                                 std::move(observer), keeps_text));
}

Result<std::shared_ptr<RunningRequest>> EngineImpl::Prepare(const ForcedRun& run,
                                                            std::shared_ptr<RequestObserver> observer) {
  HW_ASSIGN_OR_RETURN(SequenceNeed need, admission_.Check(run));
  return WithTicket(std::make_shared<ForcedReading>(next_id_++, std::move(need), run, parts_.model->config.vocab_size,
                                                    std::move(observer)));
}

std::shared_ptr<RunningRequest> EngineImpl::WithTicket(std::shared_ptr<RunningRequest> request) const {
  request->ticket = Cancellations::Ticket(cancellations_, request->id());
  return request;
}

Result<RequestId> EngineImpl::Accept(std::shared_ptr<RunningRequest> request) {
  const RequestId id = request->id();
  Status status = CatchNoMemory(kNewRequest, [&] {
    request->share = shares_->Begin(request->client());
    request->arrived_at_step = num_steps_;
    requests_.emplace(id, request);
    admission_.Add(std::move(request));
    return Status::Ok();
  });
  cancellations_->NoteArrival();
  if (status.ok()) return id;
  requests_.erase(id);
  return status;
}

void EngineImpl::Refuse(std::shared_ptr<RunningRequest> request, Status status) {
  Finish(std::move(request), {.finish = FinishReason::kError, .status = std::move(status)});
}

void EngineImpl::CancelAll() {
  // Who is over may be gone from the map, and callbacks may take others.
  for (auto it = requests_.begin(); it != requests_.end();) {
    const std::shared_ptr<RunningRequest> request = it->second;
    Finish(request, {.finish = FinishReason::kCancelled, .status = {}});
    it = requests_.upper_bound(request->id());
  }
}

void EngineImpl::TakeCancellations() {
  for (const RequestId id : cancellations_->TakeNew()) {
    const auto it = requests_.find(id);
    if (it != requests_.end()) Finish(it->second, {.finish = FinishReason::kCancelled, .status = {}});
  }
}

bool EngineImpl::Step() {
  HW_CHECK(!is_stepping_);
  is_stepping_ = true;
  ++num_steps_;
  work_of_step_.reset();
  const double begin = Seconds();
  bool has_moved = false;
  const Status status = CatchNoMemory("a step", [&] {
    TakeCancellations();
    // Those of a step that is on its way have what they need for it.
    const bool has_all = !ahead_.empty() || preemption_.Provide(active_);
    admission_.Admit(active_, !has_all, num_steps_);
    if (!has_all) preemption_.EndHopeless(active_);
    has_moved = FinishFailed();
    has_moved = RunStep() || has_moved;
    return Status::Ok();
  });
  if (!status.ok()) {
    for (const auto& request : active_) request->failure = CopyOf(status);
  }
  has_moved = FinishFailed() || has_moved;
  const double seconds = Seconds() - begin;
  if (work_of_step_ && seconds > 0) predictor_.Learn(*work_of_step_, seconds);
  is_stepping_ = false;
  return has_moved;
}

std::vector<int64_t> EngineImpl::ShareNextStep() const {
  std::vector<StepWish> wishes;
  for (const auto& request : active_) {
    const bool has_room = request->observer() == nullptr || request->observer()->HasRoom();
    wishes.push_back(has_room && Preemption::Covers(*request) ? request->Wish() : StepWish{});
  }
  // Most steps only decode: nobody has to wait for his turn.
  const bool has_prompts = std::ranges::any_of(wishes, [](const StepWish& wish) { return wish.num_tokens > 1; });
  if (!has_prompts) return ShareStep(wishes, 0);
  std::vector<Turn> turns;
  for (const auto& request : active_) turns.push_back(request->TurnAt(num_steps_));
  const std::vector<uint64_t> levels = LevelsOf(turns);
  for (size_t i = 0; i < wishes.size(); ++i) wishes[i].level = levels[i];
  const std::vector<size_t> order = OrderOf(turns);
  return ShareInTurn(wishes, order, PrefillBudget(wishes, order));
}

std::vector<int64_t> EngineImpl::ShareInTurn(const std::vector<StepWish>& wishes, const std::vector<size_t>& order,
                                             int64_t budget) {
  std::vector<StepWish> in_turn;
  for (const size_t i : order) in_turn.push_back(wishes[i]);
  const std::vector<int64_t> granted = ShareStep(in_turn, budget);
  std::vector<int64_t> shares(wishes.size());
  for (size_t i = 0; i < order.size(); ++i) shares[order[i]] = granted[i];
  return shares;
}

int64_t EngineImpl::PrefillBudget(const std::vector<StepWish>& wishes, const std::vector<size_t>& order) const {
  const int64_t most = parts_.options.chunk_tokens;
  const bool decodes = std::ranges::any_of(wishes, [](const StepWish& wish) { return wish.num_tokens == 1; });
  if (parts_.options.max_gap_ms == 0 || !decodes) return most;
  const double seconds = kGapShare * static_cast<double>(parts_.options.max_gap_ms) / 1000;
  return PrefillWithin(seconds, most, predictor_,
                       [&](int64_t budget) { return WorkOf(ShareInTurn(wishes, order, budget)); });
}

StepWork EngineImpl::WorkOf(const std::vector<int64_t>& shares) const {
  StepWork work;
  const auto token_bytes = static_cast<double>(sequences_.token_bytes());
  for (size_t i = 0; i < shares.size(); ++i) {
    const auto bytes = static_cast<double>(active_[i]->sequence()->cache->Bytes().total());
    const auto num_tokens = static_cast<double>(shares[i]);
    if (shares[i] == 1) {
      work.decode_rows += 1;
      work.decode_reads += bytes;
    } else {
      // Tokens of the step read those before them too, whatever the heads keep.
      work.prefill_tokens += num_tokens;
      work.prefill_reads += num_tokens * (bytes + num_tokens / 2 * token_bytes);
    }
  }
  return work;
}

double EngineImpl::Seconds() const {
  if (parts_.options.max_gap_ms == 0) return 0;
  if (parts_.seconds) return parts_.seconds();
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool EngineImpl::RunStep() {
  std::vector<Member> members = std::exchange(ahead_, {});
  const bool is_launched = !members.empty();
  if (!is_launched) {
    const std::vector<int64_t> shares = ShareNextStep();
    members = MembersOf(shares);
    if (parts_.options.max_gap_ms > 0) work_of_step_ = WorkOf(shares);
  }
  // From here on whatever fails is one member's, or all members'.
  Status status;
  {
    const KvMemory::Hold hold(*parts_.memory);
    if (!is_launched) {
      PlanCaches(members);
      if (members.empty()) {
        work_of_step_.reset();
        return false;
      }
      status = Launch(members);
      if (status.ok()) NoteRead(members);
    }
    if (status.ok()) {
      ahead_ = LaunchAhead(members);
      status = decoder_.Collect(output_);
    }
  }
  // The time of steps that overlap is not theirs alone.
  if (!status.ok() || !ahead_.empty()) work_of_step_.reset();
  if (status.ok()) {
    GiveRows(members);
    return true;
  }
  Fail(members, status);
  if (!ahead_.empty()) {
    static_cast<void>(decoder_.Collect(output_));
    Fail(std::exchange(ahead_, {}), status);
  }
  return true;
}

std::vector<EngineImpl::Member> EngineImpl::MembersOf(const std::vector<int64_t>& shares) const {
  std::vector<Member> members;
  for (size_t i = 0; i < shares.size(); ++i) {
    if (shares[i] == 0) continue;
    members.push_back({.request = active_[i], .num_new = shares[i], .wanted = {}});
    members.back().request->AddWanted(shares[i], members.back().wanted);
  }
  return members;
}

void EngineImpl::PlanCaches(std::vector<Member>& members) noexcept {
  for (Member& member : members) {
    Status planned = member.request->sequence()->cache->PlanStep(member.num_new);
    member.is_planned = planned.ok();
    if (!planned.ok()) member.request->failure = std::move(planned);
  }
  std::erase_if(members, [](const Member& member) { return !member.is_planned; });
}

Status EngineImpl::Launch(const std::vector<Member>& members) noexcept {
  Status status = CatchNoMemory("a step", [&] {
    std::vector<StepSequence> step;
    for (const Member& member : members) {
      const Sequence& sequence = *member.request->sequence();
      const std::span<const int32_t> unread = member.request->Unread();
      const bool draws = decoder_.DrawsOnDevice() && member.request->Draws();
      step.push_back({.cache = sequence.cache.get(),
                      .ids = unread.first(member.follows ? 0 : static_cast<size_t>(member.num_new)),
                      .follows = member.follows,
                      .marked = sequence.marked(),
                      .rope_frequencies = &sequence.rope_frequencies,
                      .wanted = member.wanted,
                      .draw = draws && !member.wanted.empty() ? member.request->NextDraw() : nullptr});
    }
    return decoder_.Launch(step);
  });
  for (const Member& member : members) {
    KvCache& cache = *member.request->sequence()->cache;
    if (!status.ok() && cache.planned_tokens() > 0) cache.AbandonStep();
  }
  return status;
}

std::vector<EngineImpl::Member> EngineImpl::MembersAhead(const std::vector<Member>& members) const {
  std::vector<Member> next;
  if (admission_.num_waiting() > 0) return next;
  size_t num_seen = 0;
  int32_t row = 0;
  for (const Member& member : members) {
    const int32_t its_row = row;
    row += static_cast<int32_t>(member.wanted.size());
    RunningRequest& request = *member.request;
    if (!request.running()) continue;
    ++num_seen;
    const RunningRequest::Next what = request.failure.ok() ? request.NextStep() : RunningRequest::Next::kNothing;
    if (what == RunningRequest::Next::kNothing) continue;
    const bool has_room = request.observer() == nullptr || request.observer()->HasRoom();
    const Sequence& sequence = *request.sequence();
    const bool has_memory = sequence.cache->num_tokens() < sequence.reserved_tokens;
    // What a token is to heads that keep some for that is known once the token is.
    const bool is_marked = sequence.marked() != nullptr;
    if (what == RunningRequest::Next::kUnknown || is_marked || !has_room || !has_memory) return {};
    next.push_back({.request = member.request, .num_new = 1, .wanted = {0}, .follows = its_row});
  }
  if (num_seen < active_.size()) next.clear();  // who was left out of this step may have a part in the next
  return next;
}

std::vector<EngineImpl::Member> EngineImpl::LaunchAhead(const std::vector<Member>& members) noexcept {
  if (!decoder_.HasDrawn()) return {};
  std::vector<Member> ahead;
  Status status = CatchNoMemory("a step", [&] {
    ahead = MembersAhead(members);
    return Status::Ok();
  });
  if (!status.ok()) return {};
  std::erase_if(ahead, [](const Member& member) { return !member.request->sequence()->cache->PlanStep(1).ok(); });
  if (ahead.empty()) return ahead;
  status = Launch(ahead);
  if (status.ok()) {
    for (const Member& member : ahead) member.request->NoteReadAhead();
    return ahead;
  }
  Fail(ahead, status);
  return {};
}

void EngineImpl::NoteRead(const std::vector<Member>& members) noexcept {
  for (const Member& member : members) {
    const auto note = [&] {
      member.request->NoteRead(member.num_new);
      return Status::Ok();
    };
    Status noted = CatchNoMemory("the ids of a text", note);
    if (noted.ok()) continue;
    member.request->sequence()->failure = CopyOf(noted);
    member.request->failure = std::move(noted);
  }
}

void EngineImpl::Fail(const std::vector<Member>& members, const Status& status) noexcept {
  for (const Member& member : members) {
    if (member.request->sequence() == nullptr) continue;  // it is over
    member.request->sequence()->failure = CopyOf(status);
    member.request->failure = CopyOf(status);
  }
}

void EngineImpl::GiveRows(const std::vector<Member>& members) noexcept {
  const ModelConfig& config = parts_.model->config;
  size_t first_row = 0;
  for (const Member& member : members) {
    RunningRequest& request = *member.request;
    const size_t num_rows = member.wanted.size();
    const bool has_drawn = request.Draws() && !output_.ids.empty();
    const auto rows_of = [&](auto matrix, int64_t width, bool are_there) {
      if (!are_there || matrix.empty()) return matrix.first(0);
      return matrix.subspan(first_row * static_cast<size_t>(width), num_rows * static_cast<size_t>(width));
    };
    const RequestRows rows{.num_rows = static_cast<int64_t>(num_rows),
                           .logits = rows_of(output_.logits, config.vocab_size, !has_drawn),
                           .hidden = rows_of(output_.hidden, config.model_dim, !has_drawn),
                           .ids = rows_of(output_.ids, 1, has_drawn),
                           .logprobs = rows_of(output_.logprobs, 1 + output_.num_top, has_drawn),
                           .top_ids = rows_of(output_.top_ids, output_.num_top, has_drawn)};
    first_row += num_rows;
    if (!request.running() || !request.failure.ok()) continue;  // a callback of another took it
    Verdict verdict;
    Status status = GiveRowsTo(member, rows, verdict);
    if (!status.ok()) verdict = {.finish = FinishReason::kError, .status = std::move(status)};
    if (status.ok() && request.running()) prefixes_.KeepAtMark(request);
    if (verdict.finish != FinishReason::kRunning) Finish(member.request, std::move(verdict));
  }
}

Status EngineImpl::GiveRowsTo(const Member& member, const RequestRows& rows, Verdict& verdict) {
  RunningRequest& request = *member.request;
  Status status = CatchNoMemory("a look at the logits", [&] { return CheckNumbers(request, rows); });
  if (!status.ok()) {
    // What its cache holds is no text that could go on.
    request.sequence()->failure = CopyOf(status);
    return status;
  }
  return GuardCallbacks([&] { verdict = request.TakeRows(member.num_new, rows); });
}

Status EngineImpl::CheckNumbers(RunningRequest& request, const RequestRows& rows) {
  if (rows.num_rows == 0) return Status::Ok();
  // A bad row of the output matrix shows in the first row of logits. What else is bad reaches all of a hidden state,
  // and with it every logit; so long rows are looked through once per request.
  const size_t vocab_size = rows.logits.size() / static_cast<size_t>(rows.num_rows);  // 0 where a device has drawn
  const size_t num_checked = std::exchange(request.has_rows, true) ? 1 : vocab_size;
  const bool is_finite = rows.ids.empty() ? AllFinite(rows.hidden) && AllFinite(rows.logits.first(num_checked))
                                          : std::ranges::none_of(rows.ids, [](int32_t id) { return id < 0; });
  if (is_finite) return Status::Ok();
  if (blame_.empty()) blame_ = BlameForNonFinite();
  return Status::InvalidInput(fmt::format("{}; the logits are not finite", blame_));
}

std::string EngineImpl::BlameForNonFinite() const {
  const Model& model = *parts_.model;
  if (model.source != nullptr) {
    for (const std::string& name : model.source->Names()) {
      const auto view = model.source->Get(name);
      // Others are no weights.
      if (!view.ok() || view->dtype == DType::kI32 || view->shape.rank() < 1 || view->shape.rank() > 3) continue;
      const auto found = FindNonFinite(*view);
      model.source->Release(*view);
      if (!found) continue;
      return fmt::format("{}: tensor \"{}\" holds {}, expected finite numbers", model.source->origin(), name, *found);
    }
  }
  return fmt::format(
      "{}: all weights are finite, but numbers leave their range on the way (kv_dtype is {}, compute {})",
      parts_.options.model, NameOf(parts_.memory->formats), NameOf(parts_.compute));
}

void EngineImpl::Finish(std::shared_ptr<RunningRequest> request, Verdict verdict) {
  if (!request->running()) return;
  request->UpdateMetrics();
  std::string rest;
  Status taken = GuardCallbacks([&] { rest = request->TakeRest(verdict.finish); });
  if (!taken.ok()) verdict = {.finish = FinishReason::kError, .status = std::move(taken)};
  ++num_finished_;
  request->result.finish = verdict.finish;
  request->result.status = std::move(verdict.status);
  const bool has_ended_well = verdict.finish != FinishReason::kCancelled && verdict.finish != FinishReason::kError;
  if (has_ended_well) {
    if (request->result.metrics.new_tokens > 0) admission_.LearnAnswer(request->result.metrics.new_tokens);
    prefixes_.KeepText(*request);
  }
  // What was read of a kept sequence stays; a prompt that was cut short by a cancellation is not part of it.
  request->ReleaseSequence();
  request->share = {};
  std::erase(active_, request);
  admission_.Remove(*request);
  Status guarded = GuardCallbacks([&] { request->ShowRest(rest); });
  if (!guarded.ok()) {
    request->result.finish = FinishReason::kError;
    request->result.status = std::move(guarded);
  }
  if (request->observer() == nullptr) return;
  requests_.erase(request->id());
  request->observer()->OnFinish(std::move(rest), std::move(request->result));
}

bool EngineImpl::FinishFailed() {
  bool has_any = false;
  while (true) {
    // Looked for anew each time: a callback may end others.
    const auto failed = std::ranges::find_if(active_, [](const auto& request) { return !request->failure.ok(); });
    std::shared_ptr<RunningRequest> request = failed != active_.end() ? *failed : admission_.FindRefused();
    if (request == nullptr) return has_any;
    has_any = true;
    Status status = std::move(request->failure);
    request->failure = Status::Ok();
    Finish(std::move(request), {.finish = FinishReason::kError, .status = std::move(status)});
  }
}

const RequestResult* EngineImpl::Peek(RequestId id) const {
  const auto it = requests_.find(id);
  return it == requests_.end() ? nullptr : &it->second->result;
}

Result<RequestResult> EngineImpl::Take(RequestId id) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) {
    return Status::NotFound(fmt::format("request {}: is unknown, expected one that was submitted and not taken", id));
  }
  const std::shared_ptr<RunningRequest> request = it->second;
  Finish(request, {.finish = FinishReason::kCancelled, .status = {}});
  requests_.erase(id);
  return std::move(request->result);
}

}  // namespace headwise
