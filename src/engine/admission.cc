#include "engine/admission.h"

#include <fmt/format.h>
#include <headwise/token_constraint.h>

#include <algorithm>
#include <utility>

#include "base/no_memory.h"
#include "engine/sampler.h"
#include "engine/stop_matcher.h"

namespace headwise {
namespace {

// Of an answer, memory for so many pages of each head is reserved in any case.
constexpr int64_t kLeastPages = 4;
// The ids of a longer text are not kept to be read again, so that a stream without an end takes no memory for them.
constexpr int64_t kMostKept = int64_t{1} << 21;

Status CheckPositions(const ForcedRun& run) {
  const auto num_ids = static_cast<int64_t>(run.ids.size());
  int64_t last = -1;
  for (const int64_t position : run.positions) {
    if (position <= last) {
      return Status::InvalidInput(fmt::format("position {} is not in ascending order", position));
    }
    if (position >= num_ids) {
      return Status::InvalidInput(fmt::format("position {} is beyond the {} ids", position, num_ids));
    }
    last = position;
  }
  return Status::Ok();
}

Status CheckForced(const ForcedRun& run) {
  const auto num_ids = static_cast<int64_t>(run.ids.size());
  if (run.prompt_tokens > num_ids) {
    return Status::InvalidInput(fmt::format("prompt_tokens is {}, but there are {} ids", run.prompt_tokens, num_ids));
  }
  if (run.chunk_tokens < 0 || run.chunk_tokens > kMaxChunkTokens) {
    return Status::InvalidInput(
        fmt::format("chunk_tokens is {}, expected 0 (the engine's) to {}", run.chunk_tokens, kMaxChunkTokens));
  }
  if (run.rows == ForcedRun::Rows::kEvery && !run.positions.empty()) {
    return Status::InvalidInput("positions: are listed, but every row is wanted; expected one of the two");
  }
  if (!run.on_row && (run.rows == ForcedRun::Rows::kEvery || !run.positions.empty())) {
    return Status::InvalidInput("on_row: is not set, but rows are wanted");
  }
  return CheckPositions(run);
}

}  // namespace

Admission::Admission(const ModelConfig& config, SequenceMaker& sequences, PrefixReuse& prefixes,
                     const EngineOptions& options)
    : config_(&config),
      sequences_(&sequences),
      prefixes_(&prefixes),
      is_likely_(options.kv_admission == EngineOptions::KvAdmission::kLikely && options.kv_limit_bytes > 0),
      least_more_(kLeastPages * options.page_tokens) {}

bool Admission::MayReadAgain(const Request& request) const {
  if (!is_likely_ || request.sequence != nullptr) return false;
  const auto most = static_cast<int64_t>(request.prompt.size()) + request.max_new_tokens;
  const bool holds_at_once =
      request.plan == nullptr || std::ranges::none_of(request.plan->rules, [](const HeadRule& rule) {
        return rule.start == RuleStart::kEndOfPrompt;
      });
  return most <= kMostKept && holds_at_once;
}

namespace {

Status CheckIds(std::span<const int32_t> ids, const char* what, int64_t vocab_size) {
  if (ids.empty()) return Status::InvalidInput(fmt::format("{}: is empty, expected at least one token", what));
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size) {
      return Status::InvalidInput(
          fmt::format("{}: token {} is id {}, expected 0 to {}", what, i, ids[i], vocab_size - 1));
    }
  }
  return Status::Ok();
}

Status CheckConstraint(const Request& request, int64_t vocab_size) {
  if (request.constraint->vocab_size() != vocab_size) {
    return Status::InvalidInput(fmt::format("constraint: is one of {} ids, expected the model's {}",
                                            request.constraint->vocab_size(), vocab_size));
  }
  if (request.eos != EosMode::kIgnore) return Status::Ok();
  return Status::InvalidInput("constraint: end-of-text tokens are to be ignored, but it says where texts end");
}

}  // namespace

Status ValidateRequest(const Request& request, int64_t vocab_size) {
  if (request.constraint != nullptr) HW_RETURN_IF_ERROR(CheckConstraint(request, vocab_size));
  HW_RETURN_IF_ERROR(CheckIds(request.prompt, "prompt", vocab_size));
  HW_RETURN_IF_ERROR(ValidateSampling(request.sampling, vocab_size));
  if (request.logprobs && (*request.logprobs < 0 || *request.logprobs > kMaxLogprobs)) {
    return Status::InvalidInput(fmt::format("logprobs is {}, expected 0 to {}", *request.logprobs, kMaxLogprobs));
  }
  HW_RETURN_IF_ERROR(ValidateStops(request.stop));
  const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
  // Before anything is added to it.
  const int64_t most = kMaxSequenceTokens - std::min(prompt_tokens, kMaxSequenceTokens);
  if (request.max_new_tokens < 0 || request.max_new_tokens > most) {
    return Status::InvalidInput(
        fmt::format("max_new_tokens is {}, expected 0 to {} (a text has at most {} tokens, this prompt {})",
                    request.max_new_tokens, most, kMaxSequenceTokens, prompt_tokens));
  }
  return Status::Ok();
}

