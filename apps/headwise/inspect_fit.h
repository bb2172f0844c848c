// What fits: how many tokens each of so many conversations may have before memory ends, by plan and cache format.
#ifndef HEADWISE_APPS_INSPECT_FIT_H_
#define HEADWISE_APPS_INSPECT_FIT_H_

#include <headwise/engine.h>
#include <headwise/head_plan.h>
#include <headwise/status.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/model_preview.h"

namespace headwise {

struct FitRow {
  std::string plan;                        // "full", or the plan's path
  std::string kv_dtype;                    // as --kv-dtype takes it
  std::vector<int64_t> tokens;             // of each conversation, for FitReport::conversations
  std::vector<int64_t> kv_bytes_of_token;  // of one more token of all of them where they are that long
};

struct FitReport {
  int64_t memory_bytes = 0;      // asked about
  int64_t weight_bytes = 0;      // as they are in the file
  int64_t activation_bytes = 0;  // of a step of --chunk-tokens
  int64_t kv_bytes = 0;          // what is left; less than 0 where the weights do not fit
  std::vector<int64_t> conversations;
  std::vector<FitRow> rows;
};

// The rows of f32 that a layer works on, of as many tokens as a step has.
int64_t ActivationBytes(const ModelConfig& config, int64_t num_tokens);

// Of `model`, opened with `options`, and under `plan` too where there is one, in each cache format: what an engine
// would admit by its worst case with the KV limit that is left. What a driver takes for itself is not known here.
Result<FitReport> ReportFit(const EngineOptions& options, const ModelPreview& model,
                            const std::shared_ptr<const HeadPlan>& plan, const std::string& plan_path,
                            int64_t memory_bytes);

Json FitJson(const FitReport& report);
std::string FitText(const FitReport& report);

}  // namespace headwise

#endif  // HEADWISE_APPS_INSPECT_FIT_H_
