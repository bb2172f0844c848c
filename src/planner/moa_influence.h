// What each rule would cost each head [moa §4.1]: the loss of the answer that the dense model itself gave, less of
// which the head reads. MoA predicts it by the first-order change of that loss. Where the model is certain of its
// answer, this all but vanishes, however much the answer rests on what is hidden; so there are others, which do not.
#ifndef HEADWISE_PLANNER_MOA_INFLUENCE_H_
#define HEADWISE_PLANNER_MOA_INFLUENCE_H_

#include <headwise/head_plan.h>

#include <cstdint>
#include <span>
#include <vector>

#include "data/token_samples.h"
#include "grad/grad_decoder.h"

namespace headwise {

struct InfluenceOptions {
  enum class Kind {
    kFirstOrder,  // the slope of the loss where nothing is hidden [moa §4.1 eq.3]
    kMargin,      // the same of the margin between the answer and the next best, in logits
    kIntegrated,  // the mean slope of the loss on the way from every head reading all to every head reading as little
                  // as the narrowest rule lets it (integrated gradients)
    kMeasured,    // the loss with that head's rule and all others full, less the dense loss (ablation)
  } kind = Kind::kFirstOrder;
  int64_t num_points = 2;  // kIntegrated: the middles of as many equal parts of the way
};

// What a text's influence says of every rule: [L * Hkv * rules], the loss by which the answer gets worse when the KV
// head's query heads are masked so [moa §4.1 eq.4]. `loss` is the dense model's NLL.
struct SampleInfluence {
  double loss = 0;
  std::vector<double> rule_losses;
};
SampleInfluence ProfileSample(GradDecoder<float>& decoder, const TokenSample& sample, std::span<const HeadRule> rules,
                              const InfluenceOptions& options = {});

// The influence that a rule hides: distances of at least its window. `distances` as Influence::By::kDistance, of one or
// several query heads; of a block of distances that the window's edge cuts, the hidden share.
double HiddenLoss(std::span<const double> distances, const ResolvedRule& rule);

}  // namespace headwise

#endif  // HEADWISE_PLANNER_MOA_INFLUENCE_H_
