// Sequences that reserve what they are likely to need: how they grow, and how they give way and come back. And those
// that come back from a file.
#include <algorithm>
#include <utility>

#include "base/no_memory.h"
#include "engine/sequence_maker.h"
#include "kv/kv_snapshot_bytes.h"
#include "model/rope.h"

namespace headwise {

int64_t SequenceMaker::BytesOfText(const SequenceOptions& options, int64_t step_tokens, int64_t num_tokens) const {
  const SequenceLimits limits{.prompt_tokens = options.prompt_tokens, .max_tokens = options.max_tokens};
  return WorstCaseBytes(*PlanOrDense(options.plan), limits, step_tokens, num_tokens);
}

int64_t SequenceMaker::BytesToGrow(const Sequence& sequence, int64_t num_tokens) const {
  if (num_tokens <= sequence.reserved_tokens && sequence.cache != nullptr) return 0;
  const int64_t needed_bytes = WorstCaseBytes(*sequence.plan, sequence.limits, sequence.step_tokens, num_tokens);
  return std::max<int64_t>(0, needed_bytes - sequence.reserved_bytes());
}

bool SequenceMaker::HasHostRoom(const SequenceOptions& options, int64_t step_tokens) const {
  const int64_t needed_bytes = BytesOfNew(options, step_tokens);
  const KvMemory::Hold hold(*memory_);
  return needed_bytes <= memory_->host_limit_bytes - memory_->host_bytes;
}

Result<std::shared_ptr<Sequence>> SequenceMaker::NewLikely(const SequenceOptions& options, int64_t step_tokens,
                                                           int64_t num_tokens, HostRoom host_room) {
  HW_RETURN_IF_ERROR(Check(options, step_tokens));
  MakeRoom(BytesOfText(options, step_tokens, num_tokens));
  const KvMemory::Hold hold(*memory_);
  HW_ASSIGN_OR_RETURN(std::shared_ptr<Sequence> sequence, Reserve(options, step_tokens, num_tokens));
  sequence->rope_frequencies = RopeFrequencies(*config_, options.prompt_tokens, options.max_tokens);
  MakeCache(*sequence);
  if (host_room == HostRoom::kNotPromised) return sequence;
  const int64_t host_bytes = BytesOfNew(options, step_tokens);
  if (host_bytes > memory_->host_limit_bytes - memory_->host_bytes) {
    return Status::OutOfMemory("host memory for KV pages is promised to others");
  }
  sequence->has_host_promise = true;
  sequence->ReserveHost(host_bytes);
  return sequence;
}

Status SequenceMaker::Grow(Sequence& sequence, int64_t num_tokens) {
  if (num_tokens <= sequence.reserved_tokens) return Status::Ok();
  HW_RETURN_IF_ERROR(ReserveMore(sequence, BytesToGrow(sequence, num_tokens)));
  sequence.reserved_tokens = num_tokens;
  return Status::Ok();
}

Result<std::unique_ptr<KvSnapshot>> SequenceMaker::Save(const Sequence& sequence) const {
  HW_RETURN_IF_ERROR(CheckOwn(sequence));
  const int64_t bytes = sequence.cache->Bytes().total();
  const KvMemory::Hold hold(*memory_);
  if (!sequence.has_host_promise && bytes > memory_->host_limit_bytes - memory_->host_bytes) {
    return Status::OutOfMemory("host memory for KV pages is full");
  }
  return sequence.cache->Save();
}

void SequenceMaker::PutAside(Sequence& sequence, std::unique_ptr<KvSnapshot> saved) noexcept {
  const KvMemory::Hold hold(*memory_);
  sequence.cache.reset();
  sequence.ReserveLess(sequence.reserved_bytes());
  sequence.reserved_tokens = 0;
  if (saved != nullptr && !sequence.has_host_promise) sequence.ReserveHost(saved->bytes);
  sequence.saved = std::move(saved);
}

Status SequenceMaker::Return(Sequence& sequence, int64_t num_tokens) {
  const int64_t needed_bytes = BytesToGrow(sequence, num_tokens);
  MakeRoom(needed_bytes);
  const KvMemory::Hold hold(*memory_);
  HW_RETURN_IF_ERROR(CheckAvailable(needed_bytes));
  if (sequence.saved != nullptr) {
    HW_ASSIGN_OR_RETURN(sequence.cache, KvCache::Restore(memory_->pools(), *sequence.saved));
    if (!sequence.has_host_promise) sequence.ReserveHost(-sequence.saved->bytes);
    sequence.saved.reset();
  } else {
    MakeCache(sequence);
  }
  sequence.ReserveMore(needed_bytes);
  sequence.reserved_tokens = num_tokens;
  return Status::Ok();
}

Result<std::shared_ptr<Sequence>> SequenceMaker::FromSaved(const std::shared_ptr<const HeadPlan>& plan,
                                                           const SavedText& saved) {
  const KvSnapshot& snapshot = saved.snapshot;
  HW_RETURN_IF_ERROR(
      CheckSnapshot(memory_->pools(), config_->num_kv_heads, ResolveRules(*plan, saved.limits, windows_), snapshot));
  // Others that are kept give way to it: it is needed now.
  MakeRoom(snapshot.bytes);
  return CatchNoMemory("a text from a file", [&]() -> Result<std::shared_ptr<Sequence>> {
    TokenSet seen;
    seen.Add(saved.ids);
    const KvMemory::Hold hold(*memory_);
    HW_RETURN_IF_ERROR(CheckAvailable(snapshot.bytes));
    auto sequence = std::make_shared<Sequence>(memory_, snapshot.bytes);
    HW_ASSIGN_OR_RETURN(sequence->cache, KvCache::Restore(memory_->pools(), snapshot));
    sequence->plan = plan;
    sequence->limits = saved.limits;
    sequence->rope_frequencies = saved.rope_frequencies;
    sequence->seen = std::move(seen);
    return sequence;
  });
}

}  // namespace headwise
