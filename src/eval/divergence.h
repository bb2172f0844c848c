// How far one distribution over the vocabulary is from another.
#ifndef HEADWISE_EVAL_DIVERGENCE_H_
#define HEADWISE_EVAL_DIVERGENCE_H_

#include <cstddef>
#include <span>

namespace headwise {

// log of the sum of exponentials, in double. Requires: at least one.
double LogSumExp(std::span<const float> logits);

// sum over tokens of p log(p / q), in nats, p and q the softmax of logits [V], in double. Exactly 0 for equal logits;
// not a number where a logit is none. Requires: as many of one as of the other, at least one.
double KlDivergence(std::span<const float> p_logits, std::span<const float> q_logits);

// Index of the largest; the first of equal ones. Requires: at least one.
size_t ArgMax(std::span<const float> values);

}  // namespace headwise

#endif  // HEADWISE_EVAL_DIVERGENCE_H_
