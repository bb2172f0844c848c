// What a load run asks: prompts made from a seed, of random tokens or words behind beginnings that they share, or read
// from a file.
#ifndef HEADWISE_LOADGEN_LOAD_PROMPTS_H_
#define HEADWISE_LOADGEN_LOAD_PROMPTS_H_

#include <headwise/status.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/rng.h"

namespace headwise {

struct LoadPrompt {
  Json prompt;                // a text or a list of token ids, as the request has it
  int64_t num_ids = 0;        // of a list; 0: a text
  int64_t output_tokens = 0;  // max_tokens
};

struct RandomPromptOptions {
  int64_t input_tokens = 1024;  // behind the shared beginning
  int64_t output_tokens = 128;
  // Lengths are drawn from [length x (1 - ratio), length x (1 + ratio)], all equally likely, at least 1. [0, 1)
  double range_ratio = 0;
  int64_t prefix_tokens = 0;  // of each shared beginning
  int64_t num_prefixes = 1;   // different ones; a request has one of them, all equally likely
  uint64_t seed = 0;
};

// Prompts by number. Request i has the same prompt whatever was asked for before it.
class RandomPrompts {
 public:
  // `pool`: ids to draw from. Empty: prompts are texts of as many words as tokens were asked for.
  RandomPrompts(const RandomPromptOptions& options, std::vector<int32_t> pool);

  LoadPrompt Make(int64_t request) const;
  // One of a request's length that begins as none of them does, for what should leave nothing behind that they find.
  LoadPrompt MakeWarmup(int64_t number) const;

 private:
  LoadPrompt Draw(Rng& rng, const std::vector<int32_t>& prefix_places) const;
  // Places in the pool or in the list of words.
  std::vector<int32_t> DrawPlaces(Rng& rng, int64_t count) const;

  RandomPromptOptions options_;
  std::vector<int32_t> pool_;
  std::vector<std::vector<int32_t>> prefixes_;
};

// A JSON object a line: "prompt" (a text or a list of token ids) and where it has its own "max_tokens"; others get
// `output_tokens`. Other keys are passed over. At least one. Errors name the origin and the line.
Result<std::vector<LoadPrompt>> ParseLoadPrompts(std::string_view text, const std::string& origin,
                                                 int64_t output_tokens);

// Plain text with many different tokens, for a server to tell the ids of.
std::string TextOfManyTokens();
// The different ids in the answer of /tokenize, in vLLM's, llama.cpp's or headwise's form; empty where it has none.
std::vector<int32_t> IdsOfTokenizeReply(std::string_view body);

}  // namespace headwise

#endif  // HEADWISE_LOADGEN_LOAD_PROMPTS_H_
