#include "eval/ablation.h"

#include <fmt/format.h>

#include <filesystem>
#include <utility>

#include "planner/planner.h"

namespace headwise {
namespace {

namespace fs = std::filesystem;

Status CheckInput(const Ablation& ablation, const AblationInput& input) {
  if (ablation.needs_gates && input.gates.empty()) {
    return Status::InvalidInput(fmt::format("ablation {}: expected --gates, a plan of method duo", ablation.name));
  }
  if (ablation.needs_text && input.text.empty()) {
    return Status::InvalidInput(
        fmt::format("ablation {}: expected --text, a file to measure perplexity on", ablation.name));
  }
  if (input.out.empty()) return Status::InvalidInput("--out: is missing, expected a folder");
  return Status::Ok();
}

// Plans that an earlier run made are kept: some take minutes.
Result<GivenPlan> ReadOrMake(const Engine& engine, const AblationVariant& variant, const AblationInput& input) {
  const fs::path path = fs::path(input.out) / kPlansFolder / (variant.label + ".json");
  std::error_code error;
  if (fs::exists(path, error)) {
    HW_ASSIGN_OR_RETURN(HeadPlan plan, ReadPlanFor(engine, path.string()));
    if (plan.method == variant.method && plan.parameters_json == NamedOptions(variant.options).ToJson()) {
      return GivenPlan{.name = variant.label, .path = path.string(), .plan = std::move(plan)};
    }
    return Status::InvalidInput(fmt::format("{}: was made with {} {}, this run asks for {} {}; choose another folder",
                                            path.string(), plan.method, plan.parameters_json, variant.method,
                                            NamedOptions(variant.options).ToJson()));
  }
  fs::create_directories(path.parent_path(), error);
  if (error) return Status::Io(fmt::format("{}: cannot create the folder: {}", path.string(), error.message()));
  PlannerInput planner = PlannerInputFor(engine);
  planner.options = NamedOptions(variant.options);
  planner.model = input.engine.model;
  planner.num_threads = input.engine.num_threads;
  planner.checkpoint = path.string() + ".checkpoint";
  planner.resume = fs::exists(planner.checkpoint, error) ? PlannerInput::Resume::kYes : PlannerInput::Resume::kNo;
  planner.should_stop = input.should_stop;
  planner.progress = input.progress;
  planner.on_warning = input.engine.on_warning;
  auto plan = MakePlan(variant.method, planner);
  if (!plan.ok()) return std::move(plan).status().Annotate(variant.label);
  HW_RETURN_IF_ERROR(WriteHeadPlan(*plan, path.string()));
  fs::remove(planner.checkpoint, error);
  return GivenPlan{.name = variant.label, .path = path.string(), .plan = *std::move(plan)};
}

}  // namespace

Result<std::vector<EvaluationOutcome>> RunAblation(Engine& engine, const Ablation& ablation,
                                                   const AblationInput& input) {
  HW_RETURN_IF_ERROR(CheckInput(ablation, input));
  std::vector<GivenPlan> plans = {{.name = kFullPlan, .path = kFullPlan, .plan = std::nullopt}};
  for (const AblationVariant& variant : ablation.variants(input)) {
    HW_ASSIGN_OR_RETURN(GivenPlan plan, ReadOrMake(engine, variant, input));
    plans.push_back(std::move(plan));
  }
  std::vector<EvaluationOutcome> outcomes;
  for (const AblationTask& task : ablation.tasks(input)) {
    EvaluationOptions options;
    options.task = FindTask(task.task);
    options.task_options = NamedOptions(task.options);
    options.study = ablation.title;
    options.engine = input.engine;
    options.should_stop = input.should_stop;
    options.progress = input.progress;
    options.plans = plans;
    options.out = (fs::path(input.out) / task.task).string();
    // Tasks that an interruption never reached begin.
    std::error_code error;
    if (input.resume == EvaluationOptions::Resume::kYes && fs::exists(fs::path(options.out) / kManifestFile, error)) {
      options.resume = EvaluationOptions::Resume::kYes;
    }
    HW_ASSIGN_OR_RETURN(EvaluationOutcome outcome, Evaluate(engine, options));
    outcomes.push_back(std::move(outcome));
  }
  return outcomes;
}

}  // namespace headwise
