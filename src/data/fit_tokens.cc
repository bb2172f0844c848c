#include "data/fit_tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

namespace headwise {

Result<int64_t> FitSize(const Sizable& sizable, int64_t num_tokens, int64_t slack_tokens) {
  const auto fits = [&](int64_t n) { return n <= num_tokens && n >= num_tokens - slack_tokens; };
  HW_ASSIGN_OR_RETURN(const int64_t base_tokens, sizable.num_tokens(0));
  if (base_tokens > num_tokens) {
    return Status::InvalidInput(
        fmt::format("{} tokens needed without any {}, expected at most {}", base_tokens, sizable.what, num_tokens));
  }
  if (fits(base_tokens)) return int64_t{0};

  // Sizes that are too small and too large, and their tokens; max_size + 1 is made up.
  int64_t low = 0, low_tokens = base_tokens;
  int64_t high = sizable.max_size + 1;
  std::optional<int64_t> high_tokens;
  const int64_t aim = num_tokens - slack_tokens / 2;
  constexpr int kNumInterpolations = 12;  // three are usual; halving ends what is not steady enough
  constexpr int64_t kFirstSize = 64;      // enough for a first guess of tokens per size
  for (int i = 0; high - low > 1; ++i) {
    int64_t size = low + (high - low) / 2;
    if (low == 0 && !high_tokens) {
      size = std::min(kFirstSize, sizable.max_size);
    } else if (i < kNumInterpolations) {
      const auto [last, last_tokens] = high_tokens ? std::pair(high, *high_tokens) : std::pair(int64_t{0}, base_tokens);
      const double per_size = static_cast<double>(last_tokens - low_tokens) / static_cast<double>(last - low);
      const double step = static_cast<double>(aim - low_tokens) / std::max(per_size, 1e-6);
      size = low + static_cast<int64_t>(std::clamp(step, 1.0, static_cast<double>(high - low - 1)));
    }
    HW_ASSIGN_OR_RETURN(const int64_t found, sizable.num_tokens(size));
    if (fits(found)) return size;
    if (found > num_tokens) {
      high = size;
      high_tokens = found;
    } else {
      low = size;
      low_tokens = found;
    }
  }
  return Status::InvalidInput(fmt::format("{} of {} {} give {} tokens, expected {} to {}", low, sizable.max_size,
                                          sizable.what, low_tokens, num_tokens - slack_tokens, num_tokens));
}

Result<std::string> DrawPassage(const Tokenizer& tokenizer, const TextSource& source, Rng& rng, int64_t num_tokens) {
  // Every attempt draws the same place, so that how many there are changes nothing after it.
  const uint64_t seed = rng.Below(std::numeric_limits<uint64_t>::max());
  constexpr int64_t kCutChars = 64;  // what a passage may be short of
  int64_t num_chars = num_tokens + kCutChars;
  while (true) {
    Rng passage_rng(seed);
    HW_ASSIGN_OR_RETURN(std::string text, source.Passage(passage_rng, num_chars));
    HW_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, tokenizer.Encode(text, SpecialText::kAsText));
    const auto found = static_cast<int64_t>(ids.size());
    if (found >= num_tokens) return text;
    // 3 % for parts of the text that have fewer tokens per character.
    const double chars_per_token =
        1.03 * static_cast<double>(num_chars) / static_cast<double>(std::max<int64_t>(found, 1));
    num_chars = std::max(num_chars + kCutChars,
                         static_cast<int64_t>(std::ceil(static_cast<double>(num_tokens) * chars_per_token)));
  }
}

Result<std::string> FitPassage(const Tokenizer& tokenizer, const TextSource& source, Rng& rng, int64_t num_tokens,
                               int64_t slack_tokens,
                               const std::function<Result<int64_t>(std::string_view passage)>& tokens_of) {
  HW_ASSIGN_OR_RETURN(const int64_t bare_tokens, tokens_of(""));
  std::string passage;
  if (num_tokens - bare_tokens > slack_tokens) {
    HW_ASSIGN_OR_RETURN(passage, DrawPassage(tokenizer, source, rng, num_tokens - bare_tokens));
  }
  const auto cut = [&](int64_t size) {
    return BoundaryBefore(passage, static_cast<size_t>(size), TextBoundary::kWord);
  };
  const Sizable sizable = {
      .max_size = static_cast<int64_t>(passage.size()),
      .num_tokens = [&](int64_t size) { return tokens_of(std::string_view(passage).substr(0, cut(size))); },
      .what = "bytes of text"};
  HW_ASSIGN_OR_RETURN(const int64_t size, FitSize(sizable, num_tokens, slack_tokens));
  passage.resize(cut(size));
  return passage;
}

}  // namespace headwise
