// `--preset long` of a command: what is free and which plans lie beside the model, the choice (engine/preset.h), and
// the options that it fills in. What the user gives is never replaced.
#ifndef HEADWISE_APPS_PRESET_OPTIONS_H_
#define HEADWISE_APPS_PRESET_OPTIONS_H_

#include <headwise/engine.h>
#include <headwise/status.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/model_preview.h"
#include "engine/preset.h"

namespace headwise {

struct PresetFlags {
  std::string preset;    // empty: none
  double max_loss = 10;  // in %
  // Of the command: whether they were given.
  const CLI::Option* kv_dtype = nullptr;
  const CLI::Option* kv_limit_bytes = nullptr;

  explicit operator bool() const { return !preset.empty(); }
};

// --preset and --max-loss. Requires: AddEngineOptions has been called.
void AddPresetOptions(CLI::App& command, PresetFlags& flags);

// What of a command's own options counts.
struct PresetUse {
  std::string plan;          // as given; empty: not
  int64_t num_texts = 1;     // at once
  int64_t max_context = 0;   // 0: the model's trained length
  int64_t memory_bytes = 0;  // weights, caches and all; 0: what is free now
};

struct PresetReport {
  PresetInput input;
  PresetChoice choice;
  std::vector<std::string> passed_over;  // files beside the model that are no plans for it, and why
  std::string weights;                   // their format, and what another would give

  const std::string& plan() const { return input.plans[choice.chosen.plan_idx].name; }
};

// Of `model`, opened with `options`. An error names what was looked for, or says how much the smallest choice needs.
Result<PresetReport> MakePreset(const PresetFlags& flags, const PresetUse& use, const EngineOptions& options,
                                const ModelPreview& model);
// What a command goes on with.
struct AppliedPreset {
  std::string plan;         // "full" or a path; without --preset as given
  int64_t max_context = 0;  // as given; else what fits, where that is less than the trained length; 0: that
};
// Makes it for `options.model`, fills in the cache formats and, where there was none, a limit of KV bytes, and says on
// standard error what was chosen.
Result<AppliedPreset> ApplyPreset(const PresetFlags& flags, const PresetUse& use, EngineOptions& options);

Json PresetJson(const PresetReport& report);
std::string PresetText(const PresetReport& report);

}  // namespace headwise

#endif  // HEADWISE_APPS_PRESET_OPTIONS_H_
