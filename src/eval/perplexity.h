// Perplexity: how well a model under a plan predicts a text it is fed token by token.
#ifndef HEADWISE_EVAL_PERPLEXITY_H_
#define HEADWISE_EVAL_PERPLEXITY_H_

#include <headwise/engine.h>
#include <headwise/status.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace headwise {

// -log softmax(logits)[target], in double. Requires: target in [0, V).
double NegativeLogLikelihood(std::span<const float> logits, int32_t target);

struct PerplexityOptions {
  std::shared_ptr<const HeadPlan> plan;  // null: every head full
  std::span<const int32_t> ids;          // at least two; every id but the first is predicted from those before it
  int64_t prompt_tokens = -1;            // where the prompt ends, for rules that ask; -1: with the text
  // Tokens before this one are read but not scored: what a rule "from the end of the prompt" costs shows after it.
  int64_t score_from = 1;
  std::function<void(int64_t num_read)> on_progress = {};
  std::function<void(int64_t position, double nll)> on_token = {};  // of every scored token, by its own position
};

// Mean NLL by position, in at most kCurvePoints blocks of equal size.
class NllCurve {
 public:
  static constexpr int64_t kCurvePoints = 64;

  explicit NllCurve(int64_t num_tokens) : block_tokens_((num_tokens + kCurvePoints - 1) / kCurvePoints) {}
  void Add(int64_t position, double nll);
  // (position of the block's last token, mean).
  std::vector<std::pair<double, double>> Points() const;

 private:
  int64_t block_tokens_;
  std::map<int64_t, std::pair<double, int64_t>> blocks_;  // sum and count
};

struct PerplexityResult {
  int64_t num_predicted = 0;
  double nll = 0;  // mean over the predicted tokens, in nats
  double ppl = 0;  // exp(nll)
  int64_t kv_bytes = 0;
  int64_t kv_peak_bytes = 0;
};

// An error if the model's output is not a number somewhere: a mean that hides it would be worthless.
Result<PerplexityResult> MeasurePerplexity(Engine& engine, const PerplexityOptions& options);

}  // namespace headwise

#endif  // HEADWISE_EVAL_PERPLEXITY_H_
