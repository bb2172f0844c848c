// Sequences and the memory they are promised: what a text may need at worst, new ones, forks.
#ifndef HEADWISE_ENGINE_SEQUENCE_MAKER_H_
#define HEADWISE_ENGINE_SEQUENCE_MAKER_H_

#include <headwise/engine.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "engine/prefix_cache.h"
#include "engine/sequence.h"
#include "model/model_config.h"

namespace headwise {

// Whether a head can have its rule in a cache of these formats: bounds of keys and chosen tokens are not for q4.
bool TakesFormats(const HeadRule& rule, const KvFormats& formats);

// Thread-safety: the checks read nothing that changes and may run on any thread; what makes sequences or reserves
// belongs to the engine's.
class SequenceMaker {
 public:
  // Borrows the config. Of `options` it reads chunk_tokens and page_tokens.
  SequenceMaker(const ModelConfig& config, std::shared_ptr<KvMemory> memory, const EngineOptions& options);

  // Whether there could ever be such a sequence: lengths, plan, and bytes at worst against the whole limit. Steps of
  // up to `step_tokens`.
  Status Check(const SequenceOptions& options, int64_t step_tokens) const;
  // Whether it is this engine's and can go on.
  Status CheckOwn(const Sequence& sequence) const;
  // Whether it could ever take steps as long.
  Status CheckSteps(const Sequence& sequence, int64_t step_tokens) const;

  int64_t step_tokens() const { return step_tokens_; }  // the engine's
  int64_t token_bytes() const { return token_bytes_; }  // of one token in every head, as it is written

  // kOutOfMemory where the bytes are not there now.
  Result<std::shared_ptr<Sequence>> New(const SequenceOptions& options, int64_t step_tokens);
  Result<std::shared_ptr<Sequence>> Fork(const Sequence& sequence);
  Result<std::shared_ptr<Sequence>> Fork(const Sequence& sequence, const SequenceOptions& options);
  // Goes on from what `from` has read, as a fork of it would, on a sequence that has no text yet: its bytes are
  // reserved as they were. Where the rules or the positions of the two do not allow it nothing happens, and it says
  // which.
  std::optional<PrefixMiss> Adopt(Sequence& sequence, const Sequence& from);
  // What Adopt would say to such a sequence once `from` has read `num_tokens` in all, as far as that can be told
  // before.
  bool WouldAdopt(const SequenceOptions& options, const Sequence& from, int64_t num_tokens) const;
  const HeadPlan& PlanOf(const SequenceOptions& options) const { return *PlanOrDense(options.plan); }
  // ---- of requests that are let in by what they are likely to need (sequence_parking.cc) ----

  // As New, with bytes for a text of `num_tokens` alone; for a longer one it has to Grow. With a promise its pages find
  // room in host memory at any time; kOutOfMemory also where that cannot be promised.
  enum class HostRoom { kNotPromised, kPromised };
  Result<std::shared_ptr<Sequence>> NewLikely(const SequenceOptions& options, int64_t step_tokens, int64_t num_tokens,
                                              HostRoom host_room);
  int64_t BytesOfText(const SequenceOptions& options, int64_t step_tokens, int64_t num_tokens) const;
  // Bytes beyond those reserved that a text of `num_tokens` may come to hold.
  int64_t BytesToGrow(const Sequence& sequence, int64_t num_tokens) const;
  // Reserves them; kOutOfMemory where they are not there now.
  Status Grow(Sequence& sequence, int64_t num_tokens);
  // Whether there is room in host memory for a promise of what such a sequence may hold.
  bool HasHostRoom(const SequenceOptions& options, int64_t step_tokens) const;
  // What its cache holds, in host memory; kOutOfMemory where there is no room for it.
  Result<std::unique_ptr<KvSnapshot>> Save(const Sequence& sequence) const;
  // Gives back its pages and all that is reserved for it. What they held is in `saved`; null: has to be read again.
  void PutAside(Sequence& sequence, std::unique_ptr<KvSnapshot> saved) noexcept;
  // Of one that was put aside: bytes for a text of `num_tokens`, and what was saved, else a cache without tokens.
  // kOutOfMemory, and nothing changed, where that cannot be had now.
  Status Return(Sequence& sequence, int64_t num_tokens);

  // A fork that no request will run on: nothing is reserved for it but what it holds. Nobody gives way to it.
  Result<std::shared_ptr<Sequence>> ForkToKeep(const Sequence& sequence);
  // Such a sequence of a text that was saved under this plan, with its pages. kInvalidInput where it does not fit the
  // model, the plan or the cache's formats.
  Result<std::shared_ptr<Sequence>> FromSaved(const std::shared_ptr<const HeadPlan>& plan, const SavedText& saved);
  // Of one that no request will run on any more: gives back what was reserved beyond that.
  void ReserveNoMore(Sequence& sequence);
  // Whether so many bytes are not there because others have them: not because they would exceed the whole limit, nor
  // because the system refuses them. Of what others have `excepted_bytes` do not count.
  bool OthersHave(int64_t needed_bytes, int64_t excepted_bytes) const;
  // What New and AllowSteps would reserve.
  int64_t BytesOfNew(const SequenceOptions& options, int64_t step_tokens) const;
  int64_t BytesOfSteps(const Sequence& sequence, int64_t step_tokens) const;
  // Asked for so many bytes where a sequence finds no memory: whether it gave them back.
  void OnShort(std::function<bool(int64_t bytes)> on_short) { on_short_ = std::move(on_short); }
  // Reserves what longer steps need besides; kOutOfMemory where that is not there now.
  Status AllowSteps(Sequence& sequence, int64_t step_tokens);

 private:
  std::shared_ptr<const HeadPlan> PlanOrDense(const std::shared_ptr<const HeadPlan>& plan) const;
  // Bytes that a sequence under these rules may hold at worst, while others hold their own.
  int64_t WorstCaseBytes(const HeadPlan& plan, const SequenceLimits& limits, int64_t step_tokens,
                         int64_t most_tokens = 0) const;
  Status CheckPlan(const HeadPlan& plan) const;
  Status CheckLimit(int64_t needed_bytes) const;
  Status CheckSelectors(const HeadPlan& plan) const;
  // Requires: the memory is held.
  Status CheckAvailable(int64_t needed_bytes) const;
  // Has those give way who can. Requires: the memory is not held.
  void MakeRoom(int64_t needed_bytes);
  // For a sequence that is there already. Requires: the memory is not held.
  Status ReserveMore(Sequence& sequence, int64_t more_bytes);
  // A sequence with its bytes reserved, without its cache. Requires: checked, and the memory is held.
  Result<std::shared_ptr<Sequence>> Reserve(const SequenceOptions& options, int64_t step_tokens,
                                            int64_t most_tokens = 0);
  void MakeCache(Sequence& sequence) const;

  const ModelConfig* config_;
  std::shared_ptr<KvMemory> memory_;
  int64_t step_tokens_;
  int64_t page_tokens_;
  bool is_batch_invariant_;
  int64_t token_bytes_;
  std::shared_ptr<const HeadPlan> dense_plan_;
  LayerWindows windows_;
  std::function<bool(int64_t bytes)> on_short_;
};

}  // namespace headwise

#endif  // HEADWISE_ENGINE_SEQUENCE_MAKER_H_
