#include "engine/scheduler.h"

#include <algorithm>
#include <cstddef>

namespace headwise {

std::vector<int64_t> ShareStep(std::span<const StepWish> wishes, int64_t budget) {
  std::vector<int64_t> granted(wishes.size());
  std::vector<size_t> readers;  // of more than a token, in order of admission
  for (size_t i = 0; i < wishes.size(); ++i) {
    if (wishes[i].num_tokens == 1) granted[i] = 1;
    if (wishes[i].num_tokens > 1) readers.push_back(i);
  }
  if (readers.empty()) return granted;

  const size_t oldest = readers.front();
  const bool is_whole = wishes[oldest].cut == StepWish::Cut::kRefused;
  granted[oldest] = is_whole ? wishes[oldest].num_tokens : std::min(wishes[oldest].num_tokens, budget - budget / 2);
  int64_t left = budget - granted[oldest];

  std::stable_sort(readers.begin(), readers.end(),
                   [&](size_t a, size_t b) { return wishes[a].num_tokens < wishes[b].num_tokens; });
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
