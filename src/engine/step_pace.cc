#include "engine/step_pace.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace headwise {
namespace {

// What is left of a step's weight when the next of its kind was learned: half of it after 23.
constexpr double kDecay = 0.97;
// A step counts as at most so many times what was expected, and at least that part of it.
constexpr double kMostSurprise = 2;
// So many are believed as they are.
constexpr int64_t kFirstSteps = 4;
// Keeps terms that no step had yet at 0.
constexpr double kRidge = 1e-9;
constexpr int kSweeps = 50;

}  // namespace

// In units that make costs of like size.
StepPredictor::Terms StepPredictor::TermsOf(const StepWork& work) {
  return {1, work.decode_rows, work.prefill_tokens / 64, work.decode_reads / 1e6, work.prefill_reads / 1e9};
}

void StepPredictor::Learn(const StepWork& work, double seconds) {
  const double expected = Predict(work);
  if (num_learned_ >= kFirstSteps && expected > 0) {
    seconds = std::clamp(seconds, expected / kMostSurprise, expected * kMostSurprise);
  }
  ++num_learned_;
  most_prefill_tokens_ = std::max(most_prefill_tokens_, work.prefill_tokens);
  Moments& moments = work.prefill_tokens > 0 ? with_prefill_ : without_;
  const Terms terms = TermsOf(work);
  // By what it has to do, not by what it took: else a machine that became slow would be overruled by its better days.
  const double size = std::accumulate(terms.begin(), terms.end(), 0.0);
  const double weight = 1 / (size * size);
  for (size_t i = 0; i < kNumTerms; ++i) {
    for (size_t j = 0; j < kNumTerms; ++j) {
      double& sum = moments.of_terms[i][j];
      sum = kDecay * sum + weight * terms[i] * terms[j];
    }
    moments.with_seconds[i] = kDecay * moments.with_seconds[i] + weight * terms[i] * seconds;
  }
  Solve();
}

// One cost after the other, the others held, none below 0: what least squares with that bound come to. It begins at
// what was known before, which is near.
void StepPredictor::Solve() {
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    for (size_t i = 0; i < kNumTerms; ++i) {
      const auto of_terms = [&](size_t j) { return with_prefill_.of_terms[i][j] + without_.of_terms[i][j]; };
      double rest = with_prefill_.with_seconds[i] + without_.with_seconds[i];
      for (size_t j = 0; j < kNumTerms; ++j) {
        if (j != i) rest -= of_terms(j) * costs_[j];
      }
      costs_[i] = std::max(0.0, rest / (of_terms(i) + kRidge));
    }
  }
}

double StepPredictor::Predict(const StepWork& work) const {
  const Terms terms = TermsOf(work);
  double seconds = 0;
  for (size_t i = 0; i < kNumTerms; ++i) seconds += costs_[i] * terms[i];
  return seconds;
}

int64_t PrefillWithin(double seconds, int64_t most, const StepPredictor& predictor,
                      const std::function<StepWork(int64_t budget)>& work_of) {
  const auto known = static_cast<int64_t>(2 * predictor.most_prefill_tokens());
  most = std::min(most, std::max(known, kLeastPrefill));
  if (most <= kLeastPrefill || predictor.Predict(work_of(most)) <= seconds) return most;
  int64_t fits = 1;  // times kLeastPrefill: taken in any case
  int64_t too_much = (most + kLeastPrefill - 1) / kLeastPrefill;
  while (too_much - fits > 1) {
    const int64_t middle = fits + (too_much - fits) / 2;
    (predictor.Predict(work_of(middle * kLeastPrefill)) <= seconds ? fits : too_much) = middle;
  }
  return fits * kLeastPrefill;
}

}  // namespace headwise
