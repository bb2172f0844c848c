// Which experts a row goes through: one function for all backends that compute on the host, in double, so that they
// cannot choose differently where logits lie close together.
#ifndef HEADWISE_BACKEND_CHOOSE_EXPERTS_H_
#define HEADWISE_BACKEND_CHOOSE_EXPERTS_H_

#include <cstdint>
#include <span>

#include "backend/ops.h"

namespace headwise {

struct ChosenExpert {
  int32_t expert = 0;
  float weight = 0;  // of its output
};

// Fills `chosen`, num_chosen of them, for row `row`. Of equal scores it takes those that torch.topk takes on a CPU:
// what the selection of the C++ library leaves in front, which is not the first of them. A NaN is above all numbers.
// Requires: args.logits in host memory.
void ChooseExperts(const ExpertsArgs& args, int64_t row, std::span<ChosenExpert> chosen);

}  // namespace headwise

#endif  // HEADWISE_BACKEND_CHOOSE_EXPERTS_H_
