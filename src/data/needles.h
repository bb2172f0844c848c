// Needles in a haystack: sentences hidden in a long text that has nothing to do with them. RULER's retrieval tasks
// [ruler §3.1] (one number, several numbers of a key, several keys asked for, keys that only distract) and the sentence
// about Paris that the first such test hid.
//
// A haystack should have no numbers of seven digits of its own. The questions of one text can be asked in any order.
#ifndef HEADWISE_DATA_NEEDLES_H_
#define HEADWISE_DATA_NEEDLES_H_

#include <headwise/status.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/rng.h"
#include "data/asked_text.h"
#include "data/recall_prompts.h"

namespace headwise {

struct NeedleOptions {
  int64_t num_keys = 1;         // of all that is hidden; those that are not asked for distract
  int64_t values_per_key = 1;   // an answer is to have all of the asked key's; at most 100
  int64_t num_questions = 1;    // each for another key
  int64_t num_distractors = 0;  // drawn for MakeNeedlesOnly, with one value each; kMaxLines with num_keys
  // Of the needle asked for, where it is one only; the others are anywhere. None: it is anywhere, too.
  std::optional<double> depth = std::nullopt;
};

struct NeedleKey {
  std::string name;                  // as lines have: data/lines.h
  std::vector<HiddenNumber> values;  // of seven digits
};

// Names and values are all different.
struct Needles {
  std::vector<NeedleKey> keys;  // the first are asked for
  int64_t num_questions = 1;
  std::vector<NeedleKey> distractors;
};

// An error if an option is out of range.
Status ValidateNeedleOptions(const NeedleOptions& options);

// Draws do not depend on `depth`, so that texts at several depths differ in it alone. Requires: valid options.
Needles DrawNeedles(Rng& rng, const NeedleOptions& options);

// The keys hidden in `filler`, the distractors left out. Requires: `filler` is valid UTF-8, and may be empty.
AskedText MakeNeedles(std::string_view filler, const Needles& needles);

// RULER's hardest haystack: the keys hidden among the first distractors, and nothing else. Requires: 0 <=
// num_distractors <= those drawn.
AskedText MakeNeedlesOnly(const Needles& needles, int64_t num_distractors);

// "The best thing to do in Paris is <words>."
struct WordNeedle {
  std::string words;  // "sit in ... and eat a ..."
  double depth = 0.0;
};
// Anywhere in the text; where only some depths are wanted, set it. The words are the same at all depths.
WordNeedle DrawWordNeedle(Rng& rng);
// Requires: 0 <= depth <= 1; `filler` is valid UTF-8, and may be empty.
AskedText MakeWordNeedle(std::string_view filler, const WordNeedle& needle);

}  // namespace headwise

#endif  // HEADWISE_DATA_NEEDLES_H_
