#include "tensor/arg_max.h"

#include <algorithm>
#include <cstddef>
#include <limits>

namespace headwise {

// Blocks, and lanes within them, so that the compiler compares several at a time: a step of many sequences spends much
// of its host time here.
int32_t ArgMax(std::span<const float> numbers) {
  constexpr size_t kBlock = 512;
  constexpr size_t kLanes = 16;
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  float highest = kLowest;
  size_t highest_block = 0;
  for (size_t begin = 0; begin < numbers.size(); begin += kBlock) {
    const std::span<const float> block = numbers.subspan(begin, std::min(kBlock, numbers.size() - begin));
    float lanes[kLanes];
    std::fill_n(lanes, kLanes, kLowest);
    size_t i = 0;
    for (; i + kLanes <= block.size(); i += kLanes) {
      for (size_t lane = 0; lane < kLanes; ++lane) {
        const float number = block[i + lane];
        lanes[lane] = number > lanes[lane] ? number : lanes[lane];
      }
    }
    for (; i < block.size(); ++i) lanes[0] = block[i] > lanes[0] ? block[i] : lanes[0];
    const float highest_here = *std::max_element(lanes, lanes + kLanes);
    if (highest_here > highest) {
      highest = highest_here;
      highest_block = begin;
    }
  }
  if (highest == kLowest) return 0;
  const auto first = numbers.begin() + static_cast<std::ptrdiff_t>(highest_block);
  return static_cast<int32_t>(std::find(first, numbers.end(), highest) - numbers.begin());
}

}  // namespace headwise
