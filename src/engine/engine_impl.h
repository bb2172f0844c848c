// The engine's inside: requests in, one ragged step at a time, tokens out. It only joins its parts: what is checked and
// who may come in is Admission's, what a sequence needs SequenceMaker's, who reads how much ShareStep's, and what a
// request does with its rows its own (Generation, ForcedReading).
#ifndef HEADWISE_ENGINE_ENGINE_IMPL_H_
#define HEADWISE_ENGINE_ENGINE_IMPL_H_

#include <headwise/engine.h>
#include <headwise/tokenizer.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "engine/admission.h"
#include "engine/cancellations.h"
#include "engine/preemption.h"
#include "engine/prefix_reuse.h"
#include "engine/running_request.h"
#include "engine/sequence.h"
#include "engine/sequence_maker.h"
#include "engine/step_pace.h"
#include "model/decoder.h"
#include "model/model.h"

namespace headwise {

// What memory was for, in words of an error (CatchNoMemory).
inline constexpr const char* kNewRequest = "another request";
inline constexpr const char* kNewSequence = "another sequence";

// Thread-safety: one thread, but for Prepare, which may be called from any.
class EngineImpl {
 public:
  struct Parts {
    EngineOptions options;
    std::shared_ptr<KvMemory> memory;
    std::unique_ptr<Model> model;
    std::unique_ptr<Tokenizer> tokenizer;  // null where the model has none
    Compute compute = Compute::kF32;
    std::function<double()> seconds = {};  // since any time; empty: of a clock that runs steadily
  };
  explicit EngineImpl(Parts parts);

  const Model& model() const { return *parts_.model; }
  const Parts& parts() const { return parts_; }
  SequenceMaker& sequences() { return sequences_; }
  PrefixReuse& prefixes() { return prefixes_; }
  // Admission::WaitForKept.
  void WaitForKept() { admission_.WaitForKept(); }

  // A request that was checked, ready for Accept. Dropping it instead gives its sequence back.
  Result<std::shared_ptr<RunningRequest>> Prepare(Request request, std::shared_ptr<RequestObserver> observer = nullptr);
  Result<std::shared_ptr<RunningRequest>> Prepare(const ForcedRun& run,
                                                  std::shared_ptr<RequestObserver> observer = nullptr);
  // kOutOfMemory where there is none to note it down: nothing happened.
  Result<RequestId> Accept(std::shared_ptr<RunningRequest> request);
  // Ends a request that was not accepted.
  void Refuse(std::shared_ptr<RunningRequest> request, Status status);
  // What is asked there takes effect at the next step.
  const std::shared_ptr<Cancellations>& cancellations() const { return cancellations_; }
  // At once.
  void CancelAll();

  // False where nobody could read anything. Memory that cannot be had ends the requests that wanted it, and the engine
  // goes on; where nobody knows whose it was, those that run. Requires: not is_stepping().
  bool Step();
  // Inside a step, which is where callbacks run.
  bool is_stepping() const { return is_stepping_; }
  size_t num_running() const { return active_.size(); }
  size_t num_waiting() const { return admission_.num_waiting(); }
  int64_t num_finished() const { return num_finished_; }
  int64_t num_preemptions() const { return preemption_.num_preemptions(); }

  // Null where the id is unknown.
  const RequestResult* Peek(RequestId id) const;
  // Ends it first if it is running.
  Result<RequestResult> Take(RequestId id);

 private:
  // One request's share of a step.
  struct Member {
    std::shared_ptr<RunningRequest> request;
    int64_t num_new = 0;
    std::vector<int32_t> wanted;
    std::optional<int32_t> follows = std::nullopt;  // StepSequence::follows
    bool is_planned = false;
  };

