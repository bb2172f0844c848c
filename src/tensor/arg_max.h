// The largest number of many.
#ifndef HEADWISE_TENSOR_ARG_MAX_H_
#define HEADWISE_TENSOR_ARG_MAX_H_

#include <cstdint>
#include <span>

namespace headwise {

// Where the first of the highest stands. NaN compares false, so it is never highest unless nothing else is there.
// Requires: at least one number.
int32_t ArgMax(std::span<const float> numbers);

}  // namespace headwise

#endif  // HEADWISE_TENSOR_ARG_MAX_H_
