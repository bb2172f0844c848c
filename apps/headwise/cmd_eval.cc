// headwise eval: measures what plans cost a model. One subcommand per row of the task registry, with that task's own
// options; each plan is evaluated on the same cases.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "commands.h"
#include "common_options.h"
#include "eval/ablation.h"
#include "eval/evaluation.h"
#include "generate.h"
#include "option_checks.h"
#include "terminal_line.h"

namespace headwise {
namespace {

struct EvalOptions {
  const TaskMethod* task = nullptr;
  EngineOptions engine;
  std::vector<std::string> plans;
  std::vector<double> kv_ratios;
  std::string out;
  std::map<std::string, std::optional<std::string>> values;  // the task's options
  std::optional<std::string> cases;                          // a number, or the task's own files
  bool no_bos = false;
  bool resume = false;
  bool json = false;
};

constexpr const char* kCases = "cases";

bool IsCount(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

// --cases N is --num-cases N; anything else names the files of a task that reads some.
Result<NamedOptions> TaskOptionsOf(const EvalOptions& options) {
  std::map<std::string, std::string> given;
  for (const auto& [name, value] : options.values) {
    if (value) given.emplace(name, *value);
  }
  if (options.cases && IsCount(*options.cases)) {
    if (given.contains("num-cases")) return Status::InvalidInput("found --cases and --num-cases, expected one number");
    given.emplace("num-cases", *options.cases);
  } else if (options.cases) {
    given.emplace(kCases, *options.cases);
  }
  return NamedOptions(std::move(given));
}

// Totals per plan: what scripts read. Shares as correct and total, means by name.
Json SummaryJson(const EvaluationOutcome& outcome) {
  const RunInfo& info = outcome.run.info;
  Json plans = Json::array();
  for (const PlanInfo& plan : info.plans) {
    Json row = {{"plan", plan.name}, {"method", plan.method}};
    double seconds = 0;
    int64_t new_tokens = 0;
    for (const CaseResult& result : outcome.run.results) {
      if (result.plan != plan.name) continue;
      seconds += result.seconds;
      new_tokens += result.new_tokens;
    }
    for (const MetricInfo& metric : info.metrics) {
      const Cell* cell = FindCell(outcome.summary, plan.name, std::nullopt, metric.name);
      if (cell == nullptr) continue;
      row[metric.name] = cell->mean;
      row[metric.name + "_interval"] = {cell->interval.low, cell->interval.high};
      row["total"] = cell->count;
      row["kv_bytes"] = cell->kv_bytes;
      row["kv_peak_bytes"] = cell->kv_peak_bytes;
      row["kv_read_bytes"] = cell->kv_read_bytes;
      if (metric.name == "accuracy") {
        row["correct"] = static_cast<int64_t>(cell->mean * static_cast<double>(cell->count) + 0.5);
      }
    }
    if (row.contains("nll")) row["total"] = new_tokens;  // of predicted tokens
    row["seconds"] = seconds;
    plans.push_back(std::move(row));
  }
  return {{"task", info.task}, {"model", info.model}, {"plans", std::move(plans)}};
}

void PrintCells(const EvaluationOutcome& outcome) {
  const RunInfo& info = outcome.run.info;
  const MetricInfo& metric = info.metrics.front();
  for (const PlanInfo& plan : info.plans) {
    for (const Cell& cell : outcome.summary.cells) {
      if (cell.plan != plan.name || cell.metric != metric.name) continue;
      if (!cell.length && info.lengths.size() == 1) continue;
      const std::string where = cell.length ? fmt::format("{} tokens", *cell.length) : "all lengths";
      std::string figure = fmt::format("{:.4f}{}{}", cell.mean, metric.unit.empty() ? "" : " ", metric.unit);
      if (metric.kind == MetricInfo::Kind::kRate) {
        figure = fmt::format("{:.0f} of {} right", cell.mean * static_cast<double>(cell.count), cell.count);
      }
      Print("{}, {}: {} [{:.4f}, {:.4f}], KV {} at the end, {} at peak{}\n", plan.name, where, figure,
            cell.interval.low, cell.interval.high, FormatBytes(cell.kv_bytes), FormatBytes(cell.kv_peak_bytes),
            cell.ReadsLess() ? fmt::format(", {} read by a query", FormatBytes(cell.kv_read_bytes)) : "");
    }
  }
}

Status RunEval(const EvalOptions& options) {
  EvaluationOptions evaluation;
  evaluation.task = options.task;
  HW_ASSIGN_OR_RETURN(evaluation.task_options, TaskOptionsOf(options));
  evaluation.bos = options.no_bos ? Bos::kNever : Bos::kAuto;
  evaluation.engine = options.engine;
  evaluation.kv_ratios = options.kv_ratios;
  evaluation.out = options.out;
  TerminalLine line;
  evaluation.progress = &line;
  if (options.resume) evaluation.resume = EvaluationOptions::Resume::kYes;
  HW_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::Create(options.engine));
  const std::vector<std::string> paths = options.plans.empty() ? std::vector<std::string>{kFullPlan} : options.plans;
  HW_ASSIGN_OR_RETURN(evaluation.plans, ReadPlans(paths, *engine));
  HW_ASSIGN_OR_RETURN(const EvaluationOutcome outcome, Evaluate(*engine, evaluation));
  if (options.json) return PrintJson(SummaryJson(outcome));
  PrintCells(outcome);
  return CheckOutput();
}

void AddTask(CommandLine& line, CLI::App& eval, const TaskMethod& task) {
  auto options = std::make_shared<EvalOptions>();
  options->task = &task;
  CLI::App& command = *eval.add_subcommand(std::string(task.name), std::string(task.description));
  AddEngineOptions(command, options->engine);
  command.add_option("--plan", options->plans, "Head plan, or \"full\"; may be repeated. Default: full")
      ->allow_extra_args(false);
  command
      .add_option("--kv-ratio", options->kv_ratios,
                  "Re-plan every plan but full to these shares of the dense KV bytes, at every length: 0.5,0.25")
      ->delimiter(',')
      ->allow_extra_args(false);
  for (const TaskOption& option : task.options) {
    if (option.name == kCases) continue;
    command.add_option(fmt::format("--{}", option.name), options->values[std::string(option.name)],
                       std::string(option.help));
  }
  const auto cases = std::ranges::find(task.options, std::string_view(kCases), &TaskOption::name);
  command.add_option(
      "--cases", options->cases,
      cases == task.options.end() ? "The same as --num-cases" : fmt::format("{}; a number: --num-cases", cases->help));
  command.add_flag("--no-bos", options->no_bos, "No beginning-of-text token in front");
  command.add_option("--out", options->out, "Folder for results: see eval report");
  command.add_flag("--resume", options->resume, "Go on with the run in --out");
  command.add_flag("--json", options->json, "One JSON object on standard output");
  OnChosen(line, command, std::move(options), RunEval);
}

struct AblationOptions : AblationInput {
  const Ablation* ablation = nullptr;
  bool resume_flag = false;
  bool json = false;
};

Status RunAblationCommand(const AblationOptions& options) {
  HW_RETURN_IF_ERROR(CheckRange("--length", options.length, 512, int64_t{1} << 24));
  // Its plans are kept one by one, and trainings at their last step: the first Ctrl-C ends it there.
  InterruptGuard interrupt;
  AblationInput input = options;
  if (options.resume_flag) input.resume = EvaluationOptions::Resume::kYes;
  input.should_stop = [&] { return interrupt.interrupted(); };
  TerminalLine line;
  input.progress = &line;
  HW_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::Create(options.engine));
  HW_ASSIGN_OR_RETURN(const std::vector<EvaluationOutcome> outcomes, RunAblation(*engine, *options.ablation, input));
  if (!options.json) {
    for (const EvaluationOutcome& outcome : outcomes) {
      Print("{}: {}\n", outcome.run.info.study, outcome.run.info.title);
      PrintCells(outcome);
    }
    return CheckOutput();
  }
  Json tasks = Json::array();
  for (const EvaluationOutcome& outcome : outcomes) tasks.push_back(SummaryJson(outcome));
  return PrintJson({{"ablation", options.ablation->name}, {"tasks", std::move(tasks)}});
}

void AddAblation(CommandLine& line, CLI::App& group, const Ablation& ablation) {
  auto options = std::make_shared<AblationOptions>();
  options->ablation = &ablation;
  CLI::App& command = *group.add_subcommand(std::string(ablation.name), std::string(ablation.description));
  AddEngineOptions(command, options->engine);
  if (ablation.needs_gates) command.add_option("--gates", options->gates, "Plan of method duo")->required();
  if (ablation.needs_text) command.add_option("--text", options->text, "UTF-8 text file")->required();
  command.add_option("--length", options->length, "Tokens of the cases")->capture_default_str();
  command.add_option("--kv-ratio", options->kv_ratio, "KV bytes of the plans, where they are compared at equal bytes")
      ->capture_default_str();
  command.add_option("--num-cases", options->num_cases, "Cases of each task")->capture_default_str();
  command.add_option("--steps", options->steps, "Steps of trainings; by default the planner's");
  command.add_option("--out", options->out, "Folder for plans and results: see eval report")->required();
  command.add_flag("--resume", options->resume_flag, "Go on with the run in --out");
  command.add_flag("--json", options->json, "One JSON object on standard output");
  OnChosen(line, command, std::move(options), RunAblationCommand);
}

}  // namespace

void AddEvalCommand(CommandLine& line) {
  CLI::App& eval = *line.app.add_subcommand("eval", "Measure what plans cost a model");
  eval.require_subcommand(1);
  for (const TaskMethod& task : TaskMethods()) AddTask(line, eval, task);
  CLI::App& ablations = *eval.add_subcommand("ablation", "One of the papers' ablations");
  ablations.require_subcommand(1);
  for (const Ablation& ablation : Ablations()) AddAblation(line, ablations, ablation);
  AddReportTask(line, eval);
}

}  // namespace headwise