Result<SequenceNeed> Admission::Check(const Request& request) const {
  HW_RETURN_IF_ERROR(ValidateRequest(request, config_->vocab_size));
  const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
  const int64_t num_more = prompt_tokens + request.max_new_tokens;
  if (request.sequence != nullptr) {
    return NeedOf(request.sequence, request.plan, num_more, sequences_->step_tokens());
  }
  return NeedOf({.plan = request.plan, .prompt_tokens = prompt_tokens, .max_tokens = num_more},
                sequences_->step_tokens());
}

Result<SequenceNeed> Admission::Check(const ForcedRun& run) const {
  HW_RETURN_IF_ERROR(CheckIds(run.ids, "ids", config_->vocab_size));
  HW_RETURN_IF_ERROR(CheckForced(run));
  const auto num_ids = static_cast<int64_t>(run.ids.size());
  const int64_t step_tokens = run.chunk_tokens > 0 ? run.chunk_tokens : sequences_->step_tokens();
  if (run.sequence != nullptr) return NeedOf(run.sequence, run.plan, num_ids, step_tokens);
  const int64_t prompt_tokens = run.prompt_tokens < 0 ? num_ids : run.prompt_tokens;
  return NeedOf({.plan = run.plan, .prompt_tokens = prompt_tokens, .max_tokens = num_ids}, step_tokens);
}

Result<SequenceNeed> Admission::NeedOf(const std::shared_ptr<Sequence>& sequence,
                                       const std::shared_ptr<const HeadPlan>& plan, int64_t num_more,
                                       int64_t step_tokens) const {
  std::optional<SequenceClaim> claim = SequenceClaim::Take(sequence);
  if (!claim) return Status::InvalidInput("sequence: another request is running on it");
  HW_RETURN_IF_ERROR(sequences_->CheckOwn(*sequence));
  if (plan != nullptr && plan != sequence->plan) {
    return Status::InvalidInput("plan: is given beside a sequence that has its own, expected one of the two");
  }
  const int64_t total = sequence->NumTextTokens() + num_more;
  if (total > sequence->limits.max_tokens) {
    return Status::InvalidInput(fmt::format("the text would grow to {} tokens, the sequence was made for {}", total,
                                            sequence->limits.max_tokens));
  }
  HW_RETURN_IF_ERROR(sequences_->CheckSteps(*sequence, step_tokens));
  return SequenceNeed{.claim = *std::move(claim), .new_options = {}, .step_tokens = step_tokens};
}

Result<SequenceNeed> Admission::NeedOf(const SequenceOptions& options, int64_t step_tokens) const {
  HW_RETURN_IF_ERROR(sequences_->Check(options, step_tokens));
  return SequenceNeed{.claim = {}, .new_options = options, .step_tokens = step_tokens};
}

void Admission::Remove(const RunningRequest& request) {
  std::erase_if(waiting_, [&](const std::shared_ptr<RunningRequest>& each) { return each.get() == &request; });
}

// ---- what a request is given ----------------------------------------------------------------------------------------

bool Admission::IsLikely(RunningRequest& request) const {
  if (!is_likely_ || !request.Grows()) return false;
  const SequenceNeed& need = request.need();
  return request.CanReadAgain() || sequences_->HasHostRoom(need.new_options, need.step_tokens);
}

int64_t Admission::LikelyTokens(RunningRequest& request) const {
  const Sequence* sequence = request.sequence();
  const int64_t most = request.need().new_options.max_tokens;
  // Who may not give way again whatever the others need must not have to grow.
  if (sequence != nullptr && !request.CanReadAgain() && !sequence->has_host_promise) return most;
  auto num_tokens = static_cast<int64_t>(request.Unread().size());
  if (sequence != nullptr && sequence->saved != nullptr) num_tokens += sequence->saved->num_tokens;
  if (request.Grows()) num_tokens += answers_.More(request.result.metrics.new_tokens, least_more_);
  return std::min(num_tokens, most);
}

Result<std::shared_ptr<Sequence>> Admission::ProvideNew(RunningRequest& request) const {
  const SequenceNeed& need = request.need();
  if (!IsLikely(request)) return sequences_->New(need.new_options, need.step_tokens);
  const auto host_room =
      request.CanReadAgain() ? SequenceMaker::HostRoom::kNotPromised : SequenceMaker::HostRoom::kPromised;
  return sequences_->NewLikely(need.new_options, need.step_tokens, LikelyTokens(request), host_room);
}

