// Runs the cache's part of a step, for one or several sequences: the one place that knows the order of things. Plan (in
// every cache), Begin, then for each layer append, attend, fold, select and age, then Finish. The decoder, the filling
// of caches and tests all go through here.
#ifndef HEADWISE_KV_CACHE_STEP_H_
#define HEADWISE_KV_CACHE_STEP_H_

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "kv/kv_cache.h"

namespace headwise {

// What one layer brings. T is the sum of the planned tokens of all sequences, in the order of Add.
struct CacheLayerArgs {
  ConstTensorView k;                     // [T, Hkv*D] f32, rotated once `ropes` are done
  ConstTensorView v;                     // [T, Hkv*D] f32
  std::span<const RopeArgs> ropes = {};  // before anything else, in order
  // As in AttentionArgs; all but k and v may be absent where nobody wants attention: q then is.
  ConstTensorView q;
  ConstTensorView q_sink;
  ConstTensorView q_ahead = {};  // as in SelectKvArgs
  TensorView out;
  TensorView lse;  // needed where a head of the layer compensates or selects by score
  ConstTensorView alibi_slopes;
  ConstTensorView sink_logits;
  int64_t num_q_heads = 0;
  float scale = 1.0f;
  float score_cap = 0.0f;  // as in AttentionArgs
  Compute compute = Compute::kF32;
};

// Thread-safety: none. Keeps its memory from step to step.
class CacheStep {
 public:
  // Both must outlive it. `pools` are those of every cache that is added.
  CacheStep(Backend& backend, const KvPools& pools) : backend_(&backend), pools_(pools) {}

  // Requires: a step of the cache is planned; Begin was not called since Finish.
  void Add(KvCache& cache);
  // Hands the step over: what has changed in the tables, and pages that forks share. `marks` as KvStep::marks, borrowed
  // until Finish.
  void Begin(std::span<const TokenMark> marks = {});
  // In order of layers.
  void RunLayer(int64_t layer_idx, const CacheLayerArgs& args);
  // The caches go on to the next step. What this one put on the queue need not be done, but where heads come to share
  // their budgets in it: then it is waited for, and where it fails the caches are lost.
  void Finish();
  // In place of all that was not done since the first Add: the caches of the step are lost. Requires: nothing of it is
  // on the queue any more.
  void Abandon();

  // Between Begin and Finish.
  const KvStep& step() const { return step_; }
  // [L] whether a head of the layer has a compensation token, and whether one selects by score: what RunLayer puts of
  // a step in which nothing ages follows from these and its arguments.
  const std::vector<char>& compensates() const { return compensates_; }
  const std::vector<char>& selects() const { return selects_; }

 private:
  void GatherAges();
  void GatherLayers();

  Backend* backend_;
  KvPools pools_;
  std::vector<KvCache*> caches_;
  KvStep step_;
  std::vector<StepRows> rows_;
  std::vector<PageSpace> spaces_;
  std::vector<PageMove> copies_, ages_;
  std::vector<int64_t> age_ends_;
  std::vector<char> compensates_, selects_;
  std::vector<uint32_t> changed_heads_, changed_selections_, changed_pages_;
  std::vector<int32_t> gained_;  // as KvStep::gained
};

}  // namespace headwise

#endif  // HEADWISE_KV_CACHE_STEP_H_
