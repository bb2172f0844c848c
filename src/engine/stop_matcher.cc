#include "engine/stop_matcher.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace headwise {

Status ValidateStops(const std::vector<std::string>& stops) {
  if (stops.size() > kMaxStops) {
    return Status::InvalidInput(
        fmt::format("stop strings: {} are given, expected at most {}", stops.size(), kMaxStops));
  }
  size_t num_bytes = 0;
  for (const std::string& stop : stops) {
    if (stop.empty())
      return Status::InvalidInput("stop strings: one is empty, expected at least one character in each");
    num_bytes += stop.size();
  }
  if (num_bytes > kMaxStopBytes) {
    return Status::InvalidInput(
        fmt::format("stop strings: {} bytes together, expected at most {}", num_bytes, kMaxStopBytes));
  }
  return Status::Ok();
}

StopMatcher::Stop::Stop(std::string stop) : text(std::move(stop)), shorter(text.size() + 1) {
  for (size_t i = 1; i < text.size(); ++i) {
    size_t length = shorter[i];
    while (length > 0 && text[length] != text[i]) length = shorter[length];
    shorter[i + 1] = text[length] == text[i] ? length + 1 : 0;
  }
}

void StopMatcher::Stop::Advance(char c) {
  while (num_matched > 0 && text[num_matched] != c) num_matched = shorter[num_matched];
  if (text[num_matched] == c) ++num_matched;
}

StopMatcher::StopMatcher(std::vector<std::string> stops) {
  for (std::string& stop : stops) stops_.emplace_back(std::move(stop));
}

std::string StopMatcher::Push(std::string_view piece) {
  if (stopped_) return {};
  for (const char c : piece) {
    held_ += c;
    size_t num_stopped = 0;  // bytes of the longest that is complete
    for (Stop& stop : stops_) {
      stop.Advance(c);
      if (stop.num_matched == stop.text.size()) num_stopped = std::max(num_stopped, stop.text.size());
    }
    if (num_stopped > 0) {
      stopped_ = true;
      held_.resize(held_.size() - num_stopped);
      return std::exchange(held_, {});
    }
  }
  // The longest end of the text that begins some stop string stays back.
  size_t num_back = 0;
  for (const Stop& stop : stops_) num_back = std::max(num_back, stop.num_matched);
  std::string certain = held_.substr(0, held_.size() - num_back);
  held_.erase(0, certain.size());
  return certain;
}

std::string StopMatcher::Flush() {
  return std::exchange(held_, {});
}

}  // namespace headwise
