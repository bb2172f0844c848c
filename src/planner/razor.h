// RazorAttention's retrieval heads [razor §3]: scores from one forward pass over repeated random tokens, or, for ALiBi
// models, the distance beyond which a head cannot see, from its weights alone. Nothing is trained.
#ifndef HEADWISE_PLANNER_RAZOR_H_
#define HEADWISE_PLANNER_RAZOR_H_

#include <headwise/status.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/rng.h"
#include "grad/grad_decoder.h"
#include "model/model.h"

namespace headwise {

// [razor §3.3]: 4 repetitions of K tokens.
inline constexpr int64_t kRazorRepetitions = 4;
inline constexpr int64_t kRazorMaxTokens = 2500;

// K = min(2500, trained length / 4, vocabulary / 2): a quarter of the trained length, or the last repetition would lie
// outside it, but for the place of what a text begins with; where positions are learned that must be inside as well.
int64_t RazorTokensPerRepetition(const ModelConfig& config);

// `start_ids`, then K distinct ids for which `is_ordinary` is true, 4 times. An error if there
// are not K such ids.
Result<std::vector<int32_t>> MakeRepeatedTokens(int64_t tokens_per_repetition, int64_t vocab_size,
                                                const std::function<bool(int32_t)>& is_ordinary,
                                                std::span<const int32_t> start_ids, Rng& rng);

struct RetrievalScores {
  std::vector<double> echo;       // [L * Hq] attention to earlier tokens equal to the query's
  std::vector<double> induction;  // [L * Hq] attention to the tokens right after those
};

// Mean over the queries of repetitions 2 to 4. `ids` from MakeRepeatedTokens; `on_layer` after every layer.
RetrievalScores ScoreRepeatedTokens(GradDecoder<float>& decoder, const std::vector<int32_t>& ids,
                                    int64_t tokens_per_repetition, const std::function<void(int64_t)>& on_layer);

// The heads that a share of the scores protects: per KV head, true if any of its query heads is among the
// `num_induction` highest induction scores or the `num_echo` highest echo scores. Ties go to the earlier layer, then
// the lower head.
std::vector<bool> ProtectedHeads(const RetrievalScores& scores, const ModelShape& shape, int64_t num_induction,
                                 int64_t num_echo);

// L_h of every query head of an ALiBi model, in tokens, rounded up [razor §3.1 eq.2]: beyond it no attention weight
// exceeds epsilon. Requires: positions == kAlibi; a norm before attention and none of queries and keys; weights in host
// memory.
std::vector<int64_t> AlibiScopes(const Model& model, double epsilon);

}  // namespace headwise

#endif  // HEADWISE_PLANNER_RAZOR_H_
