// What the tokens of a step are to heads that keep some of them for that (TokenSelector::Kind::kFastGen).
#ifndef HEADWISE_KV_TOKEN_MARKS_H_
#define HEADWISE_KV_TOKEN_MARKS_H_

#include <headwise/head_plan.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/kv_step.h"

namespace headwise {

// Whether one of these rules, HeadRule or ResolvedRule, asks what tokens are.
template <typename Rules>
bool AskForMarks(const Rules& rules) {
  return std::ranges::any_of(rules, [](const auto& rule) { return rule.select.kind == TokenSelector::Kind::kFastGen; });
}

inline TokenMark MarkOf(int32_t id, const TokenLists& lists) {
  if (std::ranges::binary_search(lists.special, id)) return TokenMark::kSpecial;
  return std::ranges::binary_search(lists.punctuation, id) ? TokenMark::kPunctuation : TokenMark::kOther;
}

// Appends those of `ids`.
inline void AppendMarks(std::span<const int32_t> ids, const TokenLists& lists, std::vector<TokenMark>& marks) {
  for (const int32_t id : ids) marks.push_back(MarkOf(id, lists));
}

}  // namespace headwise

#endif  // HEADWISE_KV_TOKEN_MARKS_H_
