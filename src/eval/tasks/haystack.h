// What tasks with something hidden in a long text have in common: lengths, cases, where the text comes from, and a text
// of the right number of tokens around it.
#ifndef HEADWISE_EVAL_TASKS_HAYSTACK_H_
#define HEADWISE_EVAL_TASKS_HAYSTACK_H_

#include <array>
#include <functional>
#include <string_view>
#include <vector>

#include "base/rng.h"
#include "data/asked_text.h"
#include "data/filler.h"
#include "eval/asked_task.h"
#include "eval/task.h"

namespace headwise {

// The options that ReadHaystack reads.
inline constexpr std::array kHaystackOptions = {kLengthsOption, kCasesOption,        kSeedOption,
                                                kBatchOption,   kMaxNewTokensOption, kHaystackOption};

struct Haystack {
  TextSource source = TextSource::Generator();
  int64_t num_cases = 0;  // per length
  uint64_t seed = 0;
  AskedTaskParts parts;  // lengths, limits and the source's hash filled in; no cases yet
};

// By default 20 cases at 1,024, 2,048, 4,096 and 8,192 tokens as far as the model was trained.
Result<Haystack> ReadHaystack(const TaskInput& input, int64_t max_new_tokens);

// The case that `make` makes of as much text as gives prompt and answer `length` tokens, or up to 96 fewer. Tags are
// the caller's. An error if `length` has no room for what is hidden.
Result<AskedCase> FitCase(const TaskInput& input, const Haystack& haystack, Rng& rng, int64_t length,
                          const std::function<AskedText(std::string_view filler)>& make);
// The same where the text is made of rows: make(num_rows), at least one.
Result<AskedCase> FitRowsCase(const TaskInput& input, const Haystack& haystack, int64_t length, int64_t max_rows,
                              const std::function<AskedText(int64_t num_rows)>& make);

}  // namespace headwise

#endif  // HEADWISE_EVAL_TASKS_HAYSTACK_H_
