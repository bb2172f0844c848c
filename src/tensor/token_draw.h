// How a token is drawn from a row of logits: the definition that the engine's sampler and every backend share. All is
// settled in whole numbers (draw_weight.h), so that the same row and the same random word give the same id on any
// machine and any device.
//
// Ids stand in the order of their weights, of equal ones the lowest id first, and each limit keeps a beginning of that
// order, in turn [as Hugging Face's logits processors]: the top_k first; then as few as together have top_p of what is
// left; then those that weigh at least min_p times what the first does.
#ifndef HEADWISE_TENSOR_TOKEN_DRAW_H_
#define HEADWISE_TENSOR_TOKEN_DRAW_H_

#include <cstdint>
#include <span>

namespace headwise {

// A logit that is changed first: x += bias; x = x > 0 ? x / penalty : x * penalty; x -= minus. In this order.
struct LogitEdit {
  int32_t id = 0;
  float bias = 0;
  float penalty = 1;
  float minus = 0;
};

// The most that TokenDraw::num_top may ask for.
inline constexpr int64_t kMaxDrawnTop = 256;

struct TokenDraw {
  float temperature = 0;                  // 0: the first of the highest
  int64_t top_k = 0;                      // 0: off
  float top_p = 1;                        // 1: off
  float min_p = 0;                        // 0: off
  uint64_t word = 0;                      // at random, all values alike
  std::span<const LogitEdit> edits = {};  // each id once
  // Log-probabilities of the most likely ids that are wanted beside the drawn one's; -1: not even that.
  int64_t num_top = -1;
};

// The limits as whole numbers.
struct DrawLimits {
  float scale = 0;            // DrawScale(temperature); 0: the first of the highest
  int64_t count = INT64_MAX;  // top_k
  uint64_t share = 0;         // top_p in 2^-64 of the weights; 0: all
  uint64_t least = 1;         // the least weight
};
DrawLimits LimitsOf(const TokenDraw& draw);

void EditLogits(std::span<float> logits, std::span<const LogitEdit> edits);

// Of logits [V] that are edited already. NaN is never drawn while another is there; where the highest is not finite it
// is drawn. Requires: 1 <= V <= kMaxDrawIds (draw_weight.h).
int32_t DrawToken(std::span<const float> logits, const TokenDraw& draw);

}  // namespace headwise

#endif  // HEADWISE_TENSOR_TOKEN_DRAW_H_
