// Prompts of data/ as token ids of an exact length, with the positions that count in a loss: what planners calibrate
// on.
#ifndef HEADWISE_DATA_TOKEN_SAMPLES_H_
#define HEADWISE_DATA_TOKEN_SAMPLES_H_

#include <headwise/status.h>
#include <headwise/tokenizer.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/rng.h"
#include "data/filler.h"
#include "data/passkeys.h"
#include "data/recall_prompts.h"

namespace headwise {

struct TokenSample {
  std::vector<int32_t> ids;
  // Ascending positions t whose next token, ids[t + 1], belongs to an answer: the positions whose output is compared.
  std::vector<int32_t> labels;
};

// `start_ids` first, then the parts as they stand in one text. Text is never read as a special token.
Result<TokenSample> EncodeSegments(const Tokenizer& tokenizer, std::span<const PromptSegment> segments,
                                   std::span<const int32_t> start_ids);

struct PasskeySampleOptions {
  int64_t num_tokens = 0;
  int64_t num_passkeys = 10;
  int64_t words_per_passkey = 32;
  std::vector<int32_t> start_ids = {};  // what a text begins with
};

// The ids of a part that does not begin the text. SentencePiece marks the first word of whatever it is given as if a
// space stood before it; behind a letter, white space is cut off on its own by every tokenizer we read.
Result<std::vector<int32_t>> EncodeLaterPart(const Tokenizer& tokenizer, std::string_view text);

// The fewest tokens for which MakePasskeySample has room, whichever words it draws; num_tokens is not read.
Result<int64_t> MinPasskeyTokens(const Tokenizer& tokenizer, const PasskeySampleOptions& options);

// A multi-passkey prompt with all its answers, which are labelled: num_tokens long, or up to 64 tokens shorter. An
// error if num_tokens is under MinPasskeyTokens: the passkeys asked for are never made fewer or shorter.
Result<TokenSample> MakePasskeySample(const Tokenizer& tokenizer, const TextSource& source, Rng& rng,
                                      const PasskeySampleOptions& options);

struct TextSampleOptions {
  int64_t num_tokens = 0;
  std::vector<int32_t> start_ids = {};  // what a text begins with
};

// Plain text for next-token prediction, exactly num_tokens long; every position but the last is labelled.
Result<TokenSample> MakeTextSample(const Tokenizer& tokenizer, const TextSource& source, Rng& rng,
                                   const TextSampleOptions& options);

struct RecallPromptOptions {
  RecallKind kind = RecallKind::kLines;
  int64_t num_tokens = 0;
  std::optional<double> depth = std::nullopt;  // of what is asked for, from 0 to 1 (exclusive); none: anywhere
  std::vector<int32_t> start_ids = {};         // what a text begins with
};

// A prompt without its answer, num_tokens long, or up to 96 tokens shorter. An error if num_tokens is too few for the
// question, or more than the kind's material gives.
Result<std::vector<int32_t>> MakeRecallPromptIds(const Tokenizer& tokenizer, const TextSource& source, Rng& rng,
                                                 const RecallPromptOptions& options);

}  // namespace headwise

#endif  // HEADWISE_DATA_TOKEN_SAMPLES_H_
