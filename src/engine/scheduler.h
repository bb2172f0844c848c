// Which requests read how many tokens in a step.
#ifndef HEADWISE_ENGINE_SCHEDULER_H_
#define HEADWISE_ENGINE_SCHEDULER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace headwise {

// What one request would read in the next step.
struct StepWish {
  enum class Cut { kAllowed, kRefused };

  int64_t num_tokens = 0;   // at most; 0: nothing
  Cut cut = Cut::kAllowed;  // whether fewer would do
  uint64_t level = 0;       // LevelsOf its turn
};

// What the turn of a request depends on that waits for memory, or has a prompt to be read.
struct Turn {
  int64_t priority = 0;      // lower ones first
  int64_t waited_steps = 0;  // since it came
  bool is_again = false;     // it ran before, and gave its memory to others
  int64_t served = 0;        // tokens of its client, ClientShares
  int64_t arrival = 0;       // ascending in order of arrival
};

// How far each is behind the most urgent: the difference of their priorities, less one for every kStepsOfAge steps that
// it has waited, at least 0. So whoever waits long enough is as urgent as anybody.
inline constexpr int64_t kStepsOfAge = 256;
std::vector<uint64_t> LevelsOf(std::span<const Turn> turns);
// Indices of `turns`, whose turn is first at the front: by level, then those that gave way, then whose client was
// served least, then by arrival. Of one client and priority it is first come, first served.
std::vector<size_t> OrderOf(std::span<const Turn> turns);

// Tokens of each, wishes in order of their turns. A single token, as a decoding request's, is always granted: a long
// prompt never stalls the answers of others. Longer wishes share `budget`: half of it belongs to the first, and the
// rest to those of the lowest level with the least left to read, so that a question does not wait for somebody's book,
// nor the book for an endless row of questions. A wish that cannot be cut is granted whole where it fits, and to the
// first in any case.
// Somebody is granted something wherever anybody wishes.
std::vector<int64_t> ShareStep(std::span<const StepWish> wishes, int64_t budget);

}  // namespace headwise

#endif  // HEADWISE_ENGINE_SCHEDULER_H_
