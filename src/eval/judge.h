// Right or wrong, for answers that are numbers or names: no partial matches, and nothing for an answer that names
// everything.
#ifndef HEADWISE_EVAL_JUDGE_H_
#define HEADWISE_EVAL_JUDGE_H_

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headwise {

// Maximal runs of ASCII letters, digits and "_", with "-", "." and "," inside a run belonging to it where a letter or
// digit follows: "12,345" and "quiet-river" are one word each, "123." is "123".
std::vector<std::string_view> SplitWords(std::string_view text);

// What may be an answer at all: so that "The numbers are 1 and 2" has two.
using IsCandidate = std::function<bool(std::string_view word)>;
bool IsNumber(std::string_view word);  // digits alone

// Share of `expected` that is among the first expected.size() different candidates of the answer. Only those count: a
// model that lists every number of the text gets nothing for it, and repeating itself costs nothing. Case counts.
// Requires: expected is not empty.
double Recall(std::string_view answer, std::span<const std::string> expected, const IsCandidate& is_candidate);

}  // namespace headwise

#endif  // HEADWISE_EVAL_JUDGE_H_
