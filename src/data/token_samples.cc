#include "data/token_samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "data/lines.h"

namespace headwise {
namespace {

constexpr int64_t kPasskeySlackTokens = 64;
constexpr int64_t kRecallSlackTokens = 96;
// Positions are int32; far above any context, so that sizes in bytes cannot overflow either.
constexpr int64_t kMaxTokens = int64_t{1} << 28;

// The ids of a part that does not begin the text. SentencePiece marks the first word of whatever it is given as if a
// space stood before it; behind a letter, white space is cut off on its own by every tokenizer we read.
Result<std::vector<int32_t>> EncodeLaterPart(const Tokenizer& tokenizer, std::string_view text) {
  constexpr std::string_view kBefore = "a";
  HW_ASSIGN_OR_RETURN(const std::vector<int32_t> before, tokenizer.Encode(kBefore, SpecialText::kAsText));
  HW_ASSIGN_OR_RETURN(std::vector<int32_t> ids,
                      tokenizer.Encode(std::string(kBefore) + std::string(text), SpecialText::kAsText));
  if (ids.size() > before.size() && std::equal(before.begin(), before.end(), ids.begin())) {
    ids.erase(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(before.size()));
    return ids;
  }
  return tokenizer.Encode(text, SpecialText::kAsText);
}

Status CheckNumTokens(int64_t num_tokens, int64_t least) {
  if (num_tokens >= least && num_tokens <= kMaxTokens) return Status::Ok();
  return Status::InvalidInput(fmt::format("number of tokens is {}, expected {} to {}", num_tokens, least, kMaxTokens));
}

Result<TokenSample> EncodePrompt(const Tokenizer& tokenizer, std::string prompt, std::optional<int32_t> bos_id) {
  const PromptSegment segment = {.text = std::move(prompt), .is_answer = false};
  return EncodeSegments(tokenizer, std::span(&segment, 1), bos_id);
}

// A sample that can be made in any size from 0 to max_size; its tokens grow with the size, steadily but for a few.
struct Sizable {
  int64_t max_size = 0;
  std::function<Result<TokenSample>(int64_t size)> make;
  const char* what = "";  // of what there is max_size, for the error
};

// The sample of num_tokens, or up to slack_tokens fewer.
Result<TokenSample> FitTokens(const Sizable& sizable, int64_t num_tokens, int64_t slack_tokens) {
  const auto size_of = [](const TokenSample& sample) { return static_cast<int64_t>(sample.ids.size()); };
  const auto fits = [&](int64_t n) { return n <= num_tokens && n >= num_tokens - slack_tokens; };
  HW_ASSIGN_OR_RETURN(TokenSample sample, sizable.make(0));
  const int64_t base_tokens = size_of(sample);
  if (base_tokens > num_tokens) {
    return Status::InvalidInput(
        fmt::format("{} tokens needed without any {}, expected at most {}", base_tokens, sizable.what, num_tokens));
  }
  if (fits(base_tokens)) return sample;

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
    HW_ASSIGN_OR_RETURN(sample, sizable.make(size));
    const int64_t found = size_of(sample);
    if (fits(found)) return sample;
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

struct Filler {
  std::string text;
  std::vector<int32_t> ids;  // of `text` alone
};

// A passage of at least num_tokens tokens, and not many more.
Result<Filler> DrawFiller(const Tokenizer& tokenizer, const TextSource& source, Rng& rng, int64_t num_tokens) {
  // Every attempt draws the same place, so that how many there are changes nothing after it.
  const uint64_t seed = rng.Below(std::numeric_limits<uint64_t>::max());
  constexpr int64_t kCutChars = 64;  // what a passage may be short of
  int64_t num_chars = num_tokens + kCutChars;
  while (true) {
    Rng passage_rng(seed);
    Filler filler;
    HW_ASSIGN_OR_RETURN(filler.text, source.Passage(passage_rng, num_chars));
    HW_ASSIGN_OR_RETURN(filler.ids, tokenizer.Encode(filler.text, SpecialText::kAsText));
    const auto found = static_cast<int64_t>(filler.ids.size());
    if (found >= num_tokens) return filler;
    // 3 % for parts of the text that have fewer tokens per character.
    const double chars_per_token =
        1.03 * static_cast<double>(num_chars) / static_cast<double>(std::max<int64_t>(found, 1));
    num_chars = std::max(num_chars + kCutChars,
                         static_cast<int64_t>(std::ceil(static_cast<double>(num_tokens) * chars_per_token)));
  }
}

// The sample that `make` makes of as much of a passage as fits.
Result<TokenSample> FitFiller(const Tokenizer& tokenizer, const TextSource& source, Rng& rng, int64_t num_tokens,
                              int64_t slack_tokens, const std::function<Result<TokenSample>(std::string_view)>& make) {
  HW_ASSIGN_OR_RETURN(const TokenSample bare, make(""));
  const int64_t num_missing = num_tokens - static_cast<int64_t>(bare.ids.size());
  Filler filler;
  if (num_missing > slack_tokens) {
    HW_ASSIGN_OR_RETURN(filler, DrawFiller(tokenizer, source, rng, num_missing));
  }
  const std::string_view text = filler.text;
  const Sizable sizable = {
      .max_size = static_cast<int64_t>(text.size()),
      .make =
          [&](int64_t size) {
            return make(text.substr(0, BoundaryBefore(text, static_cast<size_t>(size), TextBoundary::kWord)));
          },
      .what = "bytes of text"};
  return FitTokens(sizable, num_tokens, slack_tokens);
}

// The first rows of a record, and a question for one of them.
Result<TokenSample> FitRows(Rng& rng, int64_t num_tokens, const char* what,
                            const std::function<Result<TokenSample>(int64_t num_rows, int64_t asked_idx)>& make) {
  const double asked = rng.Uniform();
  const Sizable sizable = {
      .max_size = kMaxLines - 1,
      .make = [&](int64_t size) { return make(size + 1, static_cast<int64_t>(asked * static_cast<double>(size + 1))); },
      .what = what};
  return FitTokens(sizable, num_tokens, kRecallSlackTokens);
}

}  // namespace

Result<TokenSample> EncodeSegments(const Tokenizer& tokenizer, std::span<const PromptSegment> segments,
                                   std::optional<int32_t> bos_id) {
  TokenSample sample;
  if (bos_id) sample.ids.push_back(*bos_id);
  bool first = true;
  for (const PromptSegment& segment : segments) {
    HW_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, first ? tokenizer.Encode(segment.text, SpecialText::kAsText)
                                                              : EncodeLaterPart(tokenizer, segment.text));
    first = false;
    if (segment.is_answer) {
      for (size_t i = 0; i < ids.size(); ++i) {
        const auto pos = static_cast<int32_t>(sample.ids.size() + i);
        if (pos > 0) sample.labels.push_back(pos - 1);  // nothing predicts the very first token
      }
    }
    sample.ids.insert(sample.ids.end(), ids.begin(), ids.end());
  }
  return sample;
}

Result<int64_t> MinPasskeyTokens(const Tokenizer& tokenizer, const PasskeySampleOptions& options) {
  const PasskeyOptions passkey_options = {.num_passkeys = options.num_passkeys,
                                          .words_per_passkey = options.words_per_passkey};
  HW_RETURN_IF_ERROR(ValidatePasskeyOptions(passkey_options));
  std::string_view longest;
  size_t longest_tokens = 0;
  for (const std::string_view word : PasskeyWords()) {
    HW_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, EncodeLaterPart(tokenizer, " " + std::string(word)));
    if (ids.size() > longest_tokens) {
      longest = word;
      longest_tokens = ids.size();
    }
  }
  Passkey passkey;
  for (int64_t i = 0; i < options.words_per_passkey; ++i) {
    if (i > 0) passkey.words += ' ';
    passkey.words += longest;
  }
  const std::vector<Passkey> passkeys(static_cast<size_t>(options.num_passkeys), passkey);
  HW_ASSIGN_OR_RETURN(const TokenSample sample,
                      EncodeSegments(tokenizer, MakePasskeyPrompt("", passkeys), options.bos_id));
  return static_cast<int64_t>(sample.ids.size());
}

