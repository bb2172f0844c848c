#include "backend/choose_experts.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace headwise {
namespace {

struct Ranked {
  double score;
  int32_t expert;
};

bool IsAbove(const Ranked& a, const Ranked& b) {
  return (std::isnan(a.score) && !std::isnan(b.score)) || a.score > b.score;
}

// Brings the `num` highest to the front, the highest first. The same steps as torch.topk, because what they do with
// equal scores follows from them: few of many are kept in a heap, others are parted at the last of them, which stays
// where it is, and those before it are sorted.
void Select(std::span<Ranked> ranked, size_t num) {
  constexpr size_t kMany = 64;
  const auto end = ranked.begin() + static_cast<std::ptrdiff_t>(num);
  if (num * kMany <= ranked.size()) {
    std::partial_sort(ranked.begin(), end, ranked.end(), IsAbove);
    return;
  }
  std::nth_element(ranked.begin(), end - 1, ranked.end(), IsAbove);
  std::sort(ranked.begin(), end - 1, IsAbove);
}

}  // namespace

void ChooseExperts(const ExpertsArgs& args, int64_t row, std::span<ChosenExpert> chosen) {
  const ExpertRouting& routing = args.routing;
  const size_t num_experts = args.experts.size();
  const float* const logits = static_cast<const float*>(args.logits.data) + row * args.logits.shape[1];
  const auto* const bias = static_cast<const float*>(routing.selection_bias.data);
  const bool is_softmax = routing.scores == ExpertRouting::Scores::kSoftmax;
  const double highest = *std::max_element(logits, logits + num_experts);
  // Of softmax, the numerator: its sum matters to those that are not normalised, and where a bias joins.
  const auto score_of = [&](size_t expert) {
    const double logit = logits[expert];
    return is_softmax ? std::exp(logit - highest) : 1.0 / (1.0 + std::exp(-logit));
  };
  double sum = 1.0;
  if (is_softmax && (bias != nullptr || !routing.normalised)) {
    sum = 0.0;
    for (size_t expert = 0; expert < num_experts; ++expert) sum += score_of(expert);
  }
  thread_local std::vector<Ranked> ranked;
  ranked.clear();
  for (size_t expert = 0; expert < num_experts; ++expert) {
    // Scores grow with their logits, which have no two that are rounded to one number.
    const double score = bias == nullptr ? logits[expert] : score_of(expert) / sum + bias[expert];
    ranked.push_back({score, static_cast<int32_t>(expert)});
  }
  Select(ranked, chosen.size());
  double divisor = sum;
  if (routing.normalised) {
    divisor = 0.0;
    for (size_t i = 0; i < chosen.size(); ++i) divisor += score_of(static_cast<size_t>(ranked[i].expert));
  }
  for (size_t i = 0; i < chosen.size(); ++i) {
    const double score = score_of(static_cast<size_t>(ranked[i].expert));
    chosen[i] = {ranked[i].expert, static_cast<float>(score / divisor * static_cast<double>(routing.scale))};
  }
}

}  // namespace headwise