Result<std::shared_ptr<Sequence>> Admission::Provide(RunningRequest& request) const {
  SequenceNeed& need = request.need();
  const std::shared_ptr<Sequence>& given = need.claim.sequence();
  if (given == nullptr) return ProvideNew(request);
  HW_RETURN_IF_ERROR(sequences_->AllowSteps(*given, need.step_tokens));
  return given;
}

Status Admission::Begin(RunningRequest& request) const {
  // One that has given way goes on where it was.
  if (request.sequence() != nullptr) return sequences_->Return(*request.sequence(), LikelyTokens(request));
  HW_ASSIGN_OR_RETURN(std::shared_ptr<Sequence> sequence, Provide(request));
  const int64_t num_reused = prefixes_->Begin(request, *sequence);
  request.Begin(std::move(sequence), num_reused);
  return Status::Ok();
}

bool Admission::NeedsMemory(RunningRequest& request) const {
  const Sequence* given = request.need().claim.sequence().get();
  return given == nullptr || given->step_tokens < request.need().step_tokens;
}

int64_t Admission::NeededBytes(RunningRequest& request) const {
  const SequenceNeed& need = request.need();
  if (request.sequence() != nullptr) return sequences_->BytesToGrow(*request.sequence(), LikelyTokens(request));
  if (!request.has_own_sequence()) return sequences_->BytesOfSteps(*need.claim.sequence(), need.step_tokens);
  if (!IsLikely(request)) return sequences_->BytesOfNew(need.new_options, need.step_tokens);
  return sequences_->BytesOfText(need.new_options, need.step_tokens, LikelyTokens(request));
}

// ---- who comes in ---------------------------------------------------------------------------------------------------

// Who has a sequence and needs no more will run, and end.
int64_t Admission::BytesOfWaiting() const {
  int64_t bytes = 0;
  for (const std::shared_ptr<RunningRequest>& waiting : waiting_) {
    const Sequence* sequence = waiting->need().claim.sequence().get();
    if (sequence != nullptr && NeedsMemory(*waiting)) bytes += sequence->reserved_bytes();
  }
  return bytes;
}

bool Admission::OthersMayGive(int64_t own_bytes) const {
  return waits_for_kept_ && sequences_->OthersHave(kNoLimit, own_bytes + BytesOfWaiting());
}

bool Admission::MayComeBack(RunningRequest& request) const {
  return waits_for_kept_ && sequences_->OthersHave(NeededBytes(request), BytesOfWaiting());
}

void Admission::Sort(int64_t step) {
  if (waiting_.size() < 2) return;
  // Where there is no memory for it they stay in the order that they had.
  static_cast<void>(CatchNoMemory("an order of requests", [&] {
    std::vector<Turn> turns;
    for (const auto& request : waiting_) turns.push_back(request->TurnAt(step));
    std::deque<std::shared_ptr<RunningRequest>> sorted;
    for (const size_t i : OrderOf(turns)) sorted.push_back(waiting_[i]);
    waiting_.swap(sorted);
    return Status::Ok();
  }));
}

void Admission::Admit(std::vector<std::shared_ptr<RunningRequest>>& active, bool is_short, int64_t step) {
  Sort(step);
  const auto begin = [&](const std::shared_ptr<RunningRequest>& request) {
    HW_RETURN_IF_ERROR(CatchNoMemory("the tables of a new sequence", [&] {
      ReserveMore(active, 1);
      return Begin(*request);
    }));
    const auto later = std::ranges::find_if(active, [&](const auto& other) { return request->GoesBefore(*other); });
    active.insert(later, request);
    return Status::Ok();
  };
  std::shared_ptr<RunningRequest> short_one;  // the first for which memory was short
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    RunningRequest& request = **it;
    if ((NeedsMemory(request) && is_short) || prefixes_->ShouldWait(request, active)) {
      ++it;
      continue;
    }
    Status status = begin(*it);
    if (status.ok()) {
      it = waiting_.erase(it);
      continue;
    }
    if (status.code() == StatusCode::kOutOfMemory) {
      is_short = true;
      if (short_one == nullptr) short_one = *it;
    } else {
      request.failure = std::move(status);
    }
    ++it;
  }
  // Who runs now, or holds a sequence that no request waits with, will give memory back.
  if (short_one == nullptr || !active.empty() || MayComeBack(*short_one)) return;
  // It may have come back since it was looked for.
  Status status = begin(short_one);
  if (status.ok()) {
    std::erase(waiting_, short_one);
  } else if (status.code() != StatusCode::kOutOfMemory || !MayComeBack(*short_one)) {
    short_one->failure = std::move(status);
  }
}

std::shared_ptr<RunningRequest> Admission::FindRefused() const {
  const auto it = std::ranges::find_if(waiting_, [](const auto& request) { return !request->failure.ok(); });
  return it == waiting_.end() ? nullptr : *it;
}

}  // namespace headwise
