// Calibration by the model's own answers [moa §5]: long prompts with a far-away answer, answered greedily by the dense
// model. Wrong answers are kept: what counts is what the model does, not whether it is right. Also the measured loss of
// a plan on such answers.
#ifndef HEADWISE_PLANNER_ANSWERS_H_
#define HEADWISE_PLANNER_ANSWERS_H_

#include <headwise/engine.h>
#include <headwise/status.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "data/filler.h"
#include "data/token_samples.h"
#include "planner/calibration.h"

namespace headwise {

struct AnswerOptions {
  enum class Data {
    kRecall,  // questions whose answer is far away [moa §5]
    kText,    // plain text, which the model goes on with: the calibration that the paper finds wanting [moa table 2]
  } data = Data::kRecall;
  std::string text_file;    // around what is asked for; empty: generated
  std::string prompt_file;  // JSONL of {"prompt": ...} in place of our generators; empty: ours
  int64_t max_answer_tokens = 48;
  uint64_t seed = 0;
};

class AnswerSource {
 public:
  static Result<AnswerSource> Open(const PlannerInput& input, const PlannerModel& model, const AnswerOptions& options);

  // Prompt `idx` for texts of `num_tokens`, answer included, with the answer's positions labelled; depends on (seed,
  // num_tokens, idx) alone. Of a user's prompts those count that are longer than half of it. Answers are kept, so that
  // asking again is free. An error if there is no prompt of that length.
  Result<TokenSample> Make(int64_t num_tokens, int64_t idx);

  // Mean over the samples of the mean NLL of their labelled tokens under a plan (null: every head full).
  Result<double> MeanLoss(const std::vector<TokenSample>& samples, const std::shared_ptr<const HeadPlan>& plan);

  std::string DataHash() const { return data_hash_; }
  // Seconds spent on answers since the last call.
  double TakeAnswerSeconds() { return std::exchange(answer_seconds_, 0.0); }

 private:
  AnswerSource(const PlannerModel& model, const AnswerOptions& options, TextSource text)
      : model_(&model), options_(options), text_(std::move(text)) {}
  Result<std::vector<int32_t>> MakePrompt(int64_t num_tokens, int64_t idx) const;

  const PlannerModel* model_;
  AnswerOptions options_;
  TextSource text_;
  std::string data_hash_;
  std::unique_ptr<Engine> engine_;
  std::vector<std::vector<int32_t>> prompts_;  // a user's
  std::map<std::pair<int64_t, int64_t>, TokenSample> made_;
  double answer_seconds_ = 0;
};

}  // namespace headwise

#endif  // HEADWISE_PLANNER_ANSWERS_H_
