#include "data/token_samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "data/fit_tokens.h"
#include "data/lines.h"

namespace headwise {
namespace {

constexpr int64_t kPasskeySlackTokens = 64;
constexpr int64_t kRecallSlackTokens = 96;
// Positions are int32; far above any context, so that sizes in bytes cannot overflow either.
constexpr int64_t kMaxTokens = int64_t{1} << 28;

Status CheckNumTokens(int64_t num_tokens, int64_t least) {
  if (num_tokens >= least && num_tokens <= kMaxTokens) return Status::Ok();
  return Status::InvalidInput(fmt::format("number of tokens is {}, expected {} to {}", num_tokens, least, kMaxTokens));
}

Result<TokenSample> EncodePrompt(const Tokenizer& tokenizer, std::string prompt, std::span<const int32_t> start_ids) {
  const PromptSegment segment = {.text = std::move(prompt), .is_answer = false};
  return EncodeSegments(tokenizer, std::span(&segment, 1), start_ids);
}

int64_t NumTokens(const TokenSample& sample) {
  return static_cast<int64_t>(sample.ids.size());
}

// The sample that `make` makes of as much of a passage as fits.
Result<TokenSample> FitFiller(const Tokenizer& tokenizer, const TextSource& source, Rng& rng, int64_t num_tokens,
                              int64_t slack_tokens, const std::function<Result<TokenSample>(std::string_view)>& make) {
  const auto tokens_of = [&](std::string_view passage) -> Result<int64_t> {
    HW_ASSIGN_OR_RETURN(const TokenSample sample, make(passage));
    return NumTokens(sample);
  };
  HW_ASSIGN_OR_RETURN(const std::string passage,
                      FitPassage(tokenizer, source, rng, num_tokens, slack_tokens, tokens_of));
  return make(passage);
}

// The first rows of a record, and a question for one of them.
Result<TokenSample> FitRows(double asked, int64_t num_tokens, const char* what,
                            const std::function<Result<TokenSample>(int64_t num_rows, int64_t asked_idx)>& make) {
  const auto make_sized = [&](int64_t size) {
    return make(size + 1, static_cast<int64_t>(asked * static_cast<double>(size + 1)));
  };
  const Sizable sizable = {.max_size = kMaxLines - 1,
                           .num_tokens = [&](int64_t size) -> Result<int64_t> {
                             HW_ASSIGN_OR_RETURN(const TokenSample sample, make_sized(size));
                             return NumTokens(sample);
                           },
                           .what = what};
  HW_ASSIGN_OR_RETURN(const int64_t size, FitSize(sizable, num_tokens, kRecallSlackTokens));
  return make_sized(size);
}

}  // namespace

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

Result<TokenSample> EncodeSegments(const Tokenizer& tokenizer, std::span<const PromptSegment> segments,
                                   std::span<const int32_t> start_ids) {
  TokenSample sample;
  sample.ids.assign(start_ids.begin(), start_ids.end());
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
                      EncodeSegments(tokenizer, MakePasskeyPrompt("", passkeys), options.start_ids));
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
    return EncodeSegments(tokenizer, MakePasskeyPrompt(filler, passkeys), options.start_ids);
  };
  return FitFiller(tokenizer, source, rng, options.num_tokens, kPasskeySlackTokens, make);
}

Result<TokenSample> MakeTextSample(const Tokenizer& tokenizer, const TextSource& source, Rng& rng,
                                   const TextSampleOptions& options) {
  HW_RETURN_IF_ERROR(CheckNumTokens(options.num_tokens, std::max<int64_t>(2, std::ssize(options.start_ids) + 1)));
  const auto num_before = static_cast<int64_t>(options.start_ids.size());
  HW_ASSIGN_OR_RETURN(const std::string passage, DrawPassage(tokenizer, source, rng, options.num_tokens - num_before));
  HW_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, tokenizer.Encode(passage, SpecialText::kAsText));
  TokenSample sample;
  sample.ids = options.start_ids;
  sample.ids.insert(sample.ids.end(), ids.begin(), ids.begin() + options.num_tokens - num_before);
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
      sample = FitRows(options.depth.value_or(rng.Uniform()), options.num_tokens, "further lines",
                       [&](int64_t num_lines, int64_t asked_idx) {
                         return EncodePrompt(tokenizer, MakeLineCase(record, num_lines, asked_idx).prompt,
                                             options.start_ids);
                       });
      break;
    }
    case RecallKind::kPasskey: {
      HiddenNumber hidden = DrawHiddenNumber(rng);
      if (options.depth) hidden.depth = *options.depth;
      sample = FitFiller(tokenizer, source, rng, options.num_tokens, kRecallSlackTokens, [&](std::string_view filler) {
        return EncodePrompt(tokenizer, MakeHiddenNumberPrompt(filler, hidden), options.start_ids);
      });
      break;
    }
    case RecallKind::kJsonKeys: {
      const JsonPairs pairs = DrawJsonPairs(rng, kMaxLines);
      sample = FitRows(options.depth.value_or(rng.Uniform()), options.num_tokens, "further keys",
                       [&](int64_t num_pairs, int64_t asked_idx) {
                         return EncodePrompt(tokenizer, MakeJsonPrompt(pairs, num_pairs, asked_idx), options.start_ids);
                       });
      break;
    }
  }
  if (!sample.ok()) return std::move(sample).status();
  return std::move(sample->ids);
}

}  // namespace headwise
