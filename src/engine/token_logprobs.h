// Log-probabilities of a row of logits.
#ifndef HEADWISE_ENGINE_TOKEN_LOGPROBS_H_
#define HEADWISE_ENGINE_TOKEN_LOGPROBS_H_

#include <headwise/engine.h>

#include <cstdint>
#include <span>

namespace headwise {

// The log-softmax of logits [V] at `chosen`, and where it is highest: at `num_top` ids, or at all where there are
// fewer. Requires: finite logits, 0 <= chosen < V, num_top >= 0.
TokenLogprobs LogprobsOf(std::span<const float> logits, int32_t chosen, int64_t num_top);
// Of numbers that are there already: logprobs [1 + N], the chosen id's and the top ids' [N] (tensor/logprobs.h).
TokenLogprobs LogprobsOf(int32_t chosen, std::span<const float> logprobs, std::span<const int32_t> top_ids);

}  // namespace headwise

#endif  // HEADWISE_ENGINE_TOKEN_LOGPROBS_H_
