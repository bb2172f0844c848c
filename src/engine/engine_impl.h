// The engine's inside: requests in, one ragged step at a time, tokens out.
#ifndef HEADWISE_ENGINE_ENGINE_IMPL_H_
#define HEADWISE_ENGINE_ENGINE_IMPL_H_

#include <headwise/engine.h>
#include <headwise/tokenizer.h>

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "engine/request_state.h"
#include "engine/sequence.h"
#include "model/decoder.h"
#include "model/model.h"

namespace headwise {

class EngineImpl {
 public:
  struct Parts {
    EngineOptions options;
    std::shared_ptr<KvMemory> memory;
    std::unique_ptr<Model> model;
    std::unique_ptr<Tokenizer> tokenizer;  // null where the model has none
    Compute compute = Compute::kF32;
  };
  explicit EngineImpl(Parts parts);

  const Model& model() const { return *parts_.model; }
  const Parts& parts() const { return parts_; }

  Result<std::shared_ptr<Sequence>> NewSequence(const SequenceOptions& options);
  Result<std::shared_ptr<Sequence>> Fork(const Sequence& sequence);
  Result<std::shared_ptr<Sequence>> Fork(const Sequence& sequence, const SequenceOptions& options);
  Result<RequestId> Submit(Request request);
  Result<bool> Step();
  void Cancel(RequestId id);
  const RequestResult& Peek(RequestId id) const;
  RequestResult Take(RequestId id);
  Status RunForced(const ForcedRun& run);

 private:
  // Bytes that a sequence under these rules may hold at worst, while others hold their own.
  int64_t WorstCaseBytes(const HeadPlan& plan, const SequenceLimits& limits) const;
  Status CheckMemory(int64_t needed_bytes) const;
  // Room for a sequence under these options, without its cache.
  Result<std::shared_ptr<Sequence>> Reserve(const SequenceOptions& options) const;
  Status CheckPlan(const HeadPlan& plan) const;
  Status CheckIds(std::span<const int32_t> ids, const char* what) const;
  std::shared_ptr<const HeadPlan> PlanOrDense(const std::shared_ptr<const HeadPlan>& plan) const;

  void TakeCancellations();
  Status Admit();
  // Tokens that each running request reads in this step; ids borrow from the requests.
  Result<std::vector<StepSequence>> PlanStep(std::vector<RequestState*>& members);
  void AfterStep(RequestState& state, int64_t num_read, std::span<float> logits);
  void TakeToken(RequestState& state, int32_t id);
  void Finish(RequestState& state, FinishReason reason);
  void UpdateMetrics(RequestState& state);

  Parts parts_;
  std::shared_ptr<const HeadPlan> dense_plan_;
  LayerWindows windows_;
  Decoder decoder_;
  StepOutput output_;
  RequestId next_id_ = 1;
  std::map<RequestId, std::unique_ptr<RequestState>> requests_;
  std::deque<RequestState*> waiting_;  // for memory, first come first served
  std::vector<RequestState*> active_;  // in order of admission
  std::mutex cancel_mutex_;
  std::set<RequestId> cancelled_;  // guarded by cancel_mutex_
};

// What products are computed in. auto takes what the machine does fastest among what loses little: int8 where weights
// are of block formats, bf16 where they have 16 bits (bf16 loses nothing of theirs; of f16 three bits, as of
// activations).
Result<Compute> ResolveCompute(const std::string& name, const Model& model, const Backend& backend);

// An engine over a model that is already made: what Engine::Create does after loading, for tests and benchmarks with
// random weights. `parts.memory` needs its backend; pools and compute are filled in here.
Result<std::unique_ptr<Engine>> MakeEngine(EngineImpl::Parts parts);

}  // namespace headwise

#endif  // HEADWISE_ENGINE_ENGINE_IMPL_H_
