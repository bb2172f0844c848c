// From logits to the next token: biases, penalties, temperature, top-k, top-p, min-p, in the order of Hugging Face's
// logits processors, then one draw (tensor/token_draw.h). Deterministic: the same options, logits and text give the
// same token anywhere.
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
#include "tensor/token_draw.h"

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
  // Requires: 1 <= V <= kMaxDrawIds, every id seen below V.
  int32_t Sample(std::span<float> logits, const TokenSet& seen);

  // The same in two halves, for a draw that is made elsewhere: what to draw by, valid until the next call, and what was
  // drawn. Where nothing FollowsText(), several may be asked for ahead.
  TokenDraw Next(const TokenSet& seen);
  void Take(int32_t id);
  // Whether a draw depends on the ones before it, or on what the text has.
  bool FollowsText() const { return options_.repetition_penalty != 1 || Counts(); }

 private:
  bool Counts() const { return options_.frequency_penalty != 0 || options_.presence_penalty != 0; }
  // The edit of `id`, made where there was none.
  LogitEdit& EditOf(int32_t id);
  void FillEdits(const TokenSet& seen);

  SamplingOptions options_;
  Rng rng_;
  // How often each id was chosen; only where a penalty asks. In the order of the ids, so that nothing depends on a
  // hash.
  std::map<int32_t, int64_t> counts_;
  // Kept between calls for their memory.
  std::vector<LogitEdit> edits_;
  std::vector<int32_t> edit_of_;  // by id: its place in edits_, or none; only where a penalty asks
};

}  // namespace headwise

#endif  // HEADWISE_ENGINE_SAMPLER_H_
