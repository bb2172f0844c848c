// FastGen's profile [fastgen §3]: how much of each head's attention the policies of its hierarchy would keep.
#ifndef HEADWISE_PLANNER_FASTGEN_H_
#define HEADWISE_PLANNER_FASTGEN_H_

#include <headwise/head_plan.h>
#include <headwise/tokenizer.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/kv_step.h"
#include "grad/grad_decoder.h"

namespace headwise {

// The hierarchy, each keeping what the ones before it keep; what keeps everything is the policy behind these.
enum class FastGenPolicy : uint8_t { kSpecial, kPunctuation, kFrequent, kLocal, kFull };
inline constexpr size_t kNumFastGenCuts = 4;  // all but kFull

struct FastGenOptions {
  double frequent_share = 0.3;  // r_f, of the text: the tokens with the highest summed attention
  double local_share = 0.3;     // r_l, of the text: the newest tokens before each query
};

// The tokenizer's special tokens, and those that are nothing but punctuation and white space.
TokenLists ListTokens(const Tokenizer& tokenizer);

// The share of its attention that a KV head keeps under each policy, over all queries of its group: [kNumFastGenCuts],
// ascending. Marks [N].
using FastGenRecovery = std::array<double, kNumFastGenCuts>;
FastGenRecovery RecoveryOf(const AttentionView<float>& view, int64_t kv_head, std::span<const TokenMark> marks,
                           const FastGenOptions& options);

// Lengths of what the policies keep, in a text of N tokens: `special` tokens, and shares of N.
struct FastGenSizes {
  double special = 0;      // tokens
  double punctuation = 0;  // of N
};

// A head under `policy`: a span of that size, chosen by TokenSelector::Kind::kFastGen from the end of the prompt on.
HeadRule FastGenRule(FastGenPolicy policy, const FastGenSizes& sizes, const FastGenOptions& options);

// The first policy that keeps at least `threshold` of the head's attention.
FastGenPolicy CheapestPolicy(const FastGenRecovery& recovery, double threshold);

}  // namespace headwise

#endif  // HEADWISE_PLANNER_FASTGEN_H_
