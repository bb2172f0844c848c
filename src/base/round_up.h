// Whole groups of so many. For host and device; no std:: code.
#ifndef HEADWISE_BASE_ROUND_UP_H_
#define HEADWISE_BASE_ROUND_UP_H_

#include <cstdint>

namespace headwise {

// How many groups of `size` hold `count`. Requires: count >= 0, size > 0.
constexpr int64_t CeilDiv(int64_t count, int64_t size) {
  return (count + size - 1) / size;
}

// What those hold: the first multiple of `size` that is no less than `count`.
constexpr int64_t RoundUp(int64_t count, int64_t size) {
  return CeilDiv(count, size) * size;
}

}  // namespace headwise

#endif  // HEADWISE_BASE_ROUND_UP_H_
