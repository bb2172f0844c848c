// Texts of a wanted number of tokens: how much of something makes them so long.
#ifndef HEADWISE_DATA_FIT_TOKENS_H_
#define HEADWISE_DATA_FIT_TOKENS_H_

#include <headwise/status.h>
#include <headwise/tokenizer.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/rng.h"
#include "data/filler.h"

namespace headwise {

// A text that can be made in any size from 0 to max_size; its tokens grow with the size, steadily but for a few.
struct Sizable {
  int64_t max_size = 0;
  std::function<Result<int64_t>(int64_t size)> num_tokens;
  const char* what = "";  // of what there is max_size, for the error
};

// The size that gives num_tokens, or up to slack_tokens fewer. An error if even size 0 has more, or max_size fewer.
Result<int64_t> FitSize(const Sizable& sizable, int64_t num_tokens, int64_t slack_tokens);

// A passage of at least num_tokens tokens, and not many more.
Result<std::string> DrawPassage(const Tokenizer& tokenizer, const TextSource& source, Rng& rng, int64_t num_tokens);

// As much of a passage as gives num_tokens, or up to slack_tokens fewer, once tokens_of has put it into its text; cut
// at words. Errors as FitSize.
Result<std::string> FitPassage(const Tokenizer& tokenizer, const TextSource& source, Rng& rng, int64_t num_tokens,
                               int64_t slack_tokens,
                               const std::function<Result<int64_t>(std::string_view passage)>& tokens_of);

}  // namespace headwise

#endif  // HEADWISE_DATA_FIT_TOKENS_H_
