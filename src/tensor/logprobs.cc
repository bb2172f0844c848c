#include "tensor/logprobs.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

#include "base/check.h"

namespace headwise {
namespace {

// The ids of the highest logits, best first. A heap of as many as are wanted, whose front is the one that goes next:
// they are few against the vocabulary, most of which is looked at once.
void FindHighest(std::span<const float> logits, std::span<int32_t> ids) {
  if (ids.empty()) return;
  const auto logit = [&](int32_t id) { return logits[static_cast<size_t>(id)]; };
  const auto is_better = [&](int32_t a, int32_t b) { return logit(a) != logit(b) ? logit(a) > logit(b) : a < b; };
  std::iota(ids.begin(), ids.end(), 0);
  std::ranges::make_heap(ids, is_better);
  for (size_t id = ids.size(); id < logits.size(); ++id) {
    // Ids come in order: one that is only as good as the front is no better than it.
    if (logits[id] <= logit(ids.front())) continue;
    std::ranges::pop_heap(ids, is_better);
    ids.back() = static_cast<int32_t>(id);
    std::ranges::push_heap(ids, is_better);
  }
  std::ranges::sort_heap(ids, is_better);
}

}  // namespace

void LogprobsOf(std::span<const float> logits, int32_t chosen, std::span<float> logprobs, std::span<int32_t> top_ids) {
  HW_CHECK(chosen >= 0 && static_cast<size_t>(chosen) < logits.size(), "id {} of {}", chosen, logits.size());
  HW_CHECK(logprobs.size() == 1 + top_ids.size() && top_ids.size() <= logits.size());
  const double highest = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - highest);
  const double log_sum = std::log(sum);
  // In this order: beside a large logit log_sum would be lost.
  const auto logprob = [&](int32_t id) {
    return static_cast<float>(logits[static_cast<size_t>(id)] - highest - log_sum);
  };
  FindHighest(logits, top_ids);
  logprobs[0] = logprob(chosen);
  for (size_t i = 0; i < top_ids.size(); ++i) logprobs[i + 1] = logprob(top_ids[i]);
}

}  // namespace headwise
