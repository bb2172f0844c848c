// The door of the engine: what a request must satisfy, and who of those that wait comes in.
#ifndef HEADWISE_ENGINE_ADMISSION_H_
#define HEADWISE_ENGINE_ADMISSION_H_

#include <headwise/engine.h>

#include <deque>
#include <memory>
#include <vector>

#include "engine/prefix_reuse.h"
#include "engine/running_request.h"
#include "engine/sequence_maker.h"

namespace headwise {

// Thread-safety: Check may run on any thread, the rest belongs to the engine's.
class Admission {
 public:
  // Borrows them.
  Admission(const ModelConfig& config, SequenceMaker& sequences, PrefixReuse& prefixes)
      : config_(&config), sequences_(&sequences), prefixes_(&prefixes) {}

  // All that can be wrong with a request, and what it is to run on: its sequence is claimed for it from here on.
  Result<SequenceNeed> Check(const Request& request) const;
  Result<SequenceNeed> Check(const ForcedRun& run) const;

  void Add(std::shared_ptr<RunningRequest> request) { waiting_.push_back(std::move(request)); }
  void Remove(const RunningRequest& request);
  size_t num_waiting() const { return waiting_.size(); }

  // Sequences that no request runs on are let go by others, at some time: who finds no memory waits for that too.
  void WaitForKept() { waits_for_kept_ = true; }

  // Moves to the end of `active` who can have memory now. For memory it is first come, first served, while others have
  // some that may come back: those that run, and with WaitForKept whoever holds a sequence, but for those that wait
  // themselves. Where nobody does, who cannot have it is refused: its failure is set, and it waits to be finished.
  // Whoever needs none does not wait.
  void Admit(std::vector<std::shared_ptr<RunningRequest>>& active);
  // One of those that wait and are refused; null where there is none.
  std::shared_ptr<RunningRequest> FindRefused() const;

 private:
  Status CheckIds(std::span<const int32_t> ids, const char* what) const;
  // `num_more` tokens on a sequence that is given, in steps of up to `step_tokens`.
  Result<SequenceNeed> NeedOf(const std::shared_ptr<Sequence>& sequence, const std::shared_ptr<const HeadPlan>& plan,
                              int64_t num_more, int64_t step_tokens) const;
  // The same on a new one.
  Result<SequenceNeed> NeedOf(const SequenceOptions& options, int64_t step_tokens) const;
  // The request's sequence, with all the memory that it may come to need.
  Result<std::shared_ptr<Sequence>> Provide(RunningRequest& request) const;

  // Whether what a request did not find may still come back while nothing runs.
  bool MayComeBack(RunningRequest& request) const;

  const ModelConfig* config_;
  SequenceMaker* sequences_;
  PrefixReuse* prefixes_;
  bool waits_for_kept_ = false;
  std::deque<std::shared_ptr<RunningRequest>> waiting_;  // in order of arrival
};

}  // namespace headwise

#endif  // HEADWISE_ENGINE_ADMISSION_H_
