// What plans, caches and weights of fewer bits were measured to cost: figures of the bundled model, and those that a
// plan file brings of its own. Nothing is guessed: where nobody measured there is no figure.
#ifndef HEADWISE_ENGINE_MEASURED_LOSS_H_
#define HEADWISE_ENGINE_MEASURED_LOSS_H_

#include <headwise/head_plan.h>
#include <headwise/status.h>

#include <algorithm>
#include <optional>
#include <string>

#include "backend/kv_format.h"
#include "kv/layer_windows.h"
#include "tensor/dtype.h"

namespace headwise {

// Shares, beside every head full in 16 bits. Each misses what the other shows: a window has nearly the perplexity of
// the whole text and answers nothing that has left it (docs/results.md).
struct MeasuredLoss {
  double perplexity = 0;  // by how much it rises: 0.01 is 1 %
  double answers = 0;     // of those about lines far away, how many are lost

  double worst() const { return std::max(perplexity, answers); }
  friend MeasuredLoss operator+(const MeasuredLoss& a, const MeasuredLoss& b) {
    return {.perplexity = a.perplexity + b.perplexity, .answers = a.answers + b.answers};
  }
};

// "2.10 % of perplexity, 1.0 % of answers", or "nothing".
std::string Describe(const MeasuredLoss& loss);

// Of a cache with every head in the format. Two formats cost at most what the coarser does.
MeasuredLoss LossOfCache(KvFormat format);
MeasuredLoss LossOfCache(const KvFormats& formats);

// Of matrices in the format; null where it was not measured.
std::optional<MeasuredLoss> LossOfWeights(DType type);

struct PlanLoss {
  std::optional<MeasuredLoss> loss;  // null: not known
  std::string from;                  // where it is from, or why it is not known
};

// Of a plan's report: what was measured under its rules.
inline constexpr const char* kMeasuredLossKey = "measured_loss";

// None of a plan whose heads are all full. Of others what its report says, {"measured_loss": {"perplexity": 0.064,
// "answers": 0, "from": "..."}}, or what plans of this method cost on the bundled model that kept as much as this one
// or, where none did, the next less: shares of the bytes of every head full, at 8,192 tokens. An error is a report that
// says it wrongly; `origin` opens it.
Result<PlanLoss> LossOfPlan(const HeadPlan& plan, const LayerWindows& windows, const std::string& origin);

}  // namespace headwise

#endif  // HEADWISE_ENGINE_MEASURED_LOSS_H_
