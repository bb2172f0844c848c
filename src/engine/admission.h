// The door of the engine: what a request must satisfy, and who of those that wait comes in.
#ifndef HEADWISE_ENGINE_ADMISSION_H_
#define HEADWISE_ENGINE_ADMISSION_H_

#include <headwise/engine.h>

#include <deque>
#include <memory>
#include <vector>

#include "engine/output_estimate.h"
#include "engine/prefix_reuse.h"
#include "engine/running_request.h"
#include "engine/sequence_maker.h"

namespace headwise {

// What is wrong with a request's numbers for any engine of such a vocabulary.
Status ValidateRequest(const Request& request, int64_t vocab_size);

// Thread-safety: Check may run on any thread, the rest belongs to the engine's.
class Admission {
 public:
  // Borrows them. Of `options` it reads kv_admission, kv_limit_bytes and page_tokens.
  Admission(const ModelConfig& config, SequenceMaker& sequences, PrefixReuse& prefixes, const EngineOptions& options);

  // All that can be wrong with a request, and what it is to run on: its sequence is claimed for it from here on.
  Result<SequenceNeed> Check(const Request& request) const;
  Result<SequenceNeed> Check(const ForcedRun& run) const;

  // Whether a request could be read again once it has given way: it needs its whole text then.
  bool MayReadAgain(const Request& request) const;

  void Add(std::shared_ptr<RunningRequest> request) { waiting_.push_back(std::move(request)); }
  // One that has given way.
  void AddAgain(const std::shared_ptr<RunningRequest>& request) { waiting_.push_back(request); }
  // The length of an answer, by which those to come are let in.
  void LearnAnswer(int64_t num_tokens) { answers_.Learn(num_tokens); }
  // Whether somebody who is neither waiting nor has these `own_bytes` may let go of memory while nothing runs.
  bool OthersMayGive(int64_t own_bytes) const;
  void Remove(const RunningRequest& request);
  size_t num_waiting() const { return waiting_.size(); }

  // Sequences that no request runs on are let go by others, at some time: who finds no memory waits for that too.
  void WaitForKept() { waits_for_kept_ = true; }

  // Moves to `active`, which is in order of GoesBefore, who can have memory now. For memory it is turn by turn
  // (OrderOf), while others have some that may come back: those that run, and with WaitForKept whoever holds a
  // sequence, but for those that still wait when all had their turn. Where nobody does, the first who cannot have it is
  // refused: its failure is set, and it waits to be finished. Whoever needs none does not wait for any. Who begins with
  // what one of `active` is reading waits for that (PrefixReuse::ShouldWait), before it has memory. `is_short`: those
  // that run have too little as it is, and nobody else gets any. `step`: the engine's number of it, by which turns age.
  void Admit(std::vector<std::shared_ptr<RunningRequest>>& active, bool is_short, int64_t step);
  // One of those that wait and are refused; null where there is none.
  std::shared_ptr<RunningRequest> FindRefused() const;

 private:
  // `num_more` tokens on a sequence that is given, in steps of up to `step_tokens`.
  Result<SequenceNeed> NeedOf(const std::shared_ptr<Sequence>& sequence, const std::shared_ptr<const HeadPlan>& plan,
                              int64_t num_more, int64_t step_tokens) const;
  // The same on a new one.
  Result<SequenceNeed> NeedOf(const SequenceOptions& options, int64_t step_tokens) const;
  // Those that wait, in order of their turns at this step.
  void Sort(int64_t step);
  // The request's sequence, with all the memory that it may come to need, or is likely to.
  Result<std::shared_ptr<Sequence>> Provide(RunningRequest& request) const;
  Result<std::shared_ptr<Sequence>> ProvideNew(RunningRequest& request) const;
  Status Begin(RunningRequest& request) const;
  bool NeedsMemory(RunningRequest& request) const;
  int64_t NeededBytes(RunningRequest& request) const;
  // Whether a new sequence for it need not have its worst case.
  bool IsLikely(RunningRequest& request) const;
  // The length of its text for which memory is reserved when it is let in.
  int64_t LikelyTokens(RunningRequest& request) const;

  // Of those that wait and have memory of their own, but not enough.
  int64_t BytesOfWaiting() const;
  // Whether what a request did not find may still come back while nothing runs.
  bool MayComeBack(RunningRequest& request) const;

  const ModelConfig* config_;
  SequenceMaker* sequences_;
  PrefixReuse* prefixes_;
  bool is_likely_;
  int64_t least_more_;  // tokens of an answer that memory is reserved for in any case
  OutputEstimate answers_;
  bool waits_for_kept_ = false;
  std::deque<std::shared_ptr<RunningRequest>> waiting_;
};

}  // namespace headwise

#endif  // HEADWISE_ENGINE_ADMISSION_H_