  std::shared_ptr<RunningRequest> WithTicket(std::shared_ptr<RunningRequest> request) const;
  void TakeCancellations();
  // Tokens that each of active_ reads next.
  std::vector<int64_t> ShareNextStep() const;
  // ShareStep, where `order` says whose turn is first; both of active_.
  static std::vector<int64_t> ShareInTurn(const std::vector<StepWish>& wishes, const std::vector<size_t>& order,
                                          int64_t budget);
  // Of prompts, for a step that grants these wishes: less than a chunk where others would wait too long for its end.
  int64_t PrefillBudget(const std::vector<StepWish>& wishes, const std::vector<size_t>& order) const;
  // What a step has to do that grants `shares` to active_.
  StepWork WorkOf(const std::vector<int64_t>& shares) const;
  double Seconds() const;
  // False where nobody takes part.
  bool RunStep();
  std::vector<Member> MembersOf(const std::vector<int64_t>& shares) const;
  // Those that cannot have pages for the step fail, and are members no more. Requires: the memory is held.
  void PlanCaches(std::vector<Member>& members) noexcept;
  // Requires: the caches are planned, and the memory is held since. After an error they are lost.
  Status Launch(const std::vector<Member>& members) noexcept;
  // The step behind the one that `members` have on the queue, before anybody knows what that one brings; where all who
  // would take part in it need no more than a token that the device has drawn. Whatever speaks against it is left to
  // the next step. Requires: the memory is held.
  std::vector<Member> LaunchAhead(const std::vector<Member>& members) noexcept;
  // Empty where somebody could not take part.
  std::vector<Member> MembersAhead(const std::vector<Member>& members) const;
  void NoteRead(const std::vector<Member>& members) noexcept;
  // A step that was lost: nobody knows how far it came.
  static void Fail(const std::vector<Member>& members, const Status& status) noexcept;
  void GiveRows(const std::vector<Member>& members) noexcept;
  // One member's.
  Status GiveRowsTo(const Member& member, const RequestRows& rows, Verdict& verdict);
  // An error where numbers of a request's rows are not finite, that says what of the model is to blame.
  Status CheckNumbers(RunningRequest& request, const RequestRows& rows);
  std::string BlameForNonFinite() const;
  void Finish(std::shared_ptr<RunningRequest> request, Verdict verdict);
  // Ends those whose failure is set. True where there were any.
  bool FinishFailed();

  Parts parts_;
  SequenceMaker sequences_;
  PrefixReuse prefixes_;
  Admission admission_;
  Preemption preemption_;
  Decoder decoder_;
  StepOutput output_;
  std::string blame_;  // for numbers that are not finite; empty until there were some
  std::atomic<RequestId> next_id_ = 1;
  int64_t num_finished_ = 0;
  int64_t num_steps_ = 0;
  std::shared_ptr<ClientShares> shares_ = std::make_shared<ClientShares>();
  bool is_stepping_ = false;
  StepPredictor predictor_;               // where steps are sized by time
  std::optional<StepWork> work_of_step_;  // of the step under way, where its time says what such work takes
  std::map<RequestId, std::shared_ptr<RunningRequest>> requests_;
  std::vector<std::shared_ptr<RunningRequest>> active_;  // in order of GoesBefore
  std::vector<Member> ahead_;                            // of the step that was launched ahead
  std::shared_ptr<Cancellations> cancellations_ = std::make_shared<Cancellations>();
};

// What products are computed in. auto takes what the machine does fastest among what loses little: int8 where weights
// are of block formats, bf16 where they have 16 bits (bf16 loses nothing of theirs; of f16 three bits, as of
// activations).
Result<Compute> ResolveCompute(const std::string& name, const Model& model, const Backend& backend);

// What is wrong with them whatever the model.
Status CheckOptions(const EngineOptions& options);

// Engine::Create over a backend that is already made.
Result<std::unique_ptr<Engine>> CreateEngine(const EngineOptions& options, std::unique_ptr<Backend> backend);

// An engine over a model that is already made: what Engine::Create does after loading, for tests and benchmarks with
// random weights. `parts.memory` needs its backend; pools and compute are filled in here.
Result<std::unique_ptr<Engine>> MakeEngine(EngineImpl::Parts parts);

}  // namespace headwise

#endif  // HEADWISE_ENGINE_ENGINE_IMPL_H_
