#include "engine/token_logprobs.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "base/check.h"

namespace headwise {
namespace {

// The highest logits, best first. A heap of as many as are wanted, whose front is the one that goes next: they are few
// against the vocabulary, most of which is looked at once.
std::vector<TokenLogprob> Highest(std::span<const float> logits, size_t num_top) {
  const auto is_better = [](const TokenLogprob& a, const TokenLogprob& b) {
    return a.logprob != b.logprob ? a.logprob > b.logprob : a.id < b.id;
  };
  std::vector<TokenLogprob> top;
  if (num_top == 0) return top;
  for (size_t id = 0; id < logits.size(); ++id) {
    // Ids come in order: one that is only as good as the front is no better than it.
    if (top.size() == num_top) {
      if (logits[id] <= top.front().logprob) continue;
      std::pop_heap(top.begin(), top.end(), is_better);
      top.pop_back();
    }
    top.push_back({.id = static_cast<int32_t>(id), .logprob = logits[id]});
    std::push_heap(top.begin(), top.end(), is_better);
  }
  std::sort_heap(top.begin(), top.end(), is_better);
  return top;
}

}  // namespace

TokenLogprobs LogprobsOf(std::span<const float> logits, int32_t chosen, int64_t num_top) {
  HW_CHECK(chosen >= 0 && static_cast<size_t>(chosen) < logits.size(), "id {} of {}", chosen, logits.size());
  const double highest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - highest);
  const double log_sum = std::log(sum);
  // In this order: beside a large logit log_sum would be lost.
  const auto logprob = [&](float logit) { return static_cast<float>(logit - highest - log_sum); };

  TokenLogprobs result;
  result.chosen = {.id = chosen, .logprob = logprob(logits[static_cast<size_t>(chosen)])};
  result.top = Highest(logits, static_cast<size_t>(num_top));
  for (TokenLogprob& each : result.top) each.logprob = logprob(each.logprob);
  return result;
}

}  // namespace headwise
