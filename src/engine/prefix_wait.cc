// Requests that wait for what another one is reading, so that what both begin with is read once.
#include <algorithm>
#include <utility>

#include "base/no_memory.h"
#include "engine/preemption.h"
#include "engine/prefix_reuse.h"

namespace headwise {
namespace {

// Who is not served for so many steps, while others are, is not waited for any longer: its turn may never come before
// that of whoever waits.
constexpr int64_t kMostIdleSteps = 8;
// One after the other may be cancelled, or read on from what the one before has left: but not for ever.
constexpr int64_t kMostWaits = 8;

// Whether it takes part in steps. Who does wishes for some of the next one, so that it is made, and somebody looks
// again.
bool TakesPart(const RunningRequest& request) {
  const bool has_room = request.observer() == nullptr || request.observer()->HasRoom();
  return has_room && request.failure.ok() && Preemption::Covers(request);
}

// What the new sequence of a request that waits is made with; empty where it goes on with a text of its own.
std::optional<SequenceOptions> OptionsOf(RunningRequest& request) {
  const SequenceNeed& need = request.need();
  const Sequence* given = need.claim.sequence().get();
  if (given == nullptr) return need.new_options;
  if (given->NumTextTokens() > 0) return std::nullopt;
  return SequenceOptions{
      .plan = given->plan, .prompt_tokens = given->limits.prompt_tokens, .max_tokens = given->limits.max_tokens};
}

// Where one that is reading could leave a fork for a text that begins as its own does; 0: nowhere.
int64_t ForkAhead(const RunningRequest& owner, const PrefixTrack& track) {
  const PrefixTrack& its = *owner.prefix;
  const int64_t num_read = owner.sequence()->cache->num_tokens();
  if (num_read >= its.last_mark) return 0;  // most that are in steps draw tokens: their ids are not compared
  const int64_t common = std::ranges::mismatch(its.text, track.text).in1 - its.text.begin();
  const int64_t last_mark = std::min(its.last_mark, track.last_mark);
  const int64_t place = common >= last_mark ? last_mark : BranchPoint(common);
  return place > num_read ? place : 0;
}

}  // namespace

bool PrefixReuse::ShouldWait(RunningRequest& request, Requests active) {
  // One that has given way goes on where it was.
  if (cache_ == nullptr || request.prefix == nullptr || request.sequence() != nullptr) return false;
  PrefixTrack& track = *request.prefix;
  if (track.wait) {
    if (IsGettingOn(*track.wait, active)) return true;
    if (track.wait->idle_steps >= kMostIdleSteps) track.num_waits = kMostWaits;
    track.wait.reset();
  }
  if (track.num_waits >= kMostWaits) return false;
  static_cast<void>(CatchNoMemory("a look at what others read", [&] {
    track.wait = FindWait(request, active);
    return Status::Ok();
  }));
  if (!track.wait) return false;
  if (track.num_waits++ == 0) cache_->NoteWait();
  track.awaited_tokens = track.wait->num_tokens;
  return true;
}

bool PrefixReuse::IsGettingOn(PrefixWait& wait, Requests active) {
  const auto owner = std::ranges::find_if(active, [&](const auto& each) { return each->id() == wait.owner; });
  if (owner == active.end() || !TakesPart(**owner)) return false;
  const int64_t num_read = (*owner)->sequence()->cache->num_tokens();
  if (num_read >= wait.num_tokens) return false;
  wait.idle_steps = num_read == wait.num_read ? wait.idle_steps + 1 : 0;
  wait.num_read = num_read;
  return wait.idle_steps < kMostIdleSteps;
}

int64_t PrefixReuse::TokensKept(const SequenceOptions& options, const PrefixTrack& track) {
  for (const PrefixCache::Kept& kept : cache_->Peek(sequences_->PlanOf(options), track.text).kept) {
    const bool fits = kept.sequence == nullptr || sequences_->WouldAdopt(options, *kept.sequence, kept.num_tokens);
    if (fits) return kept.num_tokens;
  }
  return 0;
}

std::optional<PrefixWait> PrefixReuse::FindWait(RunningRequest& request, Requests active) {
  const std::optional<SequenceOptions> options = OptionsOf(request);
  if (!options) return std::nullopt;
  const PrefixTrack& track = *request.prefix;
  RunningRequest* best = nullptr;
  int64_t most = 0;
  for (const auto& owner : active) {
    if (owner->prefix == nullptr || !TakesPart(*owner)) continue;
    const int64_t place = ForkAhead(*owner, track);
    if (place < kLeastKept || place <= most) continue;
    const Sequence& sequence = *owner->sequence();
    if (!cache_->AreAlike(sequences_->PlanOf(*options), *sequence.plan)) continue;
    if (!sequences_->WouldAdopt(*options, sequence, place)) continue;
    best = owner.get();
    most = place;
  }
  if (best == nullptr || most - TokensKept(*options, track) < kLeastKept) return std::nullopt;
  const Sequence& sequence = *best->sequence();
  const auto ids = std::span(track.text).first(static_cast<size_t>(most));
  const int64_t bytes = sequences_->BytesOfText(*options, request.need().step_tokens, most);
  if (!cache_->Wants(*sequence.plan, ids, bytes)) return std::nullopt;
  best->prefix->AddMark(most);
  const int64_t num_read = sequence.cache->num_tokens();
  return PrefixWait{.owner = best->id(), .num_tokens = most, .num_read = num_read, .idle_steps = 0};
}

}  // namespace headwise
