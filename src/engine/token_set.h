// Which ids a text has: all that a repetition penalty asks for, in memory that the vocabulary bounds, however long the
// text becomes.
#ifndef HEADWISE_ENGINE_TOKEN_SET_H_
#define HEADWISE_ENGINE_TOKEN_SET_H_

#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"

namespace headwise {

class TokenSet {
 public:
  // Requires: id >= 0.
  void Add(int32_t id) {
    HW_CHECK(id >= 0, "id {}", id);
    const auto idx = static_cast<size_t>(id);
    if (idx >= has_.size()) has_.resize(idx + 1);
    if (has_[idx]) return;
    ids_.push_back(id);
    has_[idx] = true;
  }
  void Add(std::span<const int32_t> ids) {
    for (const int32_t id : ids) Add(id);
  }

  // Each once, in the order of their first appearance.
  std::span<const int32_t> ids() const { return ids_; }

 private:
  std::vector<bool> has_;  // by id
  std::vector<int32_t> ids_;
};

}  // namespace headwise

#endif  // HEADWISE_ENGINE_TOKEN_SET_H_
