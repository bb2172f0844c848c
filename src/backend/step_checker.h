// Validate(KvStep) for a backend whose steps follow on each other: of a sequence that only went on by a token, within
// its page and in tables that nobody changed, nothing is checked twice. Its heads are hundreds, and a step in which
// many decode is short.
#ifndef HEADWISE_BACKEND_STEP_CHECKER_H_
#define HEADWISE_BACKEND_STEP_CHECKER_H_

#include <vector>

#include "backend/kv_step.h"

namespace headwise {

class StepChecker {
 public:
  // Of each step, in their order.
  void Check(const KvStep& step);

 private:
  std::vector<StepRows> known_;  // of the step before
};

}  // namespace headwise

#endif  // HEADWISE_BACKEND_STEP_CHECKER_H_
