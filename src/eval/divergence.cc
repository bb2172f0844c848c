#include "eval/divergence.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace headwise {

double LogSumExp(std::span<const float> logits) {
  const double highest = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - highest);
  return highest + std::log(sum);
}

double KlDivergence(std::span<const float> p_logits, std::span<const float> q_logits) {
  HW_CHECK(!p_logits.empty() && p_logits.size() == q_logits.size(), "{} and {}", p_logits.size(), q_logits.size());
  const double p_norm = LogSumExp(p_logits);
  const double q_norm = LogSumExp(q_logits);
  double sum = 0;
  for (size_t i = 0; i < p_logits.size(); ++i) {
    const double log_p = p_logits[i] - p_norm;
    sum += std::exp(log_p) * (log_p - (q_logits[i] - q_norm));
  }
  return sum;
}

size_t ArgMax(std::span<const float> values) {
  return static_cast<size_t>(std::ranges::max_element(values) - values.begin());
}

}  // namespace headwise
