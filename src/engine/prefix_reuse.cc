#include "engine/prefix_reuse.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "base/check.h"
#include "base/no_memory.h"

namespace headwise {
namespace {

// Of so much that is read anew a fork is kept some way before its end too, where a question about it may begin: who
// comes next reads little again, and leaves a fork where the two really differ.
constexpr int64_t kLongTokens = 1024;
constexpr int64_t kMostOfQuestion = 256;
constexpr int64_t kBeforeQuestion = 512;  // a multiple of it
// A text beyond it is not kept with its answer, so that a stream without an end takes no memory for its ids.
constexpr size_t kMostTracked = size_t{1} << 21;

// Whether some head has begun to drop tokens because a prompt ended: no longer text can go on from there.
bool HasCut(const KvCache& cache) {
  for (int64_t layer_idx = 0; layer_idx < cache.num_layers(); ++layer_idx) {
    for (int64_t kv_head = 0; kv_head < cache.num_kv_heads(); ++kv_head) {
      const ResolvedRule& rule = cache.rule(layer_idx, kv_head);
      if (rule.holds_from > 0 && cache.num_tokens() >= rule.holds_from) return true;
    }
  }
  return false;
}

// A sequence that is kept is its cache's ids and no others: it may have been longer, or have drawn one that no step has
// read; whether a text goes on with that is for who comes to say.
void KeepIdsAlone(std::span<const int32_t> ids, Sequence& sequence) {
  TokenSet seen;
  seen.Add(ids);
  sequence.seen = std::move(seen);
  sequence.pending.reset();
}

}  // namespace

int64_t PrefixTrack::CutAtMark(int64_t num_cached, int64_t num_tokens) const {
  const auto next = std::ranges::upper_bound(marks, num_cached);
  return next == marks.end() ? num_tokens : std::min(num_tokens, *next - num_cached);
}

void PrefixTrack::AddMark(int64_t place) {
  const auto next = std::ranges::lower_bound(marks, place);
  if (next == marks.end() || *next != place) marks.insert(next, place);
}

void PrefixTrack::Add(int32_t id) {
  if (text.empty()) return;
  text.push_back(id);
  if (text.size() > kMostTracked) text = {};
}

void PrefixReuse::SetCache(std::shared_ptr<PrefixCache> cache) {
  cache_ = std::move(cache);
  if (cache_ == nullptr) return sequences_->OnShort({});
  sequences_->OnShort([cache = cache_](int64_t bytes) { return cache->Reclaim(bytes); });
}

// One that comes from a file is kept in memory from here on: others may go on from it too.
std::optional<PrefixMiss> PrefixReuse::GoOnFrom(const PrefixCache::Kept& kept, const PrefixTrack& track,
                                                Sequence& sequence) {
  if (kept.saved == nullptr) return sequences_->Adopt(sequence, *kept.sequence);
  Result<std::shared_ptr<Sequence>> from = sequences_->FromSaved(sequence.plan, *kept.saved);
  if (!from.ok()) {
    return from.status().code() == StatusCode::kOutOfMemory ? PrefixMiss::kMemory : PrefixMiss::kUnknown;
  }
  const std::optional<PrefixMiss> refused = sequences_->Adopt(sequence, **from);
  static_cast<void>(CatchNoMemory("a kept text", [&] {
    const auto ids = std::span(track.text).first(static_cast<size_t>(kept.num_tokens));
    cache_->Keep(sequence.plan, ids, *from, kept.saved->snapshot.bytes);
    return Status::Ok();
  }));
  return refused;
}

int64_t PrefixReuse::Begin(RunningRequest& request, Sequence& sequence) {
  if (request.prefix == nullptr) return 0;
  if (cache_ == nullptr || sequence.NumTextTokens() > 0) {
    request.prefix.reset();
    return 0;
  }
  if (HasSelector(*sequence.plan)) {
    cache_->NoteMiss(PrefixMiss::kSelection, static_cast<int64_t>(request.prefix->text.size()));
    request.prefix.reset();
    return 0;
  }
  PrefixTrack& track = *request.prefix;
  const auto num_ids = static_cast<int64_t>(track.text.size());
  int64_t num_reused = 0;
  std::optional<PrefixMiss> why;
  const PrefixCache::Lookup found = cache_->Find(*sequence.plan, track.text);
  for (const PrefixCache::Kept& kept : found.kept) {
    const std::optional<PrefixMiss> refused = GoOnFrom(kept, track, sequence);
    if (!refused) {
      num_reused = kept.num_tokens;
      cache_->NoteHit(kept, num_ids);
      if (track.num_waits > 0 && num_reused >= track.awaited_tokens) cache_->NoteWaitHit();
      break;
    }
    // The longest would have been the best.
    if (!why) why = refused;
  }
  track.was_refused = why.has_value();
  if (num_reused == 0) cache_->NoteMiss(why.value_or(PrefixMiss::kUnknown), num_ids);

  std::vector<int64_t> marks;
  // Where it was refused the text branches off from what is of no use.
  if (!track.was_refused) marks.push_back(BranchPoint(found.common_tokens));
  if (num_ids - num_reused >= kLongTokens) {
    marks.push_back((num_ids - kMostOfQuestion) / kBeforeQuestion * kBeforeQuestion);
  }
  std::ranges::sort(marks);
  marks.push_back(track.last_mark);
  int64_t least = num_reused + kLeastKept;
  for (const int64_t mark : marks) {
    if (mark < least || mark > track.last_mark) continue;
    track.marks.push_back(mark);
    least = mark + kLeastKept;
  }
  return num_reused;
}

void PrefixReuse::KeepAtMark(RunningRequest& request) {
  if (cache_ == nullptr || request.prefix == nullptr || request.prefix->marks.empty()) return;
  const Sequence& sequence = *request.sequence();
  const PrefixTrack& track = *request.prefix;
  const int64_t num_tokens = sequence.cache->num_tokens();
  if (!std::ranges::binary_search(track.marks, num_tokens)) return;
  const auto ids = std::span(track.text).first(static_cast<size_t>(num_tokens));
  const int64_t bytes = sequence.cache->Bytes().total();
  static_cast<void>(CatchNoMemory("a kept text", [&] {
    if (!track.was_refused && !cache_->Wants(*sequence.plan, ids, bytes)) return Status::Ok();
    HW_ASSIGN_OR_RETURN(std::shared_ptr<Sequence> fork, sequences_->ForkToKeep(sequence));
    KeepIdsAlone(ids, *fork);
    cache_->Keep(sequence.plan, ids, std::move(fork), bytes);
    return Status::Ok();
  }));
}

void PrefixReuse::KeepText(RunningRequest& request) {
  if (cache_ == nullptr || request.prefix == nullptr || request.sequence() == nullptr) return;
  // One that was given is its owner's, who has it read a prompt.
  if (request.need().claim.sequence() != nullptr) return;
  const PrefixTrack& track = *request.prefix;
  Sequence& sequence = *request.sequence();
  const auto num_tokens = static_cast<size_t>(sequence.cache->num_tokens());
  if (num_tokens < static_cast<size_t>(kLeastKept) || num_tokens > track.text.size()) return;
  if (!sequence.failure.ok() || HasCut(*sequence.cache)) return;
  const auto ids = std::span(track.text).first(num_tokens);
  const int64_t bytes = sequence.cache->Bytes().total();
  static_cast<void>(CatchNoMemory("a kept text", [&] {
    if (!track.was_refused && !cache_->Wants(*sequence.plan, ids, bytes)) return Status::Ok();
    KeepIdsAlone(ids, sequence);
    sequences_->ReserveNoMore(sequence);
    cache_->Keep(sequence.plan, ids, request.TakeSequence(), bytes);
    return Status::Ok();
  }));
}

}  // namespace headwise
