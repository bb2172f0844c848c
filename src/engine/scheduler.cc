#include "engine/scheduler.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <tuple>
#include <utility>

namespace headwise {

std::vector<uint64_t> LevelsOf(std::span<const Turn> turns) {
  std::vector<uint64_t> levels(turns.size());
  if (turns.empty()) return levels;
  const int64_t most_urgent = std::ranges::min(turns, {}, &Turn::priority).priority;
  for (size_t i = 0; i < turns.size(); ++i) {
    // Of any two priorities the difference is a number without a sign.
    const uint64_t behind = static_cast<uint64_t>(turns[i].priority) - static_cast<uint64_t>(most_urgent);
    const auto age = static_cast<uint64_t>(turns[i].waited_steps / kStepsOfAge);
    levels[i] = behind > age ? behind - age : 0;
  }
  return levels;
}

std::vector<size_t> OrderOf(std::span<const Turn> turns) {
  const std::vector<uint64_t> levels = LevelsOf(turns);
  const auto key = [&](size_t i) {
    return std::tuple(levels[i], !turns[i].is_again, turns[i].served, turns[i].arrival);
  };
  std::vector<size_t> order(turns.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, [&](size_t a, size_t b) { return key(a) < key(b); });
  return order;
}

std::vector<int64_t> ShareStep(std::span<const StepWish> wishes, int64_t budget) {
  std::vector<int64_t> granted(wishes.size());
  std::vector<size_t> readers;  // of more than a token, in order of their turns
  for (size_t i = 0; i < wishes.size(); ++i) {
    if (wishes[i].num_tokens == 1) granted[i] = 1;
    if (wishes[i].num_tokens > 1) readers.push_back(i);
  }
  if (readers.empty()) return granted;

  const size_t first = readers.front();
  const bool is_whole = wishes[first].cut == StepWish::Cut::kRefused;
  granted[first] = is_whole ? wishes[first].num_tokens : std::min(wishes[first].num_tokens, budget - budget / 2);
  int64_t left = budget - granted[first];

  std::stable_sort(readers.begin(), readers.end(), [&](size_t a, size_t b) {
    return std::pair(wishes[a].level, wishes[a].num_tokens) < std::pair(wishes[b].level, wishes[b].num_tokens);
  });
  for (const size_t i : readers) {
    const int64_t more = wishes[i].num_tokens - granted[i];
    const bool is_cut = more > left;
    if (left <= 0 || (is_cut && wishes[i].cut == StepWish::Cut::kRefused)) continue;
    const int64_t num_tokens = is_cut ? left : more;
    granted[i] += num_tokens;
    left -= num_tokens;
  }
  return granted;
}

}  // namespace headwise