Result<TokenSample> MakePasskeySample(const Tokenizer& tokenizer, const TextSource& source, Rng& rng,
                                      const PasskeySampleOptions& options) {
  HW_ASSIGN_OR_RETURN(const int64_t min_tokens, MinPasskeyTokens(tokenizer, options));
  if (options.num_tokens < min_tokens) {
    return Status::InvalidInput(fmt::format("{} tokens for {} passkeys of {} words, expected {} or more",
                                            options.num_tokens, options.num_passkeys, options.words_per_passkey,
                                            min_tokens));
  }
  HW_RETURN_IF_ERROR(CheckNumTokens(options.num_tokens, min_tokens));
  const std::vector<Passkey> passkeys =
      DrawPasskeys(rng, {.num_passkeys = options.num_passkeys, .words_per_passkey = options.words_per_passkey});
  const auto make = [&](std::string_view filler) {
    return EncodeSegments(tokenizer, MakePasskeyPrompt(filler, passkeys), options.bos_id);
  };
  return FitFiller(tokenizer, source, rng, options.num_tokens, kPasskeySlackTokens, make);
}

Result<TokenSample> MakeTextSample(const Tokenizer& tokenizer, const TextSource& source, Rng& rng,
                                   const TextSampleOptions& options) {
  HW_RETURN_IF_ERROR(CheckNumTokens(options.num_tokens, 2));
  const int64_t num_before = options.bos_id ? 1 : 0;
  HW_ASSIGN_OR_RETURN(const Filler filler, DrawFiller(tokenizer, source, rng, options.num_tokens - num_before));
  TokenSample sample;
  if (options.bos_id) sample.ids.push_back(*options.bos_id);
  sample.ids.insert(sample.ids.end(), filler.ids.begin(),
                    filler.ids.begin() + static_cast<std::ptrdiff_t>(options.num_tokens - num_before));
  for (int64_t pos = 0; pos + 1 < options.num_tokens; ++pos) sample.labels.push_back(static_cast<int32_t>(pos));
  return sample;
}

