#include "engine/token_guide.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <limits>

namespace headwise {
namespace {

constexpr size_t kWordBits = 32;

}  // namespace

bool TokenGuide::IsEnd(int32_t id) const {
  return std::ranges::find(end_ids_, id) != end_ids_.end();
}

Result<bool> TokenGuide::Limit(std::span<float> logits) {
  if (state_ == nullptr) {
    HW_ASSIGN_OR_RETURN(state_, constraint_->Begin());
  }
  mask_.resize((logits.size() + kWordBits - 1) / kWordBits);
  HW_ASSIGN_OR_RETURN(const bool may_end, state_->FillMask(mask_));
  for (const int32_t id : end_ids_) {
    if (id < 0 || static_cast<size_t>(id) >= logits.size()) continue;
    const uint32_t bit = uint32_t{1} << (static_cast<size_t>(id) % kWordBits);
    uint32_t& word = mask_[static_cast<size_t>(id) / kWordBits];
    word = may_end ? word | bit : word & ~bit;
  }
  bool has_any = false;
  for (size_t begin = 0; begin < logits.size(); begin += kWordBits) {
    const uint32_t word = mask_[begin / kWordBits];
    const size_t end = std::min(begin + kWordBits, logits.size());
    for (size_t id = begin; id < end && word != ~uint32_t{0}; ++id) {
      if ((word >> (id - begin) & 1) == 0) logits[id] = -std::numeric_limits<float>::infinity();
    }
    // Bits behind the last id mean nothing.
    const uint32_t known = end - begin == kWordBits ? ~uint32_t{0} : (uint32_t{1} << (end - begin)) - 1;
    has_any = has_any || (word & known) != 0;
  }
  if (has_any || may_end) return has_any;
  return Status::InvalidInput("constraint: no token of the vocabulary goes on with the text, which may not end here");
}

Status TokenGuide::Take(int32_t id) {
  const auto at = static_cast<size_t>(id);
  if ((mask_[at / kWordBits] >> (at % kWordBits) & 1) == 0) {
    return Status::InvalidInput("constraint: logit_bias forbids every token that it allows here");
  }
  return IsEnd(id) ? Status::Ok() : state_->Accept(id);
}

}  // namespace headwise
