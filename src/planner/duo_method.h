// DuoAttention's gates as planners use them: trained with the command line's options, or read from an earlier run's
// plan. ZigZagAttention starts from the same.
#ifndef HEADWISE_PLANNER_DUO_METHOD_H_
#define HEADWISE_PLANNER_DUO_METHOD_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "planner/calibration.h"
#include "planner/duo.h"
#include "planner/planner.h"
#include "planner/run_log.h"

namespace headwise {

struct GateRun {
  std::vector<double> gates;  // [L * Hkv]
  std::optional<std::string> data_hash;
  std::optional<uint64_t> seed;
  Json report = Json::object();  // "training": what the training measured
  std::vector<std::string> notes;
};

// The options of training, calibration's included.
inline constexpr std::string_view kTrainingOptions[] = {"steps",      "batch",        "learning-rate", "lambda",
                                                        "train-sink", "train-recent", "memory-bytes",  "compute"};

// DuoOptions from those options; lengths are the samples'.
Result<DuoOptions> ReadDuoOptions(const PlannerInput& input, const PlannerModel& model,
                                  const CalibrationSamples& samples);

// Gates of the plan in --from, whose scores they are; otherwise trained as the options say, with a progress bar and
// checkpoints.
Result<GateRun> ReadOrTrainGates(const PlannerInput& input);

struct Training {
  DuoState state;
  std::vector<std::string> notes;  // for the plan
};

// Trains from `initial` gates (empty: all 1); `what` names the checkpoint's work.
Result<Training> TrainWithCheckpoints(const PlannerInput& input, const PlannerModel& model,
                                      const CalibrationSamples& samples, const DuoOptions& options,
                                      const std::string& what, std::vector<double> initial);

// What a training measured, for the report.
Json DescribeTraining(const DuoState& state, const DuoOptions& options, const CalibrationSamples& samples);

}  // namespace headwise

#endif  // HEADWISE_PLANNER_DUO_METHOD_H_
