// Evaluation and its report.
#include <headwise/engine.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <fmt/format.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "bindings.h"
#include "calls.h"
#include "engine/read_plan.h"
#include "eval/evaluation.h"
#include "eval/task.h"
#include "python_progress.h"
#include "report/report.h"
#include "report/report_run.h"
#include "report/tables.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace headwise::python {
namespace {

struct Asked {
  std::string task;
  std::map<std::string, std::string> options;
  // Files by path (or "full"), with a null plan; plans by name.
  std::vector<std::pair<std::string, PlanPointer>> plans;
  std::vector<double> kv_ratios;
  std::string out;
  bool resume = false;
  bool bos = true;
};

// Files as the command reads them, plans that are there already by the names they were given.
Result<std::vector<GivenPlan>> PlansOf(const Asked& asked, const Engine& engine) {
  std::vector<std::string> paths;
  for (const auto& [name, plan] : asked.plans) {
    if (plan == nullptr) paths.push_back(name);
  }
  HW_ASSIGN_OR_RETURN(std::vector<GivenPlan> files, ReadPlans(paths, engine));
  std::vector<GivenPlan> plans;
  auto file = files.begin();
  std::set<std::string> names;
  for (const auto& [name, plan] : asked.plans) {
    if (plan == nullptr) {
      plans.push_back(std::move(*file++));
    } else {
      HW_RETURN_IF_ERROR(CheckPlanFor(engine, *plan, name));
      plans.push_back({.name = name, .path = name, .plan = *plan});
    }
    const bool is_full = !plans.back().plan;
    if (!names.insert(plans.back().name).second || (!is_full && plans.back().name == kFullPlan)) {
      return Status::InvalidInput(
          fmt::format("plans: two are called \"{}\", expected different names", plans.back().name));
    }
  }
  return plans;
}

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// The summary and every result, as JSON.
struct Answer {
  std::string summary;
  std::string results;
};

Result<Answer> Run(const Asked& asked, const EngineOptions& engine_options, ProgressLine& line, PendingError& pending) {
  EvaluationOptions options;
  options.task = FindTask(asked.task);
  if (options.task == nullptr) {
    std::string known;
    for (const TaskMethod& task : TaskMethods()) known += fmt::format("{}{}", known.empty() ? "" : ", ", task.name);
    return Status::InvalidInput(fmt::format("eval \"{}\" is unknown, expected one of: {}", asked.task, known));
  }
  options.task_options = NamedOptions(asked.options);
  options.bos = asked.bos ? Bos::kAuto : Bos::kNever;
  options.engine = engine_options;
  options.kv_ratios = asked.kv_ratios;
  options.out = asked.out;
  if (asked.resume) options.resume = EvaluationOptions::Resume::kYes;
  options.should_stop = [&] { return pending.Poll(); };
  options.progress = &line;
  HW_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::Create(engine_options));
  if (!engine->has_tokenizer()) {
    return Status::NotFound("eval: the model has no tokenizer; expected one beside its weights");
  }
  HW_ASSIGN_OR_RETURN(options.plans, PlansOf(asked, *engine));
  HW_ASSIGN_OR_RETURN(const EvaluationOutcome outcome, Evaluate(*engine, options));
  Json results = Json::array();
  for (const CaseResult& result : outcome.run.results) results.push_back(ToJson(result));
  return Answer{.summary = Dump(ToJson(outcome.summary)), .results = Dump(results)};
}

std::tuple<std::string, std::string, std::vector<std::string>> EvaluateTask(
    const std::string& task, const EngineOptions& engine, const std::map<std::string, std::string>& task_options,
    const std::vector<std::pair<std::string, std::optional<BoundPlan>>>& plans, const std::vector<double>& kv_ratios,
    const std::string& out, bool resume, bool bos, const nb::object& progress) {
  Asked asked{.task = task,
              .options = task_options,
              .plans = {},
              .kv_ratios = kv_ratios,
              .out = out,
              .resume = resume,
              .bos = bos};
  for (const auto& [name, plan] : plans) asked.plans.emplace_back(name, plan ? plan->plan : nullptr);
  Warnings warnings;
  PendingError pending;
  PythonProgress line(progress, pending);
  EngineOptions options = engine;
  options.on_warning = [&](std::string_view message) { warnings.Add(message); };
  Result<Answer> answer = WithoutGil([&] { return Run(asked, options, line, pending); });
  pending.Rethrow();
  Answer given = Value(std::move(answer));
  return {std::move(given.summary), std::move(given.results), warnings.Take()};
}

nb::typed<nb::list, Row> Tasks() {
  nb::list tasks;
  for (const TaskMethod& task : TaskMethods()) {
    nb::dict row;
    row["name"] = std::string(task.name);
    row["description"] = std::string(task.description);
    std::vector<std::pair<std::string, std::string>> options;
    for (const TaskOption& option : task.options) options.emplace_back(option.name, option.help);
    row["options"] = options;
    tasks.append(row);
  }
  return tasks;
}

// HTML, CSV, Markdown.
std::tuple<std::string, std::string, std::string> Report(const std::vector<std::string>& folders) {
  Result<std::tuple<std::string, std::string, std::string>> report =
      WithoutGil([&]() -> Result<std::tuple<std::string, std::string, std::string>> {
        HW_ASSIGN_OR_RETURN(const std::vector<ReportRun> runs, LoadReportRuns(folders));
        return std::tuple(RenderReport(runs), ToCsv(runs), ToMarkdown(runs));
      });
  return Value(std::move(report));
}

}  // namespace

void BindEvaluation(nb::module_& module) {
  module.def("tasks", Tasks);
  module.def("evaluate", EvaluateTask, "task"_a, "engine"_a, "task_options"_a, "plans"_a, "kv_ratios"_a, "out"_a,
             "resume"_a, "bos"_a, "progress"_a.none());
  module.def("report", Report, "folders"_a);
  module.def(
      "write_report",
      [](const std::string& text, const std::string& path) {
        Check(WithoutGil([&] { return WriteFileAtomically(path, text); }));
      },
      "text"_a, "path"_a);
}

}  // namespace headwise::python
