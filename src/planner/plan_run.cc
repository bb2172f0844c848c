#include "planner/plan_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "base/file.h"
#include "model/load_config.h"
#include "model/model.h"
#include "model/model_config.h"
#include "weights/weight_source.h"

namespace headwise {
namespace {

PlannerInput InputForShape(const ModelConfig& config, const NamedOptions& options) {
  PlannerInput input;
  input.shape = config.shape();
  input.windows = LayerWindowsOf(config);
  input.options = options;
  return input;
}

// Planning needs the shape; the hash only where a folder has weights (an import may do without).
Result<PlannerInput> InputFor(const PlanRun& run) {
  HW_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(run.model));
  PlannerInput input = InputForShape(config, run.options);
  input.model = run.model;
  input.num_threads = run.num_threads;
  if (!run.out.empty()) input.checkpoint = CheckpointPath(run.out);
  input.resume = run.resume;
  input.should_stop = run.should_stop;
  input.progress = run.progress;
  input.on_warning = run.on_warning;
  const auto weights = OpenModelWeights(run.model, config);
  if (weights.ok()) {
    input.source_hash = SourceHash(**weights);
  } else if (weights.status().code() != StatusCode::kNotFound) {
    return weights.status();
  }
  return input;
}

// Of an unknown method MakePlan says so.
bool KeepsWork(const std::string& name) {
  const auto methods = PlannerMethods();
  const auto method = std::ranges::find(methods, name, &PlannerMethod::name);
  return method != methods.end() && method->runs == PlannerMethod::Runs::kModelResumably;
}

// A model, a text or gates must not be lost to a plan. An earlier plan may be replaced.
Status CheckOutIsNoInput(const PlanRun& run) {
  namespace fs = std::filesystem;
  constexpr uintmax_t kMostOfAPlan = uintmax_t{64} << 20;
  std::error_code error;
  if (!fs::exists(run.out, error)) return Status::Ok();
  std::vector<std::string> sources = {run.model};
  for (const char* option : {"from", "text", "prompts", "rules"}) sources.push_back(run.options.StringOr(option, ""));
  const fs::path folder = fs::absolute(run.out, error).parent_path();
  for (const std::string& source : sources) {
    if (source.empty()) continue;
    if (!fs::equivalent(run.out, source, error) && !fs::equivalent(folder, source, error)) continue;
    if (fs::file_size(run.out, error) <= kMostOfAPlan && ReadHeadPlan(run.out).ok()) continue;
    return Status::InvalidInput(
        fmt::format("{}: is of what the plan is made from, {}, and no plan; expected another "
                    "file to write",
                    run.out, source));
  }
  return Status::Ok();
}

}  // namespace

std::string CheckpointPath(const std::string& out) {
  return out + ".checkpoint";
}

Result<HeadPlan> RunPlanner(const PlanRun& run) {
  if (run.resume == PlannerInput::Resume::kYes && (run.out.empty() || !KeepsWork(run.method))) {
    const char* why = run.out.empty() ? "without a plan file there is no checkpoint beside it" : "it keeps no work";
    return Status::InvalidInput(fmt::format("plan {}: is to be resumed, but {}", run.method, why));
  }
  if (!run.out.empty()) {
    HW_RETURN_IF_ERROR(CheckOutIsNoInput(run));
    HW_RETURN_IF_ERROR(CheckWritable(run.out));
  }
  HW_ASSIGN_OR_RETURN(const PlannerInput input, InputFor(run));
  HW_ASSIGN_OR_RETURN(HeadPlan plan, MakePlan(run.method, input));
  if (run.out.empty()) return plan;
  HW_RETURN_IF_ERROR(WriteHeadPlan(plan, run.out));
  std::error_code ignored;  // a checkpoint that stays is only clutter
  if (KeepsWork(run.method)) std::filesystem::remove(input.checkpoint, ignored);
  return plan;
}

Result<HeadPlan> RefitPlanOf(const std::string& model, const HeadPlan& earlier, const NamedOptions& budget,
                             const std::string& origin) {
  HW_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(model));
  return RefitPlan(earlier, InputForShape(config, budget), origin);
}

}  // namespace headwise
