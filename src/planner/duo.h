// DuoAttention's optimisation [duo §2.2]: one gate per KV head blends full attention with a stream; gates learn to be
// small wherever the final hidden states on the labelled tokens stay what they were.
//
// This is the training itself; samples come from the caller (data/token_samples.h), the plan is made in
// duo_method.cc.
#ifndef HEADWISE_PLANNER_DUO_H_
#define HEADWISE_PLANNER_DUO_H_

#include <headwise/status.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/json.h"
#include "data/token_samples.h"
#include "model/model.h"
#include "planner/adamw.h"

namespace headwise {

enum class GateSharing {
  kPerHead,
  kPerLayer,  // one gate for all heads of a layer [zigzag §2.3]
};

struct DuoOptions {
  int64_t num_steps = 2000;                          // planned; the schedule follows them
  int64_t samples_per_step = 1;                      // their gradients are averaged
  double learning_rate = 0.02;                       // after the first fifth, until the last
  double lowest_learning_rate = 0.002;               // at both ends
  double regulariser = 0.05;                         // lambda, times the mean of the gates [duo §2.2 eq.3]
  HeadRule train_rule = HeadRule::Stream(128, 256);  // what a gate of 0 means while identifying
  GateSharing sharing = GateSharing::kPerHead;
  enum class EarlyStop { kNo, kYes } early_stop = EarlyStop::kYes;  // decay begins once the large gates are settled
  int num_threads = 1;
  int64_t max_tokens = 0;    // of the longest sample
  int64_t memory_bytes = 0;  // for activations; 0: no limit
  Compute compute = Compute::kF32;
};

// Everything that a run needs to go on: written to a checkpoint and read back, it continues bit for bit.
struct DuoState {
  int64_t num_steps_done = 0;
  int64_t decay_start = -1;      // step at which the learning rate begins to fall; -1: as planned
  int64_t num_stable_steps = 0;  // steps since the set of large gates last changed
  std::vector<double> gates;     // [L * Hkv]
  AdamW::State optimiser;
  std::vector<double> losses;  // distillation loss of every step
  double seconds = 0;

  Json ToJson() const;
  // Errors name `origin` and the field.
  static Result<DuoState> FromJson(const Json& json, const std::string& origin);
};

// The sample of one step; must depend on its arguments alone, or a resumed run would differ.
using SampleMaker = std::function<Result<TokenSample>(int64_t step, int64_t sample_idx)>;
// After every step; an error ends the run with that error.
using DuoProgress = std::function<Status(const DuoState& state, int64_t num_planned_steps)>;

// Trains from `state` (empty gates: from the start, all 1). A loss or gradient that is not finite ends the run with an
// error that says at which step; `state` then is the last good one.
Status TrainGates(const Model& model, const DuoOptions& options, const SampleMaker& make_sample,
                  const DuoProgress& on_step, DuoState& state);

// The learning rate of step `step` (from 0) of `options.num_steps`, for a decay that begins at `decay_start`.
double DuoLearningRate(const DuoOptions& options, int64_t step, int64_t decay_start);

}  // namespace headwise

#endif  // HEADWISE_PLANNER_DUO_H_
