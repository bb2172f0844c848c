// Requests on random ids for tests of the engine.
#ifndef HEADWISE_TESTS_SUPPORT_REQUESTS_H_
#define HEADWISE_TESTS_SUPPORT_REQUESTS_H_

#include <headwise/engine.h>

#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace headwise {

// Below every tiny model's vocabulary.
inline std::vector<int32_t> IdsOf(uint64_t seed, size_t num) {
  std::mt19937_64 rng(seed);
  std::vector<int32_t> ids(num);
  for (int32_t& id : ids) id = static_cast<int32_t>(rng() % 384);
  return ids;
}

// That no end-of-text token ends early.
inline Request RequestOf(std::vector<int32_t> prompt, int64_t max_new_tokens,
                         std::shared_ptr<Sequence> sequence = nullptr) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_new_tokens = max_new_tokens;
  request.sequence = std::move(sequence);
  request.eos = EosMode::kIgnore;
  return request;
}

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_REQUESTS_H_
