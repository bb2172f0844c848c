// The multi-passkey recall of DuoAttention [duo §2.2]: sequences of random words hidden at random depths of a long
// text, all asked for at its end. What it supervises (the answers) cannot be told from the text close by.
#ifndef HEADWISE_DATA_PASSKEYS_H_
#define HEADWISE_DATA_PASSKEYS_H_

#include <headwise/status.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/rng.h"

namespace headwise {

// A prompt in parts that follow each other without anything between them. Every part but the first begins with white
// space.
struct PromptSegment {
  std::string text;
  bool is_answer = false;
};
using RecallPrompt = std::vector<PromptSegment>;

struct PasskeyOptions {
  int64_t num_passkeys = 10;       // the paper's; at most kMaxPasskeys
  int64_t words_per_passkey = 32;  // the paper's
};

// There are names ("first", "second", ...) for so many.
inline constexpr int64_t kMaxPasskeys = 20;

struct Passkey {
  std::string words;   // "alpha bravo ...": words of the NATO alphabet
  double depth = 0.0;  // where in the text it stands: 0 is the start, 1 the end
};

// The 26 words that passkeys are made of.
std::span<const std::string_view> PasskeyWords();

// An error if an option is out of range.
Status ValidatePasskeyOptions(const PasskeyOptions& options);

// In the order in which they are asked for; depths are independent of it. Requires: valid options.
std::vector<Passkey> DrawPasskeys(Rng& rng, const PasskeyOptions& options);

// `filler` with every passkey as a paragraph of its own at the sentence that its depth falls into, then the questions,
// each with its answer. Requires: 1 to kMaxPasskeys passkeys; `filler` is valid UTF-8, and may be empty.
RecallPrompt MakePasskeyPrompt(std::string_view filler, std::span<const Passkey> passkeys);

}  // namespace headwise

#endif  // HEADWISE_DATA_PASSKEYS_H_
