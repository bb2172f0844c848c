// The model's own sliding windows, as rules, byte counts and budgets need them: layers may differ [gemma, gpt-oss].
#ifndef HEADWISE_KV_LAYER_WINDOWS_H_
#define HEADWISE_KV_LAYER_WINDOWS_H_

#include <cstdint>
#include <vector>

#include "backend/ops.h"
#include "base/check.h"

namespace headwise {

// Of a layer with a window of w tokens, a query at position t reads key j if t - j < w, whatever its head's rule says.
struct LayerWindows {
  std::vector<int64_t> tokens = {};  // [L], kNoLimit where a layer has none; empty: no layer has one

  int64_t At(int64_t layer_idx) const {
    if (tokens.empty()) return kNoLimit;
    HW_CHECK(layer_idx >= 0 && layer_idx < static_cast<int64_t>(tokens.size()), "layer {} of {}", layer_idx,
             tokens.size());
    return tokens[static_cast<size_t>(layer_idx)];
  }

  friend bool operator==(const LayerWindows&, const LayerWindows&) = default;
};

}  // namespace headwise

#endif  // HEADWISE_KV_LAYER_WINDOWS_H_
