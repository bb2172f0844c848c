// From logits to the next token: repetition penalty, temperature, top-k, top-p, min-p, in the order of Hugging Face's
// logits processors, then one draw. Deterministic: the same options, logits and text give the same token anywhere.
#ifndef HEADWISE_ENGINE_SAMPLER_H_
#define HEADWISE_ENGINE_SAMPLER_H_

#include <headwise/engine.h>
#include <headwise/status.h>

#include <cstdint>
#include <span>
#include <vector>

#include "base/rng.h"
#include "engine/token_set.h"

namespace headwise {

// Values out of range: a negative or infinite temperature, top_p outside (0, 1], and so on.
Status ValidateSampling(const SamplingOptions& options);

class Sampler {
 public:
  // Requires: ValidateSampling(options).ok().
  explicit Sampler(const SamplingOptions& options) : options_(options), rng_(options.seed) {}

  // logits [V] are scratch: their values afterwards mean nothing. `seen` has the ids of prompt and output so far. NaN
  // logits are never chosen while another is there. Requires: V >= 1, every id seen below V.
  int32_t Sample(std::span<float> logits, const TokenSet& seen);

 private:
  struct Candidate {
    double weight;  // exp((logit - highest logit) / temperature)
    int32_t id;
  };

  void Penalise(std::span<float> logits, const TokenSet& seen) const;
  void CollectCandidates(std::span<const float> logits, float highest);
  void KeepTopP();
  int32_t Draw();

  SamplingOptions options_;
  Rng rng_;
  std::vector<Candidate> candidates_;  // kept between calls for its memory only
};

}  // namespace headwise

#endif  // HEADWISE_ENGINE_SAMPLER_H_
