// How long a step takes, learned from those that ran, and how much of a prompt fits into one beside requests that
// decode, whose clients wait for its end.
#ifndef HEADWISE_ENGINE_STEP_PACE_H_
#define HEADWISE_ENGINE_STEP_PACE_H_

#include <array>
#include <cstdint>
#include <functional>

namespace headwise {

// What a step has to do, as far as its time depends on it.
struct StepWork {
  double decode_rows = 0;     // requests that read one token
  double prefill_tokens = 0;  // of those that read more
  double decode_reads = 0;    // KV bytes that the former read
  double prefill_reads = 0;   // KV bytes that the latter read, summed over their tokens
};

// Seconds as a sum of what each of these costs, and of a step's own beginning and end: least squares of errors
// relative to what there was to do, over the last few dozen steps, no cost below 0. Steps that read prompts and steps
// that do not are forgotten separately, so that a long answer does not make it forget what a prompt costs. A step that
// took more than twice what was expected, or less than half, counts as if it had been that: a machine that has
// something else to do for a moment changes little, one that stays slow is followed within a few dozen steps.
//
// Pure: knows no clock. Thread-safety: none.
class StepPredictor {
 public:
  // A step took `seconds` > 0.
  void Learn(const StepWork& work, double seconds);
  // 0 as long as nothing was learned.
  double Predict(const StepWork& work) const;
  // The most of a prompt that it knows a step of; 0: of none.
  double most_prefill_tokens() const { return most_prefill_tokens_; }

 private:
  static constexpr size_t kNumTerms = 5;
  using Terms = std::array<double, kNumTerms>;
  // Sums of weighted products over the steps of one kind.
  struct Moments {
    std::array<Terms, kNumTerms> of_terms{};
    Terms with_seconds{};
  };

  static Terms TermsOf(const StepWork& work);
  void Solve();

  Moments with_prefill_, without_;
  Terms costs_{};  // seconds
  int64_t num_learned_ = 0;
  double most_prefill_tokens_ = 0;
};

// Tokens of prompts for a step beside requests that decode: as many, up to `most`, as keep the step within `seconds`,
// in multiples of kLeastPrefill; kLeastPrefill in any case, or `most` where that is less, so that prompts get on.
// At most twice as many as any step had that `predictor` learned from: what it says of longer ones is a guess.
// `work_of` is what a step with such a budget does.
inline constexpr int64_t kLeastPrefill = 32;
int64_t PrefillWithin(double seconds, int64_t most, const StepPredictor& predictor,
                      const std::function<StepWork(int64_t budget)>& work_of);

}  // namespace headwise

#endif  // HEADWISE_ENGINE_STEP_PACE_H_
