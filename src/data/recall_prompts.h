// Prompts whose answer stands far away in the prompt, without the answer: the model is to give it itself, as MoA's
// calibration asks [moa §5]. Lines are in data/lines.h; here are the two other kinds and a user's own prompts.
#ifndef HEADWISE_DATA_RECALL_PROMPTS_H_
#define HEADWISE_DATA_RECALL_PROMPTS_H_

#include <headwise/status.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/rng.h"

namespace headwise {

enum class RecallKind {
  kLines,     // LongEval: data/lines.h
  kPasskey,   // one number in a long text
  kJsonKeys,  // one key of a large JSON object
};
inline constexpr std::array kRecallKinds = {RecallKind::kLines, RecallKind::kPasskey, RecallKind::kJsonKeys};

struct HiddenNumber {
  int64_t number = 0;
  double depth = 0.0;  // where in the text it stands: 0 is the start, 1 the end
};
// Five digits, anywhere in the text.
HiddenNumber DrawHiddenNumber(Rng& rng);
// `filler` with the number told at the sentence that its depth falls into, then the question; the answer is "
// <number>". Requires: 0 <= depth <= 1; `filler` is valid UTF-8, and may be empty.
std::string MakeHiddenNumberPrompt(std::string_view filler, const HiddenNumber& hidden);

struct JsonPairs {
  std::vector<std::string> keys;    // all different
  std::vector<std::string> values;  // of the same length
};
// Requires: 0 <= num_pairs <= kMaxLines.
JsonPairs DrawJsonPairs(Rng& rng, int64_t num_pairs);
// A JSON object of the first pairs, then the question; the answer is " \"<value>\"". Requires: 0 <= asked_idx <
// num_pairs <= pairs drawn.
std::string MakeJsonPrompt(const JsonPairs& pairs, int64_t num_pairs, int64_t asked_idx);

// One JSON object per line with "prompt"; other fields are ignored, empty lines skipped. Errors name the file and the
// line.
Result<std::vector<std::string>> ParsePrompts(std::string_view text, const std::string& origin);
Result<std::vector<std::string>> ReadPrompts(const std::string& path);

}  // namespace headwise

#endif  // HEADWISE_DATA_RECALL_PROMPTS_H_
