#include "engine/admission.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/no_memory.h"
#include "engine/sampler.h"
#include "engine/stop_matcher.h"

namespace headwise {
namespace {

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

Status Admission::CheckIds(std::span<const int32_t> ids, const char* what) const {
  if (ids.empty()) return Status::InvalidInput(fmt::format("{}: is empty, expected at least one token", what));
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= config_->vocab_size) {
      return Status::InvalidInput(
          fmt::format("{}: token {} is id {}, expected 0 to {}", what, i, ids[i], config_->vocab_size - 1));
    }
  }
  return Status::Ok();
}

Result<SequenceNeed> Admission::Check(const Request& request) const {
  HW_RETURN_IF_ERROR(CheckIds(request.prompt, "prompt"));
  HW_RETURN_IF_ERROR(ValidateSampling(request.sampling, config_->vocab_size));
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
  const int64_t num_more = prompt_tokens + request.max_new_tokens;
  if (request.sequence != nullptr) {
    return NeedOf(request.sequence, request.plan, num_more, sequences_->step_tokens());
  }
  return NeedOf({.plan = request.plan, .prompt_tokens = prompt_tokens, .max_tokens = num_more},
                sequences_->step_tokens());
}

Result<SequenceNeed> Admission::Check(const ForcedRun& run) const {
  HW_RETURN_IF_ERROR(CheckIds(run.ids, "ids"));
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

Result<std::shared_ptr<Sequence>> Admission::Provide(RunningRequest& request) const {
  SequenceNeed& need = request.need();
  const std::shared_ptr<Sequence>& given = need.claim.sequence();
  if (given == nullptr) return sequences_->New(need.new_options, need.step_tokens);
  HW_RETURN_IF_ERROR(sequences_->AllowSteps(*given, need.step_tokens));
  return given;
}

bool Admission::MayComeBack(RunningRequest& request) const {
  if (!waits_for_kept_) return false;
  // Who has a sequence and needs no more will run, and end.
  int64_t of_waiting = 0;
  for (const std::shared_ptr<RunningRequest>& waiting : waiting_) {
    const Sequence* sequence = waiting->need().claim.sequence().get();
    const bool needs_more = sequence != nullptr && sequence->step_tokens < waiting->need().step_tokens;
    if (needs_more) of_waiting += sequence->reserved_bytes();
  }
  const SequenceNeed& need = request.need();
  const Sequence* given = need.claim.sequence().get();
  const int64_t needed_bytes = given == nullptr ? sequences_->BytesOfNew(need.new_options, need.step_tokens)
                                                : sequences_->BytesOfSteps(*given, need.step_tokens);
  return sequences_->OthersHave(needed_bytes, of_waiting);
}

void Admission::Admit(std::vector<std::shared_ptr<RunningRequest>>& active) {
  bool is_short = false;
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    RunningRequest& request = **it;
    const Sequence* given = request.need().claim.sequence().get();
    const bool needs_memory = given == nullptr || given->step_tokens < request.need().step_tokens;
    if (needs_memory && is_short) {
      ++it;
      continue;
    }
    Status status = CatchNoMemory("the tables of a new sequence", [&] {
      ReserveMore(active, 1);
      HW_ASSIGN_OR_RETURN(std::shared_ptr<Sequence> sequence, Provide(request));
      const int64_t num_reused = prefixes_->Begin(request, *sequence);
      request.Begin(std::move(sequence), num_reused);
      return Status::Ok();
    });
    if (status.ok()) {
      active.push_back(std::move(*it));
      it = waiting_.erase(it);
      continue;
    }
    if (status.code() == StatusCode::kOutOfMemory && (!active.empty() || MayComeBack(request))) {
      is_short = true;
    } else {
      request.failure = std::move(status);
    }
    ++it;
  }
}

std::shared_ptr<RunningRequest> Admission::FindRefused() const {
  const auto it = std::ranges::find_if(waiting_, [](const auto& request) { return !request->failure.ok(); });
  return it == waiting_.end() ? nullptr : *it;
}

}  // namespace headwise
