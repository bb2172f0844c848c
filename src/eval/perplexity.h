// Perplexity: how well a model under a plan predicts a text it is fed token by token.
#ifndef HEADWISE_EVAL_PERPLEXITY_H_
#define HEADWISE_EVAL_PERPLEXITY_H_

#include <headwise/engine.h>
#include <headwise/status.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

namespace headwise {

// -log softmax(logits)[target], in double. Requires: target in [0, V).
double NegativeLogLikelihood(std::span<const float> logits, int32_t target);

struct PerplexityOptions {
  std::shared_ptr<const HeadPlan> plan;  // null: every head full
  std::span<const int32_t> ids;          // at least two; every id but the first is predicted from those before it
  int64_t prompt_tokens = -1;            // read as a prompt, in chunks; the rest as decode steps; -1: all
  std::function<void(int64_t num_read)> on_progress;
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
