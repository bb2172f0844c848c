// headwise plan: makes head plans. One subcommand per row of the planner registry, with that method's own options.
#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "commands.h"
#include "common_options.h"
#include "generate.h"
#include "kv/plan_view.h"
#include "model/load_config.h"
#include "model/model_config.h"
#include "planner/budget.h"
#include "planner/duo_tsv.h"
#include "planner/plan_compare.h"
#include "planner/plan_run.h"
#include "planner/planner.h"
#include "planner/planner_help.h"
#include "terminal_line.h"

namespace headwise {
namespace {

struct PlanOptions {
  const PlannerMethod* method = nullptr;
  std::string model;
  std::string out;
  std::map<std::string, std::optional<std::string>> values;  // the method's options
  int num_threads = 0;
  bool resume = false;
};

struct RefitOptions {
  std::string model;
  std::string plan;
  std::string out;
  std::map<std::string, std::optional<std::string>> values;  // the budget
};

struct ExportOptions {
  std::string plan;
  std::string out;
};

struct CompareOptions {
  std::vector<std::string> plans;
  std::optional<std::string> model;
  std::vector<int64_t> lengths = {4096, 32768};
  bool json = false;
};

NamedOptions GivenOf(const std::map<std::string, std::optional<std::string>>& values) {
  std::map<std::string, std::string> given;
  for (const auto& [name, value] : values) {
    if (value) given.emplace(name, *value);
  }
  return NamedOptions(std::move(given));
}

Status ShowPlan(const HeadPlan& plan) {
  std::string text = FormatPlanMap(plan);
  for (const std::string& note : plan.notes) text += fmt::format("note: {}\n", note);
  PrintText(text);
  return CheckOutput();
}

Status RunPlan(const PlanOptions& options) {
  TerminalLine line;
  PlanRun run{.method = std::string(options.method->name),
              .model = options.model,
              .options = GivenOf(options.values),
              .out = options.out,
              .num_threads = options.num_threads,
              .resume = options.resume ? PlannerInput::Resume::kYes : PlannerInput::Resume::kNo,
              .progress = &line,
              .on_warning = LogWarning};
  // Where work can be kept, the first Ctrl-C ends it after its current step; elsewhere Ctrl-C just ends the process.
  std::optional<InterruptGuard> interrupt;
  if (options.method->runs == PlannerMethod::Runs::kModelResumably) {
    interrupt.emplace();
    run.should_stop = [&] { return interrupt->interrupted(); };
  }
  HW_ASSIGN_OR_RETURN(const HeadPlan plan, RunPlanner(run));
  return ShowPlan(plan);
}

Status RunRefit(const RefitOptions& options) {
  HW_ASSIGN_OR_RETURN(const HeadPlan earlier, ReadHeadPlan(options.plan));
  HW_ASSIGN_OR_RETURN(const HeadPlan plan, RefitPlanOf(options.model, earlier, GivenOf(options.values), options.plan));
  HW_RETURN_IF_ERROR(WriteHeadPlan(plan, options.out));
  return ShowPlan(plan);
}

Status RunExportDuo(const ExportOptions& options) {
  HW_ASSIGN_OR_RETURN(const HeadPlan plan, ReadHeadPlan(options.plan));
  std::error_code error;
  if (std::filesystem::equivalent(options.out, options.plan, error)) {
    return Status::InvalidInput(fmt::format("{}: is the plan itself, expected another file to write", options.out));
  }
  HW_ASSIGN_OR_RETURN(const std::string gates, FormatDuoTsv(plan));
  return WriteFileAtomically(options.out, gates);
}

Status RunCompare(const CompareOptions& options) {
  std::vector<NamedPlan> plans;
  for (const std::string& path : options.plans) {
    HW_ASSIGN_OR_RETURN(HeadPlan plan, ReadHeadPlan(path));
    plans.push_back({path, std::move(plan)});
  }
  LayerWindows windows;
  if (options.model) {
    HW_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(*options.model));
    for (const NamedPlan& named : plans) HW_RETURN_IF_ERROR(CheckPlanFits(named.plan, config.shape(), named.name));
    windows = LayerWindowsOf(config);
  }
  HW_ASSIGN_OR_RETURN(const PlanComparison comparison, ComparePlans(plans, options.lengths, windows));
  if (options.json) return PrintJson(ComparisonJson(plans, comparison));
  PrintText(FormatComparison(plans, comparison));
  return CheckOutput();
}

void AddMethod(CommandLine& line, CLI::App& plan, const PlannerMethod& method) {
  auto options = std::make_shared<PlanOptions>();
  options->method = &method;
  CLI::App& command = *plan.add_subcommand(std::string(method.name), std::string(method.description));
  command.add_option("--model,-m", options->model, "Model that the plan is for: a Hugging Face folder or a .gguf file")
      ->required();
  command.add_option("--out", options->out, "Plan file to write")->required();
  for (const std::string_view name : method.options) {
    command
        .add_option(fmt::format("--{}", name), options->values[std::string(name)],
                    std::string(HelpFor(method.name, name)))
        ->default_str(DefaultFor(method.name, name))
        ->required(IsRequired(method.name, name));
  }
  if (method.runs != PlannerMethod::Runs::kNothing) {
    command.add_option("--threads", options->num_threads, "Threads; 0: one per core")->capture_default_str();
  }
  if (method.runs == PlannerMethod::Runs::kModelResumably) {
    command.add_flag("--resume", options->resume,
                     "Go on from the checkpoint that an interrupted run left beside --out");
  }
  OnChosen(line, command, std::move(options), RunPlan);
}

}  // namespace

void AddPlanCommand(CommandLine& line) {
  CLI::App& plan = *line.app.add_subcommand("plan", "Make a head plan");
  plan.require_subcommand(1);
  for (const PlannerMethod& method : PlannerMethods()) AddMethod(line, plan, method);

  auto refit = std::make_shared<RefitOptions>();
  CLI::App& again = *plan.add_subcommand("refit", "The method of an earlier plan at another KV budget; runs no model");
  again.add_option("--model,-m", refit->model, "Model that the plan is for: a Hugging Face folder or a .gguf file")
      ->required();
  again.add_option("--from", refit->plan, "Plan file")->required();
  again.add_option("--out", refit->out, "Plan file to write")->required();
  for (const std::string_view name : kBudgetOptions) {
    again.add_option(fmt::format("--{}", name), refit->values[std::string(name)], std::string(HelpFor("refit", name)));
  }
  OnChosen(line, again, std::move(refit), RunRefit);

  auto options = std::make_shared<ExportOptions>();
  CLI::App& command = *plan.add_subcommand("export-duo", "Write a plan's gates in DuoAttention's form");
  command.add_option("--from", options->plan, "Plan file")->required();
  command.add_option("--out", options->out, "TSV file to write: a row per layer, a gate per KV head")->required();
  OnChosen(line, command, std::move(options), RunExportDuo);

  auto compared = std::make_shared<CompareOptions>();
  CLI::App& compare = *plan.add_subcommand("compare", "Print what plans agree on, and their KV bytes");
  compare.add_option("plans", compared->plans, "Plan files")->required();
  compare.add_option("--model,-m", compared->model,
                     "Model of the plans, whose own sliding windows count in their bytes; none: the shape's alone");
  compare.add_option("--at", compared->lengths, "Text lengths in tokens: 4096,32768")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str();
  compare.add_flag("--json", compared->json, "One JSON object on standard output");
  OnChosen(line, compare, std::move(compared), RunCompare);
}

}  // namespace headwise
