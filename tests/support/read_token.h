// What a cache holds, seen through an operation that every backend has: the mean of one token is that token.
#ifndef HEADWISE_TESTS_SUPPORT_READ_TOKEN_H_
#define HEADWISE_TESTS_SUPPORT_READ_TOKEN_H_

#include <cstdint>
#include <vector>

#include "backend/backend.h"

namespace headwise {

// Key [D], then value [D] of token `pos` of the head. Requires: its page is there.
inline std::vector<float> ReadToken(Backend& backend, HeadWork work, int64_t pos) {
  std::vector<float> state(static_cast<size_t>(2 * work.layout.head_dim));
  work.num_rows = 0;
  work.sink = pos;
  work.recent = 1;
  const HeadFold fold{.work = work, .state = state.data(), .fold_end = pos + 1};
  CompensateArgs args;
  args.heads = {&fold, 1};
  args.num_q_heads = args.num_kv_heads = work.kv_head + 1;
  backend.Compensate(args);
  return state;
}

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_READ_TOKEN_H_
