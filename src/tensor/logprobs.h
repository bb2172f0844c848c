// Log-probabilities of a row of logits.
#ifndef HEADWISE_TENSOR_LOGPROBS_H_
#define HEADWISE_TENSOR_LOGPROBS_H_

#include <cstdint>
#include <span>

namespace headwise {

// logprobs [1 + N]: the log-softmax of logits [V] at `chosen`, then where it is highest, most likely first, of equal
// ones the lowest id first; top_ids [N]: where that is. Sums are taken in double, in the order of the ids. Requires:
// finite logits, 0 <= chosen < V, N <= V.
void LogprobsOf(std::span<const float> logits, int32_t chosen, std::span<float> logprobs, std::span<int32_t> top_ids);

}  // namespace headwise

#endif  // HEADWISE_TENSOR_LOGPROBS_H_
