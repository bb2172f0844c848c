// `--preset long`: which plan and which cache formats let the longest text fit at a loss that the user bounds, and why.
// A pure function of shapes, bytes and candidates; what is free, and which files there are, the command finds out.
#ifndef HEADWISE_ENGINE_PRESET_H_
#define HEADWISE_ENGINE_PRESET_H_

#include <headwise/head_plan.h>
#include <headwise/status.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/kv_format.h"
#include "engine/measured_loss.h"
#include "kv/kv_bytes.h"

namespace headwise {

struct PresetMemory {
  int64_t total_bytes = 0;       // free, or what the user names
  int64_t weight_bytes = 0;      // as they are loaded
  int64_t activation_bytes = 0;  // of a step
  int64_t reserve_bytes = 0;     // left to drivers, scratch and everybody else
  int64_t kv_limit_bytes = 0;    // the user's, which is for caches alone; 0: none, the rest of the above

  int64_t other_bytes() const { return weight_bytes + activation_bytes + reserve_bytes; }
  int64_t kv_bytes() const { return kv_limit_bytes > 0 ? kv_limit_bytes : total_bytes - other_bytes(); }
};

struct PresetPlan {
  std::string name;  // "full", or a path
  std::shared_ptr<const HeadPlan> plan;
  PlanLoss loss;
};

struct PresetInput {
  PresetMemory memory;
  int64_t num_texts = 1;    // at once, each as long
  int64_t most_tokens = 0;  // a longer text is of no use
  int64_t chunk_tokens = 512;
  int64_t page_tokens = 0;  // as asked; 0: what suits the formats
  LayerWindows windows = {};
  double max_loss = 0;                                      // MeasuredLoss::worst, a share
  std::vector<PresetPlan> plans;                            // at least one
  std::vector<KvFormats> formats;                           // at least one; of equal choices the first is taken
  std::function<PageSizes(const KvLayout&)> page_sizes_of;  // the backend's
  // One plan, one pair of formats, that the user asks for: their loss is stated and not bounded.
  bool plan_is_given = false;
  bool formats_are_given = false;
};

// One plan in one pair of formats.
struct PresetOption {
  size_t plan_idx = 0;  // of PresetInput::plans
  KvFormats formats;
  std::optional<MeasuredLoss> loss = {};  // of both; null: not known of the plan
  std::optional<double> bounded = {};     // what of it counts against max_loss: of what the user did not ask for
  int64_t tokens = 0;                     // of each text, at most most_tokens
};

struct PresetChoice {
  PresetOption chosen;
  std::vector<PresetOption> options;  // all, within the bound or not
  int64_t num_within = 0;             // of them
};

// Of those within the bound the one with the most tokens; of equal ones the least loss, then the first. An error where
// not one token fits, with the bytes that the smallest choice needs; where a loss is not known it is not within.
Result<PresetChoice> ChoosePreset(const PresetInput& input);

// Lines for people: what was chosen, what it costs, why, and what was passed over.
std::string PresetText(const PresetInput& input, const PresetChoice& choice);

}  // namespace headwise

#endif  // HEADWISE_ENGINE_PRESET_H_
