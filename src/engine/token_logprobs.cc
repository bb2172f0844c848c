#include "engine/token_logprobs.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "tensor/logprobs.h"

namespace headwise {

TokenLogprobs LogprobsOf(std::span<const float> logits, int32_t chosen, int64_t num_top) {
  const size_t num = std::min(static_cast<size_t>(num_top), logits.size());
  std::vector<float> logprobs(1 + num);
  std::vector<int32_t> top_ids(num);
  LogprobsOf(logits, chosen, logprobs, top_ids);
  return LogprobsOf(chosen, logprobs, top_ids);
}

TokenLogprobs LogprobsOf(int32_t chosen, std::span<const float> logprobs, std::span<const int32_t> top_ids) {
  TokenLogprobs result;
  result.chosen = {.id = chosen, .logprob = logprobs[0]};
  for (size_t i = 0; i < top_ids.size(); ++i) result.top.push_back({.id = top_ids[i], .logprob = logprobs[i + 1]});
  return result;
}

}  // namespace headwise
