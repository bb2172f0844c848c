// From logits to the next token: repetition penalty, temperature, top-k, top-p, min-p, in the order of Hugging Face's
// logits processors, then one draw. Deterministic: the same options, logits and history give the same token anywhere.
#ifndef HEADWISE_ENGINE_SAMPLER_H_
#define HEADWISE_ENGINE_SAMPLER_H_

#include <headwise/engine.h>
#include <headwise/status.h>

#include <cstdint>
#include <span>
#include <vector>

#include "base/rng.h"

namespace headwise {

// Values out of range: a negative or infinite temperature, top_p outside (0, 1], and so on.
Status ValidateSampling(const SamplingOptions& options);

class Sampler {
 public:
  // Requires: ValidateSampling(options).ok().
  explicit Sampler(const SamplingOptions& options) : options_(options), rng_(options.seed) {}

  // logits [V] are scratch: their values afterwards mean nothing. `history`, prompt and output so far, must begin with
  // what the call before was given, so that a long text costs nothing to penalise. NaN logits are never chosen while
  // another is there. Requires: V >= 1, every id of the history in [0, V).
  int32_t Sample(std::span<float> logits, std::span<const int32_t> history);

 private:
  struct Candidate {
    double weight;  // exp((logit - highest logit) / temperature)
    int32_t id;
  };

  void Penalise(std::span<float> logits, std::span<const int32_t> history);
  void CollectCandidates(std::span<const float> logits, float highest);
  void KeepTopP();
  int32_t Draw();

  SamplingOptions options_;
  Rng rng_;
  std::vector<bool> is_seen_;      // [V] ids of the history
  std::vector<int32_t> seen_ids_;  // the same as a list
  size_t num_history_read_ = 0;
  std::vector<Candidate> candidates_;  // kept between calls for its memory only
};

}  // namespace headwise

#endif  // HEADWISE_ENGINE_SAMPLER_H_
