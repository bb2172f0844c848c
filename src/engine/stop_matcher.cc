#include "engine/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace headwise {

Status ValidateStops(const std::vector<std::string>& stops) {
  for (const std::string& stop : stops) {
    if (stop.empty())
      return Status::InvalidInput("stop strings: one is empty, expected at least one character in each");
  }
  return Status::Ok();
}

std::string StopMatcher::Push(std::string_view piece) {
  if (stopped_) return {};
  held_ += piece;

  size_t first_end = std::string::npos;
  size_t first_begin = 0;
  for (const std::string& stop : stops_) {
    const size_t begin = held_.find(stop);
    if (begin == std::string::npos) continue;
    const size_t end = begin + stop.size();
    if (end < first_end || (end == first_end && begin < first_begin)) {
      first_end = end;
      first_begin = begin;
    }
  }
  if (first_end != std::string::npos) {
    stopped_ = true;
    held_.resize(first_begin);
    return std::exchange(held_, {});
  }

  // The longest end of the text that begins some stop string stays back.
  size_t num_back = 0;
  for (const std::string& stop : stops_) {
    for (size_t length = std::min(stop.size() - 1, held_.size()); length > num_back; --length) {
      if (std::string_view(held_).substr(held_.size() - length) == std::string_view(stop).substr(0, length)) {
        num_back = length;
        break;
      }
    }
  }
  std::string certain = held_.substr(0, held_.size() - num_back);
  held_.erase(0, certain.size());
  return certain;
}

std::string StopMatcher::Flush() {
  return std::exchange(held_, {});
}

}  // namespace headwise
