// Log-probabilities of a row of logits.
#ifndef HEADWISE_ENGINE_TOKEN_LOGPROBS_H_
#define HEADWISE_ENGINE_TOKEN_LOGPROBS_H_

#include <headwise/engine.h>

#include <cstdint>
#include <span>

namespace headwise {

// The log-softmax of logits [V] at `chosen`, and where it is highest: at `num_top` ids, or at all where there are
// fewer. Sums are taken in double, in the order of the ids. Requires: finite logits, 0 <= chosen < V, num_top >= 0.
TokenLogprobs LogprobsOf(std::span<const float> logits, int32_t chosen, int64_t num_top);

}  // namespace headwise

#endif  // HEADWISE_ENGINE_TOKEN_LOGPROBS_H_
