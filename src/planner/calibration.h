// What a planner needs to run a model on texts: the model in host memory, its tokenizer, and calibration samples by the
// options of the command line.
#ifndef HEADWISE_PLANNER_CALIBRATION_H_
#define HEADWISE_PLANNER_CALIBRATION_H_

#include <headwise/status.h>
#include <headwise/tokenizer.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "data/filler.h"
#include "data/token_samples.h"
#include "model/model.h"
#include "planner/planner.h"

namespace headwise {

struct PlannerModel {
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Model> model;
  std::unique_ptr<Tokenizer> tokenizer;
  std::vector<int32_t> start_ids;  // what a text begins with
  int num_threads = 1;
  Compute compute = Compute::kF32;  // of products with weights, as GradDecoder takes it
};

// "compute": f32, or bf16.
Result<Compute> ReadGradCompute(const NamedOptions& options);

// Loads input.model. Errors: those of loading, a model without gradients, a model without a tokenizer.
Result<PlannerModel> OpenPlannerModel(const PlannerInput& input);

// The options that ReadCalibration reads.
inline constexpr std::string_view kCalibrationOptions[] = {"data",        "text",     "min-tokens",    "max-tokens",
                                                           "num-lengths", "passkeys", "passkey-words", "seed"};

struct CalibrationOptions {
  enum class Data { kPasskeys, kText } data = Data::kPasskeys;
  std::string text_file;           // empty: generated prose
  std::vector<int64_t> lengths;    // tokens, an even grid from min to max
  int64_t num_passkeys = 10;       // [duo §2.2]
  int64_t words_per_passkey = 32;  // [duo §2.2]
  uint64_t seed = 0;
};

inline constexpr int64_t kDefaultMaxTokens = 32'000;

// Without --max-tokens the longest sample has default_max_tokens, or the model's trained length where that is less.
// Lengths are checked against the model's trained length and, for passkeys, against what the passkeys alone take.
Result<CalibrationOptions> ReadCalibration(const PlannerInput& input, const PlannerModel& model,
                                           int64_t default_max_tokens = kDefaultMaxTokens);

// Samples that depend on (seed, index) alone, so that a resumed run draws the same ones.
class CalibrationSamples {
 public:
  static Result<CalibrationSamples> Open(const PlannerModel& model, CalibrationOptions options);

  // Passkey samples label the answers' tokens, text samples every token. Errors: a text that is too short.
  Result<TokenSample> Make(uint64_t index) const;
  int64_t max_tokens() const { return options_.lengths.back(); }
  // Of the text that samples are cut from; the rest of what they depend on are options.
  std::string DataHash() const { return text_.Hash(); }
  const CalibrationOptions& options() const { return options_; }

 private:
  CalibrationSamples(const PlannerModel& model, CalibrationOptions options, TextSource text)
      : model_(&model), options_(std::move(options)), text_(std::move(text)) {}

  const PlannerModel* model_;
  CalibrationOptions options_;
  TextSource text_;
};

}  // namespace headwise

#endif  // HEADWISE_PLANNER_CALIBRATION_H_
