// From logits to the next token: biases, penalties, temperature, top-k, top-p, min-p, in the order of Hugging Face's
// logits processors, then one draw. Deterministic: the same options, logits and text give the same token anywhere.
#ifndef HEADWISE_ENGINE_SAMPLER_H_
#define HEADWISE_ENGINE_SAMPLER_H_

#include <headwise/engine.h>
#include <headwise/status.h>

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "base/rng.h"
#include "engine/token_set.h"

namespace headwise {

// Values out of range: a negative or infinite temperature, top_p outside (0, 1], a bias of an id that is none of the
// vocabulary, and so on.
Status ValidateSampling(const SamplingOptions& options, int64_t vocab_size);

class Sampler {
 public:
  // Requires: ValidateSampling(options, V).ok().
  explicit Sampler(const SamplingOptions& options) : options_(options), rng_(options.seed) {}

  // logits [V] are scratch: their values afterwards mean nothing. `seen` has the ids of prompt and output so far; what
  // this sampler chose before is what counts as generated. NaN logits are never chosen while another is there.
  // Requires: V >= 1, every id seen below V.
  int32_t Sample(std::span<float> logits, const TokenSet& seen);
  // Whether Sample does nothing but to find the first of the highest logits.
  bool TakesHighest() const;

 private:
  struct Candidate {
    double weight;  // exp((logit - highest logit) / temperature)
    int32_t id;
  };

  int32_t Choose(std::span<const float> logits);
  void PenaliseSeen(std::span<float> logits, const TokenSet& seen) const;
  void PenaliseGenerated(std::span<float> logits) const;
  void CollectCandidates(std::span<const float> logits, float highest);
  void KeepTopP();
  int32_t Draw();

  SamplingOptions options_;
  Rng rng_;
  // How often each id was chosen; only where a penalty asks. In the order of the ids, so that nothing depends on a
  // hash.
  std::map<int32_t, int64_t> counts_;
  std::vector<Candidate> candidates_;  // kept between calls for its memory only
};

}  // namespace headwise

#endif  // HEADWISE_ENGINE_SAMPLER_H_