Result<std::vector<int32_t>> MakeRecallPromptIds(const Tokenizer& tokenizer, const TextSource& source, Rng& rng,
                                                 const RecallPromptOptions& options) {
  HW_RETURN_IF_ERROR(CheckNumTokens(options.num_tokens, 1));
  Result<TokenSample> sample = TokenSample();
  switch (options.kind) {
    case RecallKind::kLines: {
      const LineRecord record = DrawLineRecord(rng, kMaxLines);
      sample = FitRows(rng, options.num_tokens, "further lines", [&](int64_t num_lines, int64_t asked_idx) {
        return EncodePrompt(tokenizer, MakeLineCase(record, num_lines, asked_idx).prompt, options.bos_id);
      });
      break;
    }
    case RecallKind::kPasskey: {
      const HiddenNumber hidden = DrawHiddenNumber(rng);
      sample = FitFiller(tokenizer, source, rng, options.num_tokens, kRecallSlackTokens, [&](std::string_view filler) {
        return EncodePrompt(tokenizer, MakeHiddenNumberPrompt(filler, hidden), options.bos_id);
      });
      break;
    }
    case RecallKind::kJsonKeys: {
      const JsonPairs pairs = DrawJsonPairs(rng, kMaxLines);
      sample = FitRows(rng, options.num_tokens, "further keys", [&](int64_t num_pairs, int64_t asked_idx) {
        return EncodePrompt(tokenizer, MakeJsonPrompt(pairs, num_pairs, asked_idx), options.bos_id);
      });
      break;
    }
  }
  if (!sample.ok()) return std::move(sample).status();
  return std::move(sample->ids);
}

}  // namespace headwise
