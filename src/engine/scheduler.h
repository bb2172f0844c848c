// Which requests read how many tokens in a step.
#ifndef HEADWISE_ENGINE_SCHEDULER_H_
#define HEADWISE_ENGINE_SCHEDULER_H_

#include <cstdint>
#include <span>
#include <vector>

namespace headwise {

// What one request would read in the next step.
struct StepWish {
  enum class Cut { kAllowed, kRefused };

  int64_t num_tokens = 0;   // at most; 0: nothing
  Cut cut = Cut::kAllowed;  // whether fewer would do
};

// Tokens of each, wishes in order of admission. A single token, as a decoding request's, is always granted: a long
// prompt never stalls the answers of others. Longer wishes share `budget`: half of it belongs to the oldest, and the
// rest to those with the least left to read, so that a question does not wait for somebody's book, nor the book for an
// endless row of questions. A wish that cannot be cut is granted whole where it fits, and to the oldest in any case.
// Somebody is granted something wherever anybody wishes.
std::vector<int64_t> ShareStep(std::span<const StepWish> wishes, int64_t budget);

}  // namespace headwise

#endif  // HEADWISE_ENGINE_SCHEDULER_H_
