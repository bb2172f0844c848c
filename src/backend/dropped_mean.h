// The compensation token of a head that selects by score [razor §3.3 eq.4-5 over what a policy drops].
//
// Where a step of SelectKv drops tokens of a head that has a state (StepHead::state), they are folded into the running
// mean of keys and of values, in the order of the text, before others move into their slots. In the steps behind that
// one Compensate gives every query the mean as one more key, log(n) added to its score, n being the tokens that were
// dropped before the step: all rows of a step read the same mean. So what queries give to tokens that are kept, and
// with it the scores of these, is what is left beside the mean.
#ifndef HEADWISE_BACKEND_DROPPED_MEAN_H_
#define HEADWISE_BACKEND_DROPPED_MEAN_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/kv_step.h"

namespace headwise {

inline bool HasDroppedMean(const HeadWork& work) {
  return work.Selects() && work.head->state != kNoPage;
}

// Tokens that the mean holds before the step; 0 of heads without one.
inline int64_t NumInDroppedMean(const HeadWork& work) {
  return HasDroppedMean(work) ? work.text_pos - work.first_pos : 0;
}

// `slots` in the order in which their tokens join the mean.
inline std::vector<int64_t> InOrderOfText(const HeadWork& work, std::span<const int64_t> slots) {
  const auto position_of = [&](int64_t slot) {
    return work.Notes(slot / work.page_tokens()).positions[slot % work.page_tokens()];
  };
  std::vector<int64_t> ordered(slots.begin(), slots.end());
  std::ranges::sort(ordered, {}, position_of);
  return ordered;
}

}  // namespace headwise

#endif  // HEADWISE_BACKEND_DROPPED_MEAN_H_
