// Requests that were let in by what they were likely to need: where a text outgrows that, and the limit of KV bytes
// allows no more, the youngest give way to the oldest.
#ifndef HEADWISE_ENGINE_PREEMPTION_H_
#define HEADWISE_ENGINE_PREEMPTION_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/admission.h"
#include "engine/running_request.h"
#include "engine/sequence_maker.h"

namespace headwise {

// Thread-safety: the engine's thread, between steps, with none on a device's queue and without the memory held.
class Preemption {
 public:
  using Requests = std::vector<std::shared_ptr<RunningRequest>>;

  // Borrows them. Of `options` it reads kv_admission, kv_limit_bytes and page_tokens.
  Preemption(SequenceMaker& sequences, Admission& admission, const EngineOptions& options);

  // Whether what is reserved for a request covers the tokens that it has to read.
  static bool Covers(const RunningRequest& request);
  // From the oldest of `active` to the youngest: who outgrows its reserve gets more. Where there is none, kept texts
  // give way (SequenceMaker::OnShort), then younger requests: to host memory, or to be read again. They leave `active`
  // and wait in `admission`. Who finds nobody keeps its memory and takes no part in steps until there is more. Nothing
  // is lost where memory is refused on the way. False where somebody remains without.
  bool Provide(Requests& active) noexcept;
  // Where nobody of `active` can go on, and nobody else has memory that may come back: sets the failure of the youngest
  // that cannot.
  void EndHopeless(const Requests& active) noexcept;

  int64_t num_preemptions() const { return num_preemptions_; }

 private:
  bool ProvideAll(Requests& active);
  // What it has to read, and some more where that is there.
  Status Grow(RunningRequest& request);
  // The youngest of those after `first` gives way. False where nobody can.
  bool TakeFromYoungest(const Requests& ranked, size_t first, Requests& active);
  Status GiveWay(const std::shared_ptr<RunningRequest>& request, Requests& active);

  SequenceMaker* sequences_;
  Admission* admission_;
  bool is_likely_;
  int64_t quantum_tokens_;
  int64_t num_preemptions_ = 0;
};

}  // namespace headwise

#endif  // HEADWISE_ENGINE_PREEMPTION_H_
